"""A diagnosis with its English sentences in the language that is shown; ids, names, code and numbers stay."""

from __future__ import annotations

from dataclasses import replace

from diagnose.model.diagnosis import Diagnosis, Finding, Prescription, Trial, Waterfall
from diagnose.reports.language import ENGLISH, current, translated

__all__ = ["localized"]


def localized(d: Diagnosis) -> Diagnosis:
    """Return the diagnosis as it is shown in the current language."""
    if current() == ENGLISH:
        return d
    return replace(
        d,
        headline=translated(d.headline),
        findings=tuple(map(_finding, d.findings)),
        prescriptions=tuple(map(_prescription, d.prescriptions)),
        also_possible=tuple(map(_prescription, d.also_possible)),
        trust=tuple(note._replace(text=translated(note.text)) for note in d.trust),
        trials=tuple(map(_trial, d.trials)),
        legends={rule: legend._replace(label=translated(legend.label)) for rule, legend in d.legends.items()},
        waterfall=_waterfall(d.waterfall) if d.waterfall is not None else None,
        after=localized(d.after) if d.after is not None else None,
    )


def _finding(f: Finding) -> Finding:
    return replace(f, title=translated(f.title), evidence=tuple(map(translated, f.evidence)))


def _prescription(p: Prescription) -> Prescription:
    return replace(
        p,
        title=translated(p.title),
        safety=translated(p.safety),
        needs=translated(p.needs),
        assumes=translated(p.assumes),
    )


def _trial(t: Trial) -> Trial:
    return replace(t, title=translated(t.title), note=translated(t.note), failure=translated(t.failure))


def _waterfall(w: Waterfall) -> Waterfall:
    forecasts = tuple(f._replace(title=translated(f.title)) for f in w.forecasts)
    return w._replace(forecasts=forecasts, bound_by=translated(w.bound_by))

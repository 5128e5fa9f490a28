"""Each time counts once: in the finding of its cause, and in that of a symptom only what no cause explains.

A symptom shows where the time goes, as Python between two operators, a wait for a batch or a step that is long now and
then. A cause names what of it is wasted. What comes now and then costs what all steps of the run show: how much of it
the few recorded ones hold is chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from diagnose.analyzers import META, periodic_stall
from diagnose.analyzers.common.avoidable import IN_LONG_STEP
from diagnose.analyzers.common.idioms import call_cause
from diagnose.model.diagnosis import Finding
from diagnose.model.limits import MAJORITY, PREVAILS
from diagnose.pipeline.true_step import excess_ns
from diagnose.tables import Tables
from diagnose.tables.run_steps import COLLECTION, MIN_RATIO, TIMING
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, percent

_STALL = periodic_stall.META.id


def counted_once(found: Sequence[Finding], step_ns: float, floor: float) -> list[Finding]:
    """Return the findings with what causes explain taken out of the symptoms.

    What is left of a symptom at the line of its cause is named if it is worth an answer by itself: the ``floor``, a
    share of the step.
    """
    # Of one rule there may be two of the long steps: as recorded, and as the data flow shows it.
    longest = {f.rule: f for f in sorted(found, key=lambda f: f.lost_ns) if f.facts.get(IN_LONG_STEP)}
    counted = [f for f in found if not f.facts.get(IN_LONG_STEP) or longest[f.rule] is f]
    left = (_rest_of(f, counted, floor * step_ns) for f in counted)
    return _without_waste([f for f in left if f is not None], floor)


def of_run(t: Tables, f: Finding, step_ns: float) -> Finding:
    """Return a finding of long recorded steps as one of the run, which costs what all of its long steps show."""
    run, rows, length = t.capture.run, t.causes.of(f.rule), t.steps.end - t.steps.start
    stalls = [s for s in t.stalls if run is not None and (run.state[s.rows] == TIMING).any()]
    if f.share is not None or META[f.rule].kind != "idle" or not stalls or not len(rows) or step_ns <= 0:
        return f
    is_long = length >= MIN_RATIO * np.median(length)
    start, lost = t.causes.start[rows], t.causes.end[rows] - t.causes.start[rows]
    within = is_long[np.maximum(np.searchsorted(t.steps.start, start, side="right") - 1, 0)]
    recorded_ns = excess_ns(length)
    if lost[within].sum() < PREVAILS * lost.sum() or recorded_ns <= 0:
        return f
    lost_ns = f.lost_ns * sum(s.lost_ns for s in stalls) / recorded_ns
    share = min(lost_ns / step_ns, 1.0)
    said = f"It lies in steps that are long now and then: by all of these, {duration(lost_ns)} of the mean step "
    return replace(
        f,
        title=f"{f.title}, in 1 step of {stalls[0].every}",
        lost_ns=lost_ns,
        share=share,
        evidence=(f"{said}({percent(share, 0)} of the run's time).", *f.evidence[1:]),
        facts={**f.facts, IN_LONG_STEP: True},
    )


def _places(found: Iterable[Finding]) -> set[tuple[str | None, int | None]]:
    return {(w.file, w.line) for f in found for w in f.where if w.file}


def _rest_of(symptom: Finding, found: Sequence[Finding], floor_ns: float) -> Finding | None:
    """Return what of a symptom no cause at its line explains, None where that is not worth naming.

    Rules divide the time of the recorded steps among them. What a cause takes of the run is part of the symptom's.
    """
    if not META[symptom.rule].is_symptom or symptom.rule == _STALL:
        return symptom
    why, first = call_cause(symptom.facts), _places([replace(symptom, where=symptom.where[:1])])
    causes = [f for f in found if not META[f.rule].is_symptom and f.lost_ns > 0 and first & _places([f])]
    if symptom.share is not None:  # of the long steps that another finding has as a whole
        causes += [f for f in found if f.rule == _STALL and first & _places([replace(f, where=f.where[:1])])]
    if not causes or (why is not None and why.place not in _places(causes)):  # nor is what is explained a symptom
        return symptom
    rest = _less(symptom, sum(f.lost_ns for f in causes if f.share is not None))
    return rest if why is None and rest.lost_ns >= floor_ns else None


def _less(symptom: Finding, part_ns: float) -> Finding:
    """Return a symptom without a part of its cost that another finding has."""
    if not part_ns:
        return symptom
    left = max(1 - part_ns / symptom.lost_ns, 0.0)
    return replace(
        symptom,
        lost_ns=symptom.lost_ns * left,
        share=symptom.share * left if symptom.share is not None else None,
        evidence=(*symptom.evidence, f"{duration(min(part_ns, symptom.lost_ns))} of it is counted in other findings."),
    )


def _without_waste(found: list[Finding], floor: float) -> list[Finding]:
    """Take what other findings name inside of long steps out of the largest of those that fits.

    What is left of a step that is wanted, as an evaluation, is named only if it is most of the run, or if what it
    wastes is below the ``floor`` of an answer.
    """
    wasted = sum(f.share for f in found if f.share and f.facts.get(IN_LONG_STEP))
    mine = [f for f in found if f.rule == _STALL and f.share is not None and f.facts["phase"] != COLLECTION]
    if not wasted or not mine:
        return found
    whole = max(mine, key=lambda f: f.lost_ns)
    share = (whole.share or 0.0) - wasted
    least = periodic_stall.MIN_SHARES.get(str(whole.facts["phase"]), THRESHOLDS.naming_share)
    if whole.facts["phase"] in periodic_stall.MIN_SHARES and wasted >= floor:
        least = MAJORITY
    if share < least:
        return [f for f in found if f is not whole]
    rest = _less(whole, whole.lost_ns * wasted / (whole.share or 1.0))
    return [rest if f is whole else f for f in found]

"""The data of the trials' charts: each measured step with its interval beside the predicted one, and the losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import median
from typing import TypeAlias

from diagnose.model.diagnosis import Diagnosis, Trial
from diagnose.reports.format import MAX_LOSSES
from diagnose.text.plain_text import middle, one_line

__all__ = ["trial_data", "trial_name", "verdict"]

Data: TypeAlias = dict[str, object]

_MAX_NAME_CHARS = 34  # characters of a name beside a chart
TONES = {
    "gain": ("faster for certain", "#2fa36b"),
    "drifted": ("faster, but other losses", "#d08a2e"),
    "even": ("no certain difference", "#8a94a2"),
    "loss": ("slower for certain", "#e5484d"),
}
LINES = ("#3d7fd6", "#2fa36b", "#d08a2e", "#a267d1", "#e5484d", "#2aa5a0", "#c75b9b", "#8a7a3d")
"""Colours of the losses, taken in turn."""


def trial_name(trial: Trial) -> str:
    """Return what was run, in a few words."""
    return {"single": trial.id, "combination": "together", "without": f"together, without {trial.id}"}[trial.kind]


def verdict(trial: Trial) -> str:
    """Return ``gain``, ``drifted``, ``even`` or ``loss``: what the interval and the losses show together."""
    low, high = trial.interval
    if low > 1:
        return "drifted" if trial.numerics == "drifted" else "gain"
    return "loss" if high < 1 else "even"


def trial_data(d: Diagnosis) -> Data | None:
    """Return the data of both charts, None where no trial was measured. Times are ms."""
    measured = [t for t in d.trials if t.steps_ms is not None and not t.failure]
    if not measured:
        return None
    baseline = median(t.steps_ms[0] for t in measured if t.steps_ms is not None)
    noise = max((t.noise for t in measured if t.noise is not None), default=0.0)
    return {
        "names": [_label(trial_name(t)) for t in measured],
        "baseline": baseline,
        "noise": noise if math.isfinite(noise) else 0.0,
        "groups": [_group(measured, tone) for tone in TONES if any(verdict(t) == tone for t in measured)],
        "predicted": [[i, t.predicted_ms] for i, t in enumerate(measured) if _is_number(t.predicted_ms)],
        "losses": _losses(measured),
    }


def _group(trials: Sequence[Trial], tone: str) -> Data:
    """Return rows of one colour: row, measured step, and how far its interval reaches to the left and right."""
    name, colour = TONES[tone]
    items = [(i, *_interval(t), t.speed_up) for i, t in enumerate(trials) if verdict(t) == tone]
    return {"name": name, "colour": colour, "items": items}


def _interval(trial: Trial) -> tuple[float, float, float]:
    """Return the step and the ends of its interval, which is that of the speed-up over the step without the change."""
    before, step = trial.steps_ms or (0.0, 0.0)
    low, high = trial.interval
    ends = (before / high if high > 0 else step, before / low if low > 0 else step)
    return step, max(step - ends[0], 0.0), max(ends[1] - step, 0.0)


def _losses(trials: Sequence[Trial]) -> Data | None:
    """Return the curves: those without a change (one, if the losses are the same each time), then each trial's."""
    shown = [t for t in trials if len(t.losses[0]) > 1 and len(t.losses[1]) > 1]
    if not shown:
        return None
    unchanged = list(dict.fromkeys(t.losses[0][:MAX_LOSSES] for t in shown))
    curves = [
        {
            "name": _label(trial_name(t)),
            "numerics": t.numerics,
            "colour": LINES[i % len(LINES)],
            "y": [_plain(loss) for loss in t.losses[1][:MAX_LOSSES]],
            "distance": _distances(t),
        }
        for i, t in enumerate(shown)
    ]
    known = [abs(x) for losses in unchanged for x in losses if math.isfinite(x)]
    return {
        "unchanged": [[_plain(loss) for loss in losses] for losses in unchanged],
        "curves": curves,
        "log": bool(known) and 0 < min(known) < max(known) / 30 and min(min(x) for x in unchanged) > 0,
    }


def _distances(trial: Trial) -> list[float | None]:
    """Return how far each loss is from the one without the change, relative to it; None where they are the same."""
    pairs = list(zip(*trial.losses, strict=False))[:MAX_LOSSES]
    apart = [abs(a - b) / max(abs(a), 1e-12) if a != b else 0.0 for a, b in pairs]
    return [x if x > 0 and math.isfinite(x) else None for x in apart]


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _label(text: str) -> str:
    return escape(middle(one_line(text), _MAX_NAME_CHARS), quote=False)

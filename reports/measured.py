"""What trials measured of a change, in words."""

from __future__ import annotations

from diagnose.answer.cards import certainty
from diagnose.model.diagnosis import Trial
from diagnose.reports.format import duration
from diagnose.reports.language import tr

__all__ = ["certainty_words", "measured_words"]

_CERTAINTY = {
    "no difference": "no difference",
    "probably faster": "no certain difference, probably faster",
    "probably slower": "no certain difference, probably slower",
    "open": "no certain difference",
}
_LOSSES = {"identical": "losses identical", "within": "losses within noise", "drifted": "losses drifted"}


def certainty_words(trial: Trial) -> str:
    """Return that no difference is certain and in which direction the middle lies, "" where one is certain."""
    words = _CERTAINTY.get(certainty(trial), "")
    return tr(words) if words else ""


def measured_words(trial: Trial, *, alone: bool = False) -> str:
    """Return the measurement of a trial in words: step, speed-up and interval, and what became of the losses.

    ``alone`` names it as that of the change alone, where its prediction is for the step after other changes.
    """
    low, high = trial.interval
    steps = trial.steps_ms
    times = f"{duration(steps[0] * 1e6)} → {duration(steps[1] * 1e6)}, " if steps is not None else ""
    losses = tr(_LOSSES.get(trial.numerics, "losses unknown"))
    span = tr("{low} to {high}", low=f"{low:.2f}", high=f"{high:.2f}")
    facts = ", ".join(filter(None, (f"{times}{trial.speed_up:.2f} × ({span})", certainty_words(trial), losses)))
    return tr("measured alone {times}", times=facts) if alone else tr("measured {times}", times=facts)

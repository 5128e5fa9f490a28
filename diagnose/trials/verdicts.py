"""What becomes of trials: which gains go together, and a line of progress for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diagnose.changes import patch_of
from diagnose.model.diagnosis import Trial
from diagnose.model.statistics import is_even
from diagnose.model.trial_methods import NOTHING_CERTAIN

__all__ = ["sentence", "together", "undecided"]


def undecided(trial: Trial) -> Trial:
    """Return the trial with an interval that includes no difference."""
    low, high = trial.interval
    return replace(trial, interval=(min(low, 1.0), max(high, 1.0)))


def together(ids: Sequence[str]) -> tuple[str, ...]:
    """Leave out what changes the same thing as one before it."""
    groups = [patch.group if (patch := patch_of(name)) is not None else "" for name in ids]
    return tuple(name for i, name in enumerate(ids) if not groups[i] or groups[i] not in groups[:i])


def sentence(trial: Trial) -> str:
    """Return what became of a trial, for a line of progress."""
    if trial.failure:
        return f"{trial.id}: {trial.failure}"
    low, high = trial.interval
    even = (
        "no difference"
        if is_even(trial.interval) and NOTHING_CERTAIN not in trial.note
        else "no difference that is certain"
    )
    sure = "faster" if low > 1 else "slower" if high < 1 else even
    without = "without " if trial.kind == "without" else ""
    return f"{without}{trial.id}: {trial.speed_up:.2f} x ({low:.2f} to {high:.2f}), {sure}; losses {trial.numerics}"

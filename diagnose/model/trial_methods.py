"""How a trial makes a change, and the words for it: the same on a change's page, in a report and in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Trial

__all__ = ["HOW_TRIED", "NOTHING_CERTAIN", "TrialMethod", "shows_no_difference"]

NOTHING_CERTAIN = "so nothing is certain"
"""What the note of a trial has whose runs cannot be compared with how far equal runs differ."""

TrialMethod: TypeAlias = Literal["patch", "edited copy", "by hand"]
"""How a trial makes a change: from outside, in the text of the script that it runs, or not at all."""

HOW_TRIED: Mapping[TrialMethod, str] = {
    "patch": "prove applies it to the unmodified script",
    "edited copy": "prove makes it in the text of a copy of the script",
    "by hand": "Made by hand",
}


def shows_no_difference(trial: Trial) -> bool:
    """Return whether the runs show that the change makes no difference worth having."""
    from diagnose.model.statistics import is_even  # with numpy, which the process of a trial is not to import

    return is_even(trial.interval) and NOTHING_CERTAIN not in trial.note

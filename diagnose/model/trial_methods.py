"""How a trial makes a change, and the words for it: the same on a change's page, in a report and in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Trial

__all__ = ["HOW_TRIED", "Doubt", "TrialMethod", "shows_no_difference"]

Doubt: TypeAlias = Literal["", "noise not known", "measured once", "not repeated"]
"""Why the result of a trial may be chance: too few runs to know how far equal runs differ, or to see it twice."""

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

    return is_even(trial.interval) and trial.doubt != "noise not known"

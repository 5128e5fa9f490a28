"""Of what a cost is stated: of the step, where steps were found, else of the recording; and in how many steps it is."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Floats, Ints, Mask
from diagnose.tables import Tables

__all__ = ["in_steps", "in_those", "lost_by_step", "of_recording", "of_whole", "steps_with"]

MIN_OF_MEAN = 0.5  # of what the mean step loses: a step with less is one of those without it

_EACH = r"(?<! of) a step\b"


def of_whole(t: Tables) -> str:
    """Return the words that follow a time of the mean step."""
    return "of the step" if t.steps.marked else "of the recording"


def lost_by_step(t: Tables, start: Ints, lost: Ints) -> Floats:
    """Return what each step loses, ns, given where the losses begin, in time order, and how much each is."""
    step = np.searchsorted(t.steps.start, start, side="right") - 1
    found: Floats = np.bincount(np.maximum(step, 0), lost.astype(np.float64), minlength=t.steps.num).astype(np.float64)
    return found


def steps_with(by_step: Floats) -> Mask:
    """Return which steps have it: at least half of what the mean step loses."""
    found: Mask = (by_step > 0) & (by_step >= MIN_OF_MEAN * by_step.mean()) if len(by_step) else by_step > 0
    return found


def in_steps(t: Tables, start: Ints, lost: Ints) -> str:
    """Return in how many of the steps something is, as words of a title; "in the recording" if it has no steps."""
    if not t.steps.marked:
        return "in the recording"
    return in_those(int(steps_with(lost_by_step(t, start, lost)).sum()), t.steps.num)


def in_those(num: int, num_all: int) -> str:
    """Return the words of a title for ``num`` of so many steps."""
    if num_all == 1:
        return "in the recorded step"
    return f"in each of {num_all} steps" if num == num_all else f"in {num} of {num_all} steps"


def of_recording(evidence: tuple[str, ...]) -> tuple[str, ...]:
    """Return evidence of a recording without steps: what it counts is of the whole."""
    return tuple(re.sub(_EACH, " in all", text) for text in evidence)

"""What each step of the run goes into."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diagnose.model.arrays import Ints, Mask
from diagnose.model.capture import RunSteps
from diagnose.model.limits import MIN_REGIONS

__all__ = ["PHASES", "phase_steps"]

PHASES = ("training", "loading", "evaluation", "rollout", "inference", "checkpoint", "other")
"""What a step's time goes into; the first is what is left, and is inference where nothing is trained."""


def phase_steps(run: RunSteps) -> Mapping[str, Ints]:
    """Return ns per step and phase; they sum to the time of the step."""
    trains = bool(run.phase("backwards").any())
    parts = {name: run.phase(name) for name in PHASES[1:]}
    few = _few_more(run)
    parts["inference"] = parts["inference"] + np.where(few, parts["rollout"], 0)
    parts["rollout"] = np.where(few, 0, parts["rollout"])
    if not trains:  # without gradients all the time: nothing there is beside the model
        zero = np.zeros(run.num, np.int64)
        parts |= dict.fromkeys(("evaluation", "rollout", "inference", "other"), zero)
    rest = np.maximum(run.took_ns - sum(parts.values(), np.zeros(run.num, np.int64)), 0)
    if trains:
        return {"training": rest, **parts}
    return {**parts, "training": np.zeros(run.num, np.int64), "inference": rest}


def _few_more(run: RunSteps) -> Mask:
    """Return which steps have gradients off hardly more often than those without a rollout: these evaluate.

    A target network or an attack, which each step has, is no part of a rollout. With batches nothing is known of it.
    """
    work, others = run.phase("work"), run.phase("rollout") == 0
    usual = np.median(work[others]) if others.any() else 0
    few: Mask = (run.phase("loading") == 0) & (work > 0) & (work - usual < MIN_REGIONS)
    return few

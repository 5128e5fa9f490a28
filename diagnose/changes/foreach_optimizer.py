"""Use the foreach implementation of the optimizer.

What it does
    Updates all tensors with a few launches for each operation. It spares launches, not passes over memory.

What to watch
    For classes without a fused implementation. It needs memory for intermediate results of all tensors at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, Change, Patch, SetArguments
from diagnose.changes.common.optimizers import (
    FOREACH_CLASSES,
    FUSED_CLASSES,
    NUMERICS,
    implementation,
    merged_updates,
    optimizer_of,
)
from diagnose.changes.patches import optimizers

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

LAUNCHES = (40, 12)  # that a step of the optimizer makes, at most and at least
FEWER_PASSES = (0.0, 0.0)  # share of the passes over memory that is spared
ON_DEVICE, ON_CPU = (0.5, 1.0), (0.0, 0.3)  # of the loop's cost, what goes at least and at most


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    name = optimizer_of(finding)
    if name in FUSED_CLASSES or name not in FOREACH_CLASSES:  # a class of torch's own, whose argument it is
        return None
    return implementation("foreach", finding, ON_DEVICE, ON_CPU)


def _effect(t: Tables, finding: Finding) -> Effect | None:
    return merged_updates(t, finding, LAUNCHES, FEWER_PASSES)


CHANGE = Change(
    id="foreach-optimizer",
    title="Use the foreach implementation of the optimizer",
    numerics=NUMERICS,
    patch=Patch(optimizers.foreach_optimizer, group="optimizer"),
    edit=SetArguments(FOREACH_CLASSES, {"foreach": True}),
    advice=_advice,
    applies=to_training,
    effect=_effect,
    remedy="diagnose.kernels.optimizers",
)

"""Use the fused implementation of the optimizer.

What it does
    Updates all tensors with a few launches, in one pass over parameters, gradients and state; a loop passes over them
    three times or more.

What to watch
    Adam, AdamW, SGD and Adagrad have one, for floating-point parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, Change, Patch, SetArguments
from diagnose.changes.common.optimizers import FUSED_CLASSES, NUMERICS, implementation, merged_updates, optimizer_of
from diagnose.changes.patches import optimizers

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

LAUNCHES = (8, 2)  # that a step of the optimizer makes, at most and at least
FEWER_PASSES = (0.0, 2 / 3)  # share of the passes over memory that is spared
ON_DEVICE, ON_CPU = (0.5, 1.0), (0.4, 0.75)  # of the loop's cost, what goes at least and at most


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    if optimizer_of(finding) not in FUSED_CLASSES:
        return None
    return implementation("fused", finding, ON_DEVICE, ON_CPU)


def _effect(t: Tables, finding: Finding) -> Effect | None:
    return merged_updates(t, finding, LAUNCHES, FEWER_PASSES)


CHANGE = Change(
    id="fused-optimizer",
    title="Use the fused implementation of the optimizer",
    numerics=NUMERICS,
    patch=Patch(optimizers.fused_optimizer, group="optimizer"),
    edit=SetArguments(FUSED_CLASSES, {"fused": True}),
    advice=_advice,
    applies=to_training,
    effect=_effect,
    remedy="diagnose.kernels.optimizers",
)

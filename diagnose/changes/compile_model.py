"""Compile the model.

What it does
    `torch.compile(model)` fuses chains of small operators. Intermediate results then stay in registers.

What to watch
    Compiling takes tens of seconds, and again for each new shape. On a CPU some models get slower, so no saving is
    predicted there. Measure it with `prove`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import (
    COMPILATION,
    compiled_before_capture,
    to_a_model_of_the_script,
    to_calls_of_the_model,
)
from diagnose.changes.common.change import Change, EditLoop, Patch, Proposal, rounding
from diagnose.changes.patches import compiling
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.arrays import Mask, Rows
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

# Without a device: of what small operators cost, what compiling takes away at most, and what a call of the compiled
# model costs, guards and what wraps its forward and backward.
MAX_COMPILED_ON_CPU, COMPILED_CALL_NS = 0.6, 200_000
AFTER = """model.compile()                  # once, after the model is made, if its class is your own
# model = torch.compile(model)   # the same for a class of torch, such as nn.Sequential"""
MIN_FUSED_SHARE = 0.4  # of runs of pointwise kernels: graph breaks and reductions between them part the others


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal | None:
    if finding.facts.get("in_graph"):
        return compiled_before_capture(
            program,
            title="Compile what the CUDA graph captures, so that pointwise nodes become one pass",
            least=MIN_FUSED_SHARE,
            most=1.0,
        )
    if "has_device" not in finding.facts:
        return Proposal(after=AFTER, least=MIN_FUSED_SHARE)
    if finding.facts["has_device"]:
        return None
    return Proposal(
        after=AFTER,
        title="Compile the model so that small operators become few loops",
        most=0.0,  # what only a trial shows
        needs=f"a C++ compiler, and {COMPILATION}",
    )


def _applies(program: Program, finding: Finding) -> bool:
    if finding.facts.get("has_device") is False and MAX_COMPILED_ON_CPU * finding.lost_ns <= COMPILED_CALL_NS:
        return False
    return to_calls_of_the_model(finding) and to_a_model_of_the_script(program, finding)


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of one kernel for each run of pointwise ones, launched once; None for other findings."""
    import numpy as np

    from diagnose.analyzers import unfused_elementwise
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.op_launches import host_time_behind_first

    if finding.rule != unfused_elementwise.META.id or not len(finding.tasks):
        return None
    tasks = finding.tasks[~_called_outside(t, finding.tasks)]
    if not len(tasks):
        return None
    whole = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
    length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
    lost = min(finding.lost_ns * t.steps.num / max(float(whole.sum()), 1.0), 1.0)
    launched = finding.count / len(finding.tasks)
    return effect_of_tasks(
        t,
        finding,
        tasks,
        (MIN_FUSED_SHARE * lost * length, lost * length),
        f"Between {percent(MIN_FUSED_SHARE, 0)} and all of the runs become one kernel each, with one launch.",
        host=host_time_behind_first(
            t, [chain.tasks for chain in t.chains if not _called_outside(t, chain.tasks).any()]
        ),
        host_left=(1 - MIN_FUSED_SHARE, 0.0),
        pauses_left=(1 - MIN_FUSED_SHARE * (1 - launched), launched),
        frees_host=True,
    )


def _called_outside(t: Tables, tasks: Rows) -> Mask:
    """Return which tasks a loop of the script's own launches, which no compiled model holds."""
    import numpy as np

    issuer = t.issuer
    if issuer is None or issuer.in_model:
        return np.zeros(len(tasks), bool)
    found: Mask = t.launched_in(t.issued)[tasks]
    return found


CHANGE = Change(
    id="compile-model",
    title="Compile the model so that pointwise operators become one pass",
    numerics=rounding("fused loops round differently; compare the loss of the first steps"),
    patch=Patch(compiling.compile_model, compiles=True, group="compile"),
    edit=EditLoop("with_compiled_model", "device", "cpu"),
    proposal=_proposal,
    applies=_applies,
    effect=_effect,
    to_try=lambda work: not work.is_compiled,
    remedy="diagnose.kernels.compiling",
)

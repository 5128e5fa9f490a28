"""Compile the model.

What it does
    Lets torch.compile turn runs of small operators into few loops that keep what lies between in registers.

What to watch
    Compiling takes some seconds at the first step, and again for each new shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_a_model_of_the_script
from diagnose.changes.common.change import Advice, ByHand, Change, Patch, rounding
from diagnose.changes.patches import compiling
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

# Of what small operators cost without a device, what compiling takes away, at least and at most: guards, the optimizer
# and what lies outside the model stay, so that a step becomes 1.1 to 2.2 times as fast.
COMPILED_ON_CPU = (0.1, 0.6)
FUSED_AT_LEAST = 0.4  # of runs of pointwise kernels: graph breaks and reductions between them part the others


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    before, after = "model = Model()", "model = torch.compile(Model())"
    if "has_device" not in finding.facts:
        return Advice(before=before, after=after, least=FUSED_AT_LEAST)
    if finding.facts["has_device"]:
        return None
    return Advice(
        before=before,
        after=after,
        title="Compile the model so that small operators become few loops",
        least=COMPILED_ON_CPU[0],
        most=COMPILED_ON_CPU[1],
        needs="a C++ compiler, and a compilation of some seconds at the start",
    )


def _applies(program: Program, finding: Finding) -> str:
    issuer = finding.facts.get("issuer")
    if isinstance(issuer, Mapping) and not issuer.get("in_model"):
        return "the operators are called by the script's own loop, outside the model"
    return to_a_model_of_the_script(program, finding)


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of one kernel for each run of pointwise ones, launched once; None for other findings."""
    import numpy as np

    from diagnose.analyzers.common.chains import chains
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.op_launches import host_time_behind_first

    if finding.rule != "unfused-elementwise" or not len(finding.tasks):
        return None
    length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
    lost = min(finding.lost_ns * t.steps.num / max(float(length.sum()), 1.0), 1.0)
    launched = finding.count / len(finding.tasks)
    return effect_of_tasks(
        t,
        finding,
        finding.tasks,
        (FUSED_AT_LEAST * lost * length, lost * length),
        f"Between {percent(FUSED_AT_LEAST, 0)} and all of the runs become one kernel each, with one launch.",
        host=host_time_behind_first(t, [chain.tasks for chain in chains(t)]),
        host_left=(1 - FUSED_AT_LEAST, 0.0),
        pauses_left=(1 - FUSED_AT_LEAST * (1 - launched), launched),
        frees_host=True,
    )


CHANGE = Change(
    id="compile-model",
    title="Compile the model so that pointwise operators become one pass",
    numerics=rounding("fused loops round differently; compare the loss of the first steps"),
    patch=Patch(compiling.compile_model, compiles=True, group="compile"),
    edit=ByHand("where the model is made only the script's author knows"),
    advice=_advice,
    applies=_applies,
    effect=_effect,
    remedy="diagnose.kernels.compiling",
)

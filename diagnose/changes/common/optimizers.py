"""Another implementation of the optimizer: advice, and what it does to the recorded steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, Change, Patch, SetArguments, rounding
from diagnose.changes.common.patching import Install

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

__all__ = ["FOREACH_CLASSES", "FUSED_CLASSES", "Implementation", "change_to"]

FUSED_CLASSES = ("Adam", "AdamW", "SGD", "Adagrad")  # those with a fused implementation
FOREACH_CLASSES = (*FUSED_CLASSES, "RMSprop", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """An implementation of torch's optimizers; ranges are what holds at least and at most where it replaces a loop."""

    flag: str  # the argument that selects it
    classes: tuple[str, ...]  # that have it
    advised_for: Callable[[str], bool]  # classes for which no better one is there
    launches: tuple[int, int]  # that a step of the optimizer makes, where least and where most is saved
    fewer_passes: tuple[float, float]  # share of the passes over memory that is spared
    on_device: tuple[float, float]  # of the loop's cost, what goes
    on_cpu: tuple[float, float]  # the operators do the arithmetic themselves there, and that stays


def change_to(chosen: Implementation, install: Install) -> Change:
    """Return the change to an implementation, which ``install`` makes in a trial."""

    def advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
        name = str(finding.facts.get("name", "AdamW"))
        return _advice(chosen, name, finding) if chosen.advised_for(name) else None

    def effect(t: Tables, finding: Finding) -> Effect | None:
        return _merged_updates(t, finding, chosen.launches, chosen.fewer_passes)

    return Change(
        id=f"{chosen.flag}-optimizer",
        title=f"Use the {chosen.flag} implementation of the optimizer",
        numerics=rounding("the order of roundings differs; the same to about 1e-6 after a step"),
        patch=Patch(install, group="optimizer"),
        edit=SetArguments(chosen.classes, {chosen.flag: True}),
        advice=advice,
        applies=to_training,
        effect=effect,
        remedy="diagnose.kernels.optimizers",
    )


def _advice(chosen: Implementation, name: str, finding: Finding) -> Advice:
    least, most = chosen.on_device if finding.facts.get("has_device") else chosen.on_cpu
    return Advice(
        title=f"Use the {chosen.flag} implementation of {name}",
        before=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr)",
        after=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr, {chosen.flag}=True)",
        least=least,
        most=most,
        needs="floating-point parameters on one device type",
    )


def _merged_updates(
    t: Tables, finding: Finding, launches: tuple[int, int], fewer_passes: tuple[float, float]
) -> Effect | None:
    """Return the effect of updating all tensors with few launches.

    Args:
        t: the recorded steps.
        finding: it holds how many launches a step of the optimizer makes today.
        launches: that are left, where least and where most is saved.
        fewer_passes: share of the passes over memory that is spared, at least and at most.
    """
    import numpy as np

    from diagnose.model.intervals import covered, intersect, span, total
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.optimizer_spans import updates

    host = intersect(updates(t), span(*t.steps.window))
    today = finding.facts.get("launches")
    if not total(host) or not isinstance(today, int | float) or today <= 0:
        return None
    begun = t.trace.events.start[t.tasks.launch]
    tasks = np.flatnonzero((t.tasks.launch >= 0) & (covered(host, begun, begun + 1) > 0))
    length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
    start_up = float(length.min()) if len(length) else 0.0
    stays = [min(1.0, kept / today) for kept in launches]
    spared = [
        start_up * (1 - stay) + (length - start_up) * fewer for stay, fewer in zip(stays, fewer_passes, strict=True)
    ]
    assumption = f"{launches[1]} to {launches[0]} launches update all tensors instead of {today:.0f}" + (
        ", in one pass over memory instead of three or more." if fewer_passes[1] else "."
    )
    return effect_of_tasks(
        t,
        finding,
        tasks,
        (spared[0], spared[1]),
        assumption,
        host=host,
        host_left=(stays[0], stays[1]),
        frees_host=True,
    )

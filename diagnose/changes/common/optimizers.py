"""Another implementation of the optimizer: advice, and what it does to the recorded steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables

__all__ = ["FOREACH_CLASSES", "FUSED_CLASSES", "NUMERICS", "implementation", "merged_updates", "optimizer_of"]

FUSED_CLASSES = ("Adam", "AdamW", "SGD", "Adagrad")  # those with a fused implementation
FOREACH_CLASSES = (*FUSED_CLASSES, "RMSprop", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD")
NUMERICS = rounding("the order of roundings differs; the same to about 1e-6 after a step")


def optimizer_of(finding: Finding) -> str:
    """Return the name of the optimizer's class."""
    return str(finding.facts.get("name", "AdamW"))


def implementation(flag: str, finding: Finding, on_device: tuple[float, float], on_cpu: tuple[float, float]) -> Advice:
    """Return the advice to use an implementation; the ranges are what it takes away of the loop's cost.

    On a CPU the operators do the arithmetic themselves, and that stays.
    """
    name = optimizer_of(finding)
    least, most = on_device if finding.facts.get("has_device") else on_cpu
    return Advice(
        title=f"Use the {flag} implementation of {name}",
        before=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr)",
        after=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr, {flag}=True)",
        least=least,
        most=most,
        needs="floating-point parameters on one device type",
    )


def merged_updates(
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
        pauses_left=(stays[0], stays[1]),
        frees_host=True,
    )

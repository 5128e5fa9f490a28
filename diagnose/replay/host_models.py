"""What prescriptions for a host that is too slow do: captured graphs, and an optimizer of few launches."""

from __future__ import annotations

import numpy as np

from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, covered, intersect, span, subtract, total, union
from diagnose.replay.effects import Effect, of_tasks
from diagnose.tables import Tables
from diagnose.tables.names import LOADER_NEXT
from diagnose.tables.optimizer_spans import updates

__all__ = ["captured_as_graphs", "merged_updates"]

# What the host does per step to replay a forward and a backward graph, guards and input copies included; at least of
# the operators stays where a graph break or unsteady shapes keep them out of the graphs.
GRAPHED_NS = (500_000, 100_000)
UNCAPTURED = (0.5, 0.0)
# Launches that a step of the optimizer makes once its tensors are updated together, at most and at least.
MERGED = {"fused-optimizer": (8, 2), "foreach-optimizer": (40, 12)}
# A fused update passes over parameters, gradients and state once, a loop three times or more.
FEWER_PASSES = {"fused-optimizer": (0.0, 2 / 3), "foreach-optimizer": (0.0, 0.0)}


def captured_as_graphs(t: Tables, finding: Finding, _identity: str) -> Effect | None:
    """Return the effect of replaying the launches of forward and backward as graphs.

    All operators' host time shrinks, not only what the device waits for: the host then runs ahead. The optimizer's
    step and loading stay.
    """
    loading = t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    rows = t.causes.of(finding.rule)
    named = Intervals(t.causes.start[rows], t.causes.end[rows])
    host = intersect(subtract(subtract(union(t.in_ops, named), loading), updates(t)), span(*t.steps.window))
    each = total(host) / t.steps.num
    if each <= 0:
        return None
    stays = [min(1.0, max(share, fixed / each)) for share, fixed in zip(UNCAPTURED, GRAPHED_NS, strict=True)]
    told = (
        f"Of {each / 1e6:.2f} ms a step in operators outside loading and the optimizer, {stays[1]:.0%} to "
        f"{stays[0]:.0%} stay as launches of graphs and operators that no graph holds."
    )
    none = np.empty(0, np.intp)
    return of_tasks(t, finding, none, (np.empty(0), np.empty(0)), told, host=host, left=(stays[0], stays[1]))


def merged_updates(t: Tables, finding: Finding, identity: str) -> Effect | None:
    """Return the effect of updating all tensors with few launches."""
    host = intersect(updates(t), span(*t.steps.window))
    launches = finding.facts.get("launches")
    if not total(host) or not isinstance(launches, int | float) or launches <= 0:
        return None
    begun = t.trace.events.start[t.tasks.launch]
    tasks = np.flatnonzero((t.tasks.launch >= 0) & (covered(host, begun, begun + 1) > 0))
    length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
    start_up = float(length.min()) if len(length) else 0.0
    stays = [min(1.0, kept / launches) for kept in MERGED[identity]]
    spared = [
        start_up * (1 - stay) + (length - start_up) * fewer
        for stay, fewer in zip(stays, FEWER_PASSES[identity], strict=True)
    ]
    told = f"{MERGED[identity][1]} to {MERGED[identity][0]} launches update all tensors instead of {launches:.0f}" + (
        ", in one pass over memory instead of three or more." if FEWER_PASSES[identity][1] else "."
    )
    return of_tasks(t, finding, tasks, (spared[0], spared[1]), told, host=host, left=(stays[0], stays[1]))

"""Loops: one line that runs the same operators again and again, and whether its calls depend on each other.

Calls that follow from each other through different weights are the layers of a model, and no loop. A line that runs the
backward pass between its calls accumulates gradients or takes several steps. Both are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diagnose.dataflow.graph import Graph, Work
from diagnose.model.dataflow import Frame

__all__ = ["Loop", "loops"]

MIN_CALLS = 4
MAX_INDEPENDENT = 0.25  # longest chain, of the calls: experts in each of several layers are independent
MIN_RECURRENT = 0.75  # the same: the first call of a recurrence often has no state to read
MIN_LOOPED = 0.8  # of a line's time, by operators that it calls often enough

Site: TypeAlias = tuple[Frame, ...]  # a line and its callers


@dataclass(frozen=True, slots=True)
class Loop:
    """A line that calls the same operators several times, those of the backward pass included."""

    kind: Literal["independent", "recurrence"]
    work: Work
    line: Frame
    num_calls: int
    longest_chain: int  # of calls, each of which needs the one before
    same_shapes: bool  # of all calls: they can be stacked
    same_weights: bool  # otherwise their weights have to be stacked too
    overhead_share: float  # what calling operators costs at least, of the step: what fewer calls would save


def loops(graph: Graph) -> tuple[Loop, ...]:
    """Return the loops of the last step, the longest first; of nested ones the outermost."""
    sites: dict[Site, list[int]] = defaultdict(list)
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if graph.computes(i) and one.phase != "optimizer":
            for level in range(len(one.stack)):
                sites[one.stack[level:]].append(i)
    found: dict[Site, Loop] = {}
    cheapest = _cheapest_ns(graph)
    for site in sorted(sites, key=len):
        if any(site[level:] in found for level in range(len(site))):
            continue
        loop = _loop(graph, site, sites[site], cheapest)
        if loop is not None:
            found[site] = loop
    return tuple(sorted(found.values(), key=lambda one: -one.work.share))


def _loop(graph: Graph, site: Site, rows: list[int], cheapest: float) -> Loop | None:
    forward = [i for i in rows if graph.operators[i].phase != "backward"]
    calls: dict[tuple[str, Site], list[int]] = defaultdict(list)
    for i in forward:
        calls[graph.operators[i].name, graph.operators[i].stack].append(i)
    often = [members for members in calls.values() if len(members) >= MIN_CALLS]
    if graph.time(i for members in often for i in members) < MIN_LOOPED * graph.time(forward) or not often:
        return None
    members = max(often, key=graph.time)
    if any(graph.operators[i].phase == "backward" for i in range(members[0], members[-1])):
        return None
    num, chain = len(members), _longest_chain(graph, members)
    num_each = Counter(_identity(graph, i) for i in members).most_common(1)[0][1]
    kind: Literal["independent", "recurrence"] = "independent"
    if chain > MAX_INDEPENDENT * num:
        if num_each < MIN_CALLS or chain < MIN_RECURRENT * num_each:
            return None
        kind = "recurrence"
    return Loop(
        kind=kind,
        work=graph.work(rows),
        line=site[0],
        num_calls=num,
        longest_chain=chain,
        same_shapes=len({tuple(use.shape for use in graph.operators[i].reads) for i in members}) == 1,
        same_weights=num_each == num,
        overhead_share=len(rows) * (1 - 1 / num) * cheapest / max(graph.step_ns[graph.last_step], 1),
    )


def _longest_chain(graph: Graph, members: Sequence[int]) -> int:
    """Return how many of some operators follow from each other at most."""
    counted, depth = set(members), dict[int, int]()
    for i in range(members[0], members[-1] + 1):
        before = (depth.get(graph.values[value].producer, 0) for value in graph.needs[i])
        depth[i] = max(before, default=0) + (i in counted)
    return max(depth.values())


def _identity(graph: Graph, i: int) -> tuple[str, tuple[int, ...]]:
    """Return what the calls of one layer have in common: its name, and the parameters that it reads."""
    one = graph.operators[i]
    return one.module, tuple(use.value for use in one.reads if graph.values[use.value].role == "parameter")


def _cheapest_ns(graph: Graph) -> float:
    """Return what an operator takes that has next to nothing to do: the time that a tenth of them stay below."""
    times = sorted(graph.operators[i].host_ns for i in graph.of_step(graph.last_step) if graph.computes(i))
    return times[len(times) // 10] if times else 0.0

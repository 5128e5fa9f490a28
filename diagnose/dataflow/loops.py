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

__all__ = ["Loop", "cheapest_ns", "loops"]

MIN_CALLS = 4
MAX_INDEPENDENT = 0.25  # longest chain, of the calls: experts in each of several layers are independent
MIN_RECURRENT = 0.75  # the same: the first call of a recurrence often has no state to read
MIN_LOOPED = 0.9  # of what runs below a line, and of its time: operators that run as often as the line does

Site: TypeAlias = tuple[Frame, ...]  # a line and its callers


@dataclass(frozen=True, slots=True)
class Loop:
    """Lines of one function that run the same operators equally often, those of the backward pass included."""

    kind: Literal["independent", "recurrence"]
    work: Work
    line: Frame  # the first one in the body
    num_calls: int
    longest_chain: int  # of calls, each of which needs the one before
    same_shapes: bool  # of all calls: they can be stacked
    same_weights: bool  # otherwise their weights have to be stacked too
    overhead_share: float  # what calling operators costs at least, of the step: what fewer calls would save


def loops(graph: Graph) -> tuple[Loop, ...]:
    """Return the loops of the last step, the longest first."""
    sites: dict[Site, list[int]] = defaultdict(list)
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if graph.computes(i) and one.phase != "optimizer":
            for level in range(len(one.stack)):
                sites[one.stack[level:]].append(i)
    bodies: dict[tuple[str, Site, int], list[Site]] = defaultdict(list)
    counts = {site: _num_calls(graph, rows) for site, rows in sites.items()}
    for site, num in counts.items():
        if num >= MIN_CALLS and counts.get(site[1:], 0) < MIN_CALLS:
            bodies[site[0].function, site[1:], num].append(site)
    cheapest = cheapest_ns(graph)
    found = (
        _loop(graph, num, body, [i for site in body for i in sites[site]], cheapest)
        for (_, _, num), body in bodies.items()
    )
    return tuple(sorted((one for one in found if one is not None), key=lambda one: -one.work.share))


def _calls(graph: Graph, rows: list[int]) -> list[list[int]]:
    """Return the forward operators of each name and stack, in the order of their time."""
    calls: dict[tuple[str, Site], list[int]] = defaultdict(list)
    for i in rows:
        if graph.operators[i].phase != "backward":
            calls[graph.operators[i].name, graph.operators[i].stack].append(i)
    return sorted(calls.values(), key=graph.time, reverse=True)


def _num_calls(graph: Graph, rows: list[int]) -> int:
    """Return how often a line runs nearly all that it runs, 0 if a part of it runs more rarely."""
    calls = _calls(graph, rows)
    num = max(Counter(map(len, calls)).items(), key=lambda item: (item[1], -item[0]))[0] if calls else 0
    often = [each for each in calls if 2 * len(each) >= num]
    is_most = len(often) >= MIN_LOOPED * len(calls)
    return num if is_most and sum(map(graph.time, often)) >= MIN_LOOPED * sum(map(graph.time, calls)) else 0


def _loop(graph: Graph, num: int, body: list[Site], rows: list[int], cheapest: float) -> Loop | None:
    calls = [each for each in _calls(graph, rows) if 2 * len(each) >= num]
    members = next(each for each in calls if len(each) == num)
    if any(graph.operators[i].phase == "backward" for i in range(members[0], members[-1])):
        return None
    chain = max(num * _longest_chain(graph, each) // len(each) for each in calls)
    layer, num_each = Counter(_identity(graph, i) for i in members).most_common(1)[0]
    kind: Literal["independent", "recurrence"] = "independent"
    if chain > MAX_INDEPENDENT * num:
        same = [i for i in members if _identity(graph, i) == layer]
        if num_each < MIN_CALLS or _longest_chain(graph, same) < MIN_RECURRENT * num_each:
            return None
        kind = "recurrence"
    return Loop(
        kind=kind,
        work=graph.work(rows),
        line=min((site[0] for site in body), key=lambda frame: frame.line),
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


def cheapest_ns(graph: Graph) -> float:
    """Return what an operator takes that has next to nothing to do: the time that a tenth of them stay below."""
    times = sorted(graph.operators[i].host_ns for i in graph.of_step(graph.last_step) if graph.computes(i))
    return times[len(times) // 10] if times else 0.0

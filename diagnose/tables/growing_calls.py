"""Calls of a model over 64, 65, 66 … positions: each token is made from the whole of what came before it.

A layer's product has the same weights in each call and an input that is longer by the same each time. With keys and
values kept, an input has the new positions alone; what grows is attention, which has no weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Ints, Rows
from diagnose.model.intervals import Intervals
from diagnose.model.limits import CALL_NS, FEWEST
from diagnose.model.shapes import Shape
from diagnose.tables import Tables
from diagnose.tables.names import JOINS, shapes_of_each

MIN_CALLS_OVER_STEPS = 8  # where a step is a call: batches that are sorted by length grow too
# Where each operator has its input among its arguments; the others are weights.
_INPUT = {
    "aten::linear": 0,
    "aten::addmm": 1,
    "aten::mm": 0,
    "aten::matmul": 0,
    "aten::embedding": 1,
    "aten::conv1d": 0,
}


class GrowingCalls(NamedTuple):
    """What calls compute again of the positions that an earlier call had; figures are for a step."""

    rows: Rows  # operators of the timing window
    spare: Floats  # of each operator's time, the share that is computed again
    host: Intervals  # that share of the operators, at their ends
    first: int  # positions of the shortest call
    last: int
    by: int
    num: float  # calls


class _Chain(NamedTuple):
    """A product that is called over and over with an input that grows."""

    starts: tuple[int, ...]  # index of the first operator of each call
    sizes: tuple[int, ...]  # of the input, along the side that grows
    by: int


class _Run(NamedTuple):
    """Calls of one product with inputs of one shape, one after the other."""

    shape: Shape
    at: list[int]  # indices of operators


def growing_calls(t: Tables) -> GrowingCalls | None:
    """Return what is computed again in calls that grow, None where there are none."""
    spared, chains = _spared(t.named)
    if not chains:
        return None
    rows, spare = [np.empty(0, np.intp)], [np.empty(0)]
    for step in t.matched_steps:
        share = np.array([spared.get(row, 0.0) for row in step.named.tolist()])
        rows.append(step.rows[share > 0])
        spare.append(share[share > 0])
    all_rows, all_spare = np.concatenate(rows), np.concatenate(spare)
    if not len(all_rows):
        return None
    end = t.trace.events.end[all_rows]
    # Of an operator's time that does not depend on its size: 5 to 10 µs on most hosts.
    long = np.maximum(end - t.trace.events.start[all_rows] - CALL_NS, 0)
    again: Ints = (long * all_spare).astype(np.int64)
    first = min(chains, key=lambda chain: chain.sizes[0])
    return GrowingCalls(
        rows=all_rows,
        spare=all_spare,
        host=Intervals(end - again, end),
        first=first.sizes[0],
        last=first.sizes[-1],
        by=first.by,
        num=sum(len(chain.sizes) for chain in chains) / t.named.steps.num,
    )


def tasks_of(t: Tables, found: GrowingCalls) -> tuple[Rows, Floats]:
    """Return the tasks that these operators launched, and the share of each that is computed again."""
    order = np.argsort(t.trace.events.start[found.rows], kind="stable")
    rows, spare = found.rows[order], found.spare[order]
    launch = t.tasks.launch
    called = t.trace.events.start[np.maximum(launch, 0)]
    i = np.searchsorted(t.trace.events.start[rows], called, side="right") - 1
    at = np.maximum(i, 0)
    inside = (launch >= 0) & (i >= 0) & (called < t.trace.events.end[rows[at]])
    tasks: Rows = np.flatnonzero(inside)
    return tasks, spare[at[tasks]]


def _spared(t: Tables) -> tuple[dict[int, float], list[_Chain]]:
    """Return for each operator of calls that grow the share that it computes again, and the longest chains."""
    steps = t.outermost_by_step
    trains = t.program.trains is not False
    if not trains and steps:
        steps = [np.concatenate(steps)]
    spared: dict[int, float] = {}
    kept = []
    for rows in steps:
        shapes = shapes_of_each(t.trace, rows)
        chains = list(_chains(t, rows, shapes))
        if not trains:
            chains = [chain for chain in chains if _is_joined(t, rows, shapes, chain)]
        if not chains:
            continue
        # The outermost: the first operator of a call is a lookup or a product of the tokens themselves.
        longest = max(chains, key=lambda chain: (len(chain.sizes), -chain.starts[0]))
        kept.append(longest)
        spared.update(_of_call(rows, shapes, chains, longest))
    return spared, kept


def _of_call(
    rows: Rows, shapes: list[tuple[Shape, ...]], chains: list[_Chain], longest: _Chain
) -> Iterator[tuple[int, float]]:
    """Yield the operators of each call but the first that have an input of a length which grows, with their share."""
    ends = [*longest.starts[1:], 2 * longest.starts[-1] - longest.starts[-2]]
    for i in range(1, len(longest.sizes)):
        lengths = {chain.sizes[i] for chain in chains if len(chain.sizes) == len(longest.sizes)}
        share = 1 - longest.by / longest.sizes[i]
        for at in range(longest.starts[i], min(ends[i], len(rows))):
            if any(length in shape for shape in shapes[at] for length in lengths):
                yield int(rows[at]), share


def _chains(t: Tables, rows: Rows, shapes: list[tuple[Shape, ...]]) -> Iterator[_Chain]:
    """Yield the products of a step whose input grows from call to call, by the same each time."""
    runs: dict[object, list[_Run]] = {}
    names = t.trace.names
    for i, name in enumerate(t.trace.events.name[rows].tolist()):
        at = _INPUT.get(names[name])
        given = shapes[i]
        if at is None or len(given) <= at or not given[at]:
            continue
        weights = tuple(shape for n, shape in enumerate(given) if n != at)
        each = runs.setdefault((name, weights, len(given[at])), [])
        if each and each[-1].shape == given[at]:
            each[-1].at.append(i)
        else:
            each.append(_Run(given[at], [i]))
    for each in runs.values():
        yield from _growing(each)


def _growing(runs: list[_Run]) -> Iterator[_Chain]:
    begin = 0
    while begin + FEWEST <= len(runs):
        grown = _difference(runs[begin].shape, runs[begin + 1].shape)
        end = begin + 1
        while end < len(runs) and grown and _difference(runs[end - 1].shape, runs[end].shape) == grown:
            end += 1
        part = runs[begin:end]
        # A longer last run has the training's own call, of the same length as the last token's.
        if grown and len(part) >= FEWEST and all(len(run.at) == len(part[0].at) for run in part[:-1]):
            side, by = grown
            yield _Chain(tuple(run.at[0] for run in part), tuple(run.shape[side] for run in part), by)
        begin = max(end - 1, begin + 1)


def _difference(one: Shape, other: Shape) -> tuple[int, int] | None:
    """Return the one side along which the other shape is longer, and by how much; None where it is anything else."""
    changed = [(side, b - a) for side, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    return changed[0] if len(changed) == 1 and changed[0][1] > 0 else None


def _is_joined(t: Tables, rows: Rows, shapes: list[tuple[Shape, ...]], chain: _Chain) -> bool:
    """Return whether the next input is made of the one before and what the call gave, in most calls."""
    if len(chain.sizes) < MIN_CALLS_OVER_STEPS:
        return False
    joins = {
        (side, piece)
        for row, given in zip(rows.tolist(), shapes, strict=True)
        if JOINS.match(t.name(row)) and len(given) > 1 and len(given[0]) == len(given[1])
        for side, piece in zip(given[0], given[1], strict=True)
    }
    return sum((size, chain.by) in joins for size in chain.sizes) >= len(chain.sizes) / 2

"""Backward passes that go on after the last gradient which the optimizer's next step uses.

Of two models with an optimizer each, a loss of the one may lead through the other: its gradients are accumulated, and
cleared before that one's own pass. Of a model of which an optimizer has a part alone, nobody uses the others. Engines
compute the gradients of what ran last first, so what nobody uses is the end of the pass.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import Intervals, distinct, union
from diagnose.tables import Tables, host_table
from diagnose.tables.backward_passes import gradients
from diagnose.tables.host import host_rows
from diagnose.tables.names import BACKWARD, ZERO_GRAD, matching
from diagnose.text.patterns import lazy_pattern

__all__ = ["DiscardedGradients", "discarded_gradients"]

MIN_DISCARDED = 2  # gradients of a pass
MIN_STEPS = 0.5  # of the steps
_GRADIENT = lazy_pattern(r"^torch::autograd::AccumulateGrad$")
_CLEARS = lazy_pattern(r"^aten::(_foreach_)?zero_$")
_CLEARS_FRAME = lazy_pattern(r"\(\d+\): zero_grad$")

Shape: TypeAlias = tuple[int, ...]


class DiscardedGradients(NamedTuple):
    """What is computed for nothing; figures are for a step."""

    host: Intervals  # the ends of backward passes
    num: float  # gradients that are cleared without being used
    used: float  # gradients of the same passes that are
    is_frozen: bool  # no optimizer updates them at all


class _Pass(NamedTuple):
    gradients: Rows  # of the engine's functions that accumulate one, in time order
    step: int  # of the optimizer behind it, among all calls


@host_table
def discarded_gradients(t: Tables) -> DiscardedGradients | None:
    """Return the ends of passes that lead to gradients which are cleared unused; None where there are none."""
    kept = _kept(t.named)
    if not kept:
        return None
    ends, unused, used = [], 0, 0
    functions = matching(t.trace, (Kind.OP, Kind.ANNOTATION), BACKWARD)
    starts, events = t.trace.events.start[functions], t.trace.events
    for passes in _passes(t):
        for i, one in enumerate(passes):
            num = kept.get((len(passes), i, len(one.gradients)))
            if not num:
                continue
            thread = events.thread[one.gradients[-1]]
            mine = functions[(starts > events.start[one.gradients[num - 1]]) & (events.thread[functions] == thread)]
            mine = mine[events.start[mine] <= events.start[one.gradients[-1]]]
            ends.append((events.end[one.gradients[num - 1]], events.end[mine].max()))
            unused, used = unused + len(one.gradients) - num, used + num
    if not ends:
        return None
    begin, end = np.array(ends, np.int64).T
    host = union((begin, end))
    return DiscardedGradients(host, unused / t.steps.num, used / t.steps.num, all(num == 1 for num, _, _ in kept))


def _kept(t: Tables) -> dict[tuple[int, int, int], int]:
    """Return how many gradients of a pass are used, by the number of passes, its place among them and its length."""
    found = Counter[tuple[int, int, int, int]]()
    every = _passes(t)
    if len({len(passes) for passes in every}) > 1:  # of several optimizers some step now and then
        every = [passes for passes in every if len(passes) >= 2]
    for passes in every:
        shapes = [_shapes(t, one.gradients) for one in passes]
        steps = [_updated(t, one.step) for one in passes]
        for i, one in enumerate(passes):
            num = _num_used(t, passes, shapes, steps, i)
            if num:
                found[len(passes), i, len(one.gradients), num] += 1
    least = MIN_STEPS * max(len(every), 1)
    return {(passes, i, length): num for (passes, i, length, num), seen in found.items() if seen >= least}


def _num_used(
    t: Tables, passes: list[_Pass], shapes: list[list[Shape]], steps: list[list[Counter[Shape]]], i: int
) -> int:
    """Return how many gradients of a pass its optimizer uses, 0 where it may be all of them."""
    mine = Counter(shapes[i])
    fitting = [updated for updated in steps[i] if updated and updated <= mine]
    if not fitting or not shapes[i]:
        return 0
    updated = max(fitting, key=lambda each: each.total())
    left = mine - updated
    num = updated.total()
    if left.total() < MIN_DISCARDED or Counter(shapes[i][num:]) != left:
        return 0
    if len(passes) == 1:  # of a frozen part whose parameters still ask for gradients
        return num
    for j in range(i + 1, len(passes)):
        if left <= Counter(shapes[j]) and any(left <= other for other in steps[j]):
            return num if _is_cleared(t, passes[i], passes[j]) else 0
    return 0


def _is_cleared(t: Tables, before: _Pass, after: _Pass) -> bool:
    """Return whether gradients are cleared between two passes."""
    begin, end = t.trace.events.end[before.gradients[-1]], t.trace.events.start[after.gradients[0]]
    marks = t.calls(ZERO_GRAD, Kind.ANNOTATION, Kind.OP), t.calls(_CLEARS, Kind.OP), t.calls(_CLEARS_FRAME, Kind.PYTHON)
    return any(
        bool(((t.trace.events.start[rows] > begin) & (t.trace.events.start[rows] < end)).any()) for rows in marks
    )


def _passes(t: Tables) -> list[list[_Pass]]:
    """Return each step's backward passes that an optimizer's call follows; of several that add up, the last."""
    every = gradients(t)
    if every is None:
        return []
    step = np.searchsorted(t.steps.start, t.trace.events.start[every.rows], side="right") - 1
    found: list[list[_Pass]] = [[] for _ in range(t.steps.num)]
    for update in distinct(every.update).tolist():
        mine = every.update == update
        rows, part = every.rows[mine], every.part[mine]
        found[int(step[mine][0])].append(_Pass(rows[part == part[-1]], int(every.updates[update])))
    return [passes for passes in found if passes]


def _shapes(t: Tables, functions: Rows) -> list[Shape]:
    """Return the shapes of gradients, of the operator in each function; [] where they were not recorded."""
    events = t.trace.events
    rows = t.cached("gradients", lambda: matching(t.trace, (Kind.OP,), _GRADIENT))
    at = np.searchsorted(events.start[rows], events.start[functions])
    inside = at < len(rows)
    inside[inside] &= events.end[rows[at[inside]]] <= events.end[functions[inside]]
    if not inside.all() or not len(functions):
        return []
    texts = [_first(t, text) for text in events.shapes[rows[at]].tolist()]
    return [shape for shapes in texts for shape in shapes] if all(len(shapes) == 1 for shapes in texts) else []


def _updated(t: Tables, step: int) -> list[Counter[Shape]]:
    """Return, for each operator in an optimizer's call, the shapes that it updates in all its calls."""
    events = t.trace.events
    thread = int(events.thread[step])
    rows = t.cached(("operators of a thread", thread), lambda: host_rows(t.trace, thread, Kind.OP))
    # events are in time order: of all steps together each is looked at once
    first, last = np.searchsorted(rows, np.searchsorted(events.start, (events.start[step], events.end[step] + 1)))
    rows = rows[first:last]
    rows = rows[events.end[rows] <= events.end[step]]
    seen = Counter(zip(events.name[rows].tolist(), events.shapes[rows].tolist(), strict=True))  # few different ones
    found: dict[int, Counter[Shape]] = {}
    for (name, text), num in seen.items():
        updated = found.setdefault(name, Counter())
        for shape in filter(None, _first(t, text)):
            updated[shape] += num
    return list(found.values())


def _first(t: Tables, text: int) -> tuple[Shape, ...]:
    """Return the shapes of an operator's first argument, one or those of a list of tensors, by the name of its text."""
    return _first_shapes(t.trace.names[text]) if text >= 0 else ()


@lru_cache(maxsize=4096)  # the operators of all steps have few different ones
def _first_shapes(text: str) -> tuple[Shape, ...]:
    try:
        given = json.loads(text)
    except ValueError:
        return ()
    first = given[0] if isinstance(given, list) and given else None
    if not isinstance(first, list):
        return ()
    each = first if first and all(isinstance(part, list) for part in first) else [first]
    return tuple(tuple(shape) for shape in each)

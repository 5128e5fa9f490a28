"""Which operator launched each device task, and with which inputs.

Where the trace has no shapes of its own, as that of a timing window, they come from the attribution window: see
``match_tasks``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, contains, distinct, subtract, union
from diagnose.model.limits import NEARLY_ALL
from diagnose.tables import Tables
from diagnose.tables.host import host_rows, outermost
from diagnose.tables.names import FUSED, GRAPH_LAUNCH, LOADER_NEXT, matching

# Device tasks that CUDA graphs launch. One call launches them all: no operator around it is theirs.

# Adam and its relatives divide by the root of a moment, by addcdiv: once for each tensor, or for each list of tensors.
_ADAM = re.compile(r"addcdiv")
_ADAM_OF_LISTS = re.compile(r"multi_tensor_apply.*PointwiseOp\w*Functor")
_POINTWISE = re.compile(r"at::native::.*elementwise")
_OF_LISTS = re.compile(r"multi_tensor_apply")
MIN_UPDATED_TENSORS = 8  # tensors in one launch: a loss may divide once or twice
MAX_NODES_APART = 16  # nodes from one tensor's division to the next: AdamW makes 8 to 14 kernels for each


def graph_nodes(t: Tables) -> Mask:
    """Return which tasks of the window a launch of a graph carries."""
    of_graph = np.zeros(len(t.trace.events) + 1, bool)  # the last place takes the -1 of tasks without a launch
    of_graph[matching(t.trace, (Kind.RUNTIME,), GRAPH_LAUNCH)] = True
    found: Mask = of_graph[t.tasks.launch]
    return found


def graphed_updates(t: Tables) -> Mask:
    """Return which nodes of graphs update parameters as an Adam does that is not fused.

    A replay of a graph has no mark of the optimizer's step. Its kernels are known by their divisions, which recur
    within a few nodes, and by torch's other pointwise kernels between one and the next; or as kernels for lists.
    """
    found = np.zeros(len(t.tasks.row), bool)
    nodes = np.flatnonzero(t.graph_nodes)
    if not len(nodes):
        return found
    divides, fused = t.tasks_matching(_ADAM, nodes), t.tasks_matching(FUSED, nodes)
    pointwise = t.tasks_matching(_POINTWISE, nodes)
    of_lists, divides_lists = (t.tasks_matching(p, nodes) & ~fused for p in (_OF_LISTS, _ADAM_OF_LISTS))
    launch = t.tasks.launch[nodes]
    for each in distinct(launch[divides & pointwise]).tolist():
        mine = np.flatnonzero(launch == each)
        at = np.flatnonzero((divides & pointwise)[mine])
        near = np.zeros(len(mine), bool)
        for before, after in zip(at[:-1].tolist(), at[1:].tolist(), strict=True):
            near[before : after + 1] |= after - before <= MAX_NODES_APART
        if len(at) >= MIN_UPDATED_TENSORS:
            found[nodes[mine[near & pointwise[mine]]]] = True
    found[nodes[of_lists & among(launch, distinct(launch[divides_lists]))]] = True
    return found


# Matches the training thread's operators of the timing window with those of the attribution window.
#
# A step is recognised by the names of its outermost operators in the order of their starts: where a step of the
# attribution window has the very same list, the two are the same work, operator by operator; where it has a list that
# is the same but for one place, so are the operators before and behind that.


class MatchedStep(NamedTuple):
    """A step's outermost operators, or its tasks, and the same ones of a step of the attribution window."""

    rows: Rows
    named: Rows


def outermost_by_step(t: Tables) -> list[Rows]:
    """Return each step's outermost operators of the training thread, those of the loader left out."""
    rows = t.in_window(host_rows(t.trace, t.main, Kind.OP))
    outer = outermost(t.trace, rows)
    loading = t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    outer = outer[~contains(loading, t.trace.events.start[outer])]
    cuts = np.searchsorted(t.trace.events.start[outer], t.steps.start)
    return [part for part in np.split(outer, cuts)[1:] if len(part)]


def matched_steps(t: Tables) -> list[MatchedStep]:
    """Return the steps that the attribution window has a like of; all steps where they are of one window."""
    named = t.named
    if named is t:
        return [MatchedStep(rows, rows) for rows in t.outermost_by_step]
    number = {name: i for i, name in enumerate(named.trace.names)}
    mine = np.array([number.get(name, -1) for name in t.trace.names] or [-1], np.int64)
    others = [(rows, named.trace.events.name[rows].astype(np.int64)) for rows in named.outermost_by_step]
    each = ((rows, mine[t.trace.events.name[rows]]) for rows in t.outermost_by_step)
    return _matched(each, others)


def _matched(steps: Iterable[tuple[Rows, Ints]], others: Sequence[tuple[Rows, Ints]]) -> list[MatchedStep]:
    """Return the steps, rows with their names, that one of the other window is like."""
    known = {names.tobytes(): rows for rows, names in others}
    found = (_like(rows, names, known.get(names.tobytes()), others) for rows, names in steps)
    return [step for step in found if step is not None]


def _like(rows: Rows, names: Ints, same: Rows | None, others: Sequence[tuple[Rows, Ints]]) -> MatchedStep | None:
    """Return a step with the same names; else with what is the same of the nearest, at its begin and its end.

    Now and then a step logs or clips, and of long steps only one is recorded with shapes.
    """
    if same is not None:
        return MatchedStep(rows, same)
    best: MatchedStep | None = None
    for other, theirs in others:
        most = min(len(rows), len(other))
        first = _num_alike(names[:most], theirs[:most])
        last = min(_num_alike(names[::-1][:most], theirs[::-1][:most]), most - first)
        if first + last >= max(NEARLY_ALL * len(rows), len(best.rows) + 1 if best is not None else 1):
            of = np.r_[:first, len(rows) - last : len(rows)]
            of_other = np.r_[:first, len(other) - last : len(other)]
            best = MatchedStep(rows[of], other[of_other])
    return best


def _num_alike(one: Ints, other: Ints) -> int:
    """Return how many of the first numbers are the same."""
    differ = np.flatnonzero(one != other)
    return int(differ[0]) if len(differ) else len(one)


# Matches each device task of the timing window with the same task in the attribution window, which recorded shapes.
#
# A step is recognised by the names of its tasks in the order of their launches, as by those of its operators. Steps
# without a match stay without shapes.


def match_tasks(t: Tables, named: Tables) -> Rows:
    """Return for each task of ``t`` the index of the matching one in ``named.tasks``, -1 where there is none."""
    found = np.full(len(t.tasks.row), -1, np.intp)
    kernel_of = {name: i for i, name in enumerate(named.trace.names)}
    mine = np.array([kernel_of.get(t.trace.names[n], -1) for n in _names(t).tolist()] or [-1], np.intp)
    listed = _names(t)
    kernels, others = mine[np.searchsorted(listed, _kernels(t))], _kernels(named)
    theirs = [(step, others[step]) for step in _by_step(named)]
    for step in _matched(((step, kernels[step]) for step in _by_step(t)), theirs):
        found[step.rows] = step.named
    return found


def _kernels(t: Tables) -> Ints:
    return t.trace.events.name[t.tasks.row].astype(np.int64)


def _names(t: Tables) -> Ints:
    return distinct(_kernels(t)) if len(t.tasks.row) else np.zeros(1, np.int64)


def _by_step(t: Tables) -> list[Rows]:
    """Return the tasks of each step in the order of their launches; tasks without a launch belong to none."""
    launched = np.flatnonzero(t.tasks.launch >= 0)
    launched_at = t.trace.events.start[t.tasks.launch[launched]]
    order = np.lexsort((t.tasks.start[launched], launched_at))
    launched, launched_at = launched[order], launched_at[order]
    cuts = np.searchsorted(launched_at, t.steps.start)
    return [part for part in np.split(launched, cuts)[1:] if len(part)]


class OperatorInputs(NamedTuple):
    """The launching operator of each task and its inputs: rows of ``texts``, parallel to the tasks, -1 for unknown."""

    texts: Sequence[str]
    name: npt.NDArray[np.int32]
    shapes: npt.NDArray[np.int32]
    types: npt.NDArray[np.int32]
    values: npt.NDArray[np.int32]

    @property
    def is_known(self) -> Mask:
        """Return for which tasks shapes and types are there."""
        known: Mask = (self.shapes >= 0) & (self.types >= 0)
        return known

    def text(self, row: int) -> str:
        """Return a text, "" for -1."""
        return self.texts[row] if row >= 0 else ""


def operators(t: Tables) -> Rows:
    """Return for each task the innermost operator that launched it, -1 where none is known.

    It is looked for in the middle of the call: times are rounded, and an operator before it may seem to end within.
    """
    events = t.trace.events
    found = np.full(len(t.tasks.row), -1, np.intp)
    launch = t.tasks.launch
    for thread, layers in t.work_layers.items():
        mine = np.flatnonzero((launch >= 0) & (events.thread[np.maximum(launch, 0)] == thread))
        time: Ints = (events.start[launch[mine]] + events.end[launch[mine]]) // 2
        for depth in range(len(layers.rows)):
            rows = layers.open_in(depth, time)
            is_op = (rows >= 0) & (events.kind[np.maximum(rows, 0)] == Kind.OP)
            found[mine[is_op]] = rows[is_op]
    return found


class Chain(NamedTuple):
    """Two or more different pointwise operators, one after the other on a stream."""

    tasks: npt.NDArray[np.intp]  # indices into Tasks
    ops: tuple[str, ...]  # of nodes of a graph: what the kernels compute
    time_ns: int
    longest_ns: int  # one pass over all inputs takes at least as long
    in_graph: bool = False  # nodes of a CUDA graph


class WrittenOut(NamedTuple):
    """One attention; indices into Tasks."""

    products: npt.NDArray[np.intp]  # of the two products
    between: npt.NDArray[np.intp]  # of softmax, scaling, mask, dropout
    scores: int  # number of scores, which go to memory and back; 0 where shapes are not known
    softmax: int  # row of the softmax's operator


def host_time_behind_first(t: Tables, runs: Sequence[Rows]) -> Intervals:
    """Return when the host issued the tasks of each run but the first: operators, and the Python between them.

    It is what goes where one operator stands in the place of a run. Runs that more than one thread launched are left
    out, and so are long pauses between two operators, which are not about issuing.
    """
    ops, events = t.operators, t.trace.events
    spans = []
    for tasks in runs:
        rows = ops[tasks]
        rows = rows[rows >= 0]
        if len(rows) and (events.thread[rows] == events.thread[rows[0]]).all():
            spans.append((events.end[rows].min(), events.end[rows].max()))
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    return subtract(union((start, end)), t.host_gaps)


def operator_inputs(t: Tables) -> OperatorInputs:
    """Return the inputs of each task's operator, as far as they were recorded."""
    own = _recorded(t)
    named = t.named
    if named is t or own.is_known.any():
        return own
    other, match = _recorded(named), match_tasks(t, named)
    columns = (
        np.where(match >= 0, column[match], -1) if len(column) else np.full(len(match), -1) for column in other[1:]
    )
    return OperatorInputs(other.texts, *(column.astype(np.int32) for column in columns))


def _recorded(t: Tables) -> OperatorInputs:
    events, ops = t.trace.events, t.operators
    columns = (events.name, events.shapes, events.types, events.values)
    if not len(events):
        return OperatorInputs(t.trace.names, *(np.full(len(ops), -1, np.int32) for _ in columns))
    return OperatorInputs(t.trace.names, *(np.where(ops >= 0, column[ops], -1).astype(np.int32) for column in columns))

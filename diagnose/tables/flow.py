"""The data flow of a step, joined to the timing window: what its operators took in each of the recorded steps.

The data flow has the operators below autograd. The timing window has those and what calls them or is called by them:
of these, the outermost that bear a name of the data flow are its own. The k-th operator of a name in a step is the k-th
of that name in each step with as many; else it is looked for between its neighbours. Where lines that call it do so
more often from step to step, as with hooks that each step adds, all that the step has there are theirs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.dataflow import Dataflow, Frame, Operator
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, distinct, subtract, union
from diagnose.model.own_source import OwnSource
from diagnose.model.records import CallRecord, ExpressionRecord, UnreadRecord
from diagnose.tables import Tables
from diagnose.tables.dispatch import own_gaps
from diagnose.tables.host import outermost_of_threads
from diagnose.tables.run_steps import run_mean

if TYPE_CHECKING:
    from diagnose.dataflow import Analyses


_Key: TypeAlias = tuple[str, str, tuple[Frame, ...]]  # name, phase and stack


class LongStep(NamedTuple):
    """A step that is long now and then, after a usual one; the timing window has nothing of it."""

    flow: Flow
    every: int  # steps from one to the next
    mean_ns: float  # of the steps of the run

    @property
    def own(self) -> frozenset[int]:
        """Return the operators that no usual step has: those with another stack."""
        graph = self.flow.found.graph
        usual = {one.stack for one in graph.operators if one.step < graph.last_step}
        return frozenset(i for i in graph.of_step(graph.last_step) if graph.operators[i].stack not in usual)

    def spared_ns(self, work: Mapping[int, float]) -> float:
        """Return what a step of the run takes less without a share of the time of some operators, as a mean.

        The host's waits for a device count for the operators that it waits for, by what calling them takes.
        """
        graph = self.flow.found.graph
        every = list(graph.of_step(graph.last_step))
        waits = sum(graph.operators[i].host_ns for i in every if graph.operators[i].reads_host)
        whole = graph.time(every)
        time = sum(graph.operators[i].host_ns * share for i, share in work.items() if not graph.operators[i].reads_host)
        return time * whole / max(whole - waits, 1) / self.every


class Flow(NamedTuple):
    """What the analyses found, and for each operator its events in the window: one for each step that has it."""

    found: Analyses
    rows: tuple[Rows, ...]
    lines: Mapping[int, Frame] = MappingProxyType({})  # of the window's operators; in the backward pass the forward's
    padded_to: frozenset[int] = frozenset()  # lengths that loading is known to pad samples to
    source: OwnSource = OwnSource()
    wide: tuple[tuple[CallRecord, ExpressionRecord], ...] = ()  # what makes 64-bit floats for the step
    callers: Mapping[int, int] = MappingProxyType({})  # of events: the outermost operator that calls nothing else
    long_step: LongStep | None = None
    optimizer: Frame | None = None  # the call that makes the main one
    unread: tuple[UnreadRecord, ...] = ()  # what is made more often than it is read

    def time_of(self, t: Tables, operators: Iterable[int]) -> Intervals:
        """Return when the timing window runs some operators; nothing of those that it cannot be joined to."""
        each = [self.rows[i] for i in operators]
        return t.covering(np.sort(np.concatenate(each))) if each else EMPTY

    def span_of(self, t: Tables, operators: Iterable[int]) -> Intervals:
        """Return when the timing window runs some operators, with what calling them takes.

        That is what calls one of them and nothing else, as a node of autograd, and the time between two of them. A view
        does not stand between them: it computes nothing. Long intervals are Python that does something else.
        """
        is_mine = np.zeros(len(t.trace.events.start), bool)
        is_mine[np.concatenate([np.empty(0, np.intp), *(self.rows[i] for i in operators)])] = True
        calls = {self.callers.get(row, row) for row in np.flatnonzero(is_mine).tolist()}
        parts = [t.covering(np.array(sorted(calls), np.intp))]
        pairs = zip(self.found.graph.operators, self.rows, strict=True)
        others = (rows if not one.is_view else rows[is_mine[rows]] for one, rows in pairs)
        every = np.sort(np.concatenate([np.empty(0, np.intp), *others]))
        for thread in distinct(t.trace.events.thread[every]).tolist():
            rows = every[t.trace.events.thread[every] == thread]
            end, start = t.trace.events.end[rows[:-1]], t.trace.events.start[rows[1:]]
            both = is_mine[rows[:-1]] & is_mine[rows[1:]] & (end < start)
            parts.append(subtract(Intervals(end[both], start[both]), own_gaps(t)))
        return union(*parts)


def shows_values(t: Tables) -> bool:
    """Return whether the data flow shows what most of the window's operators computed."""
    flow = t.flow
    if flow is None or t.capture.dataflow is None:
        return False
    pairs = zip(t.capture.dataflow.operators, flow.rows, strict=True)
    times = [(one.host_ns, len(rows) > 0) for one, rows in pairs if not one.is_view]
    # Of the operators' time: in captures of nine scripts 0.98 to 1.
    return sum(ns for ns, is_joined in times if is_joined) >= 0.8 * sum(ns for ns, _ in times)


def flow_of(t: Tables) -> Flow | None:
    """Return the data flow of the capture, None where it has none."""
    flow = t.capture.dataflow
    if flow is None or t.analyses is None:
        return None
    loaded = t.capture.info.loaded.expressions if t.capture.info is not None else ()
    found: list[list[int]] = [[] for _ in flow.operators]
    events = _events(t, {_name(each.name) for each in flow.operators})
    counts = Counter((one.step, _key(one)) for one in flow.operators)
    varying = {key for (_, key), num in counts.items() if num != counts[0, key]}  # that not each step has as often
    for of_step in events:
        for step in range(flow.num_steps):
            for i, row in _pairs(flow, step, of_step, varying):
                found[i].append(row)
    joined = tuple(np.array(each, np.intp) for each in found)
    placed = ((one.place, rows) for one, rows in zip(flow.operators, found, strict=True))
    lines = {row: place for place, rows in placed if place is not None for row in rows}
    padded_to = frozenset(one.padded_to for one in loaded if one.padded_to)
    capture = t.capture
    source = OwnSource(capture.lines, capture.loops, capture.functions, capture.bound, capture.sources)
    made = t.capture.info.wide if t.capture.info is not None else ()
    buffer = ExpressionRecord(file="", line=0, is_tensor=True)
    wide = ((one, next((each for each in loaded if each.text == one.name), buffer)) for one in made)
    computing = (rows for one, rows in zip(flow.operators, found, strict=True) if not one.is_view)
    callers = _callers(t, np.array(sorted({row for rows in computing for row in rows}), np.intp))
    call = capture.known.optimizer.made
    optimizer = Frame(call.file, call.begin[0], "") if call is not None else None
    unread = t.capture.known.unread
    found_flow = Flow(
        t.analyses, joined, lines, padded_to, source, tuple(wide), callers, optimizer=optimizer, unread=unread
    )
    return found_flow._replace(long_step=_long_step(t, found_flow))


def _long_step(t: Tables, flow: Flow) -> LongStep | None:
    """Return the step of the capture that is long now and then, None where none was recorded."""
    every, mean = t.capture.known.long_step_every, run_mean(t.capture.run, t.capture) if t.capture.run else None
    if flow.found.long_step is None or every < 2 or mean is None:
        return None
    rows = (np.empty(0, np.intp),) * len(flow.found.long_step.graph.operators)
    return LongStep(flow._replace(found=flow.found.long_step, rows=rows, callers={}, lines={}), every, mean[0])


def _callers(t: Tables, rows: Rows) -> dict[int, int]:
    """Return for each of some events the outermost operator that holds it and none of the others."""
    events, every, found = t.trace.events, t.host_rows(Kind.OP), dict[int, int]()
    for thread in distinct(events.thread[rows]).tolist():
        mine, others = (each[events.thread[each] == thread] for each in (rows, every))
        first, last = (np.searchsorted(events.start[mine], at) for at in (events.start[others], events.end[others]))
        for caller, row in zip(
            others[last == first + 1].tolist(), mine[first[last == first + 1]].tolist(), strict=True
        ):
            if events.end[row] <= events.end[caller]:
                found.setdefault(row, caller)
    return found


def _key(one: Operator) -> _Key:
    return _name(one.name), one.phase, one.stack


def _pairs(flow: Dataflow, step: int, events: dict[str, list[int]], varying: set[_Key]) -> list[tuple[int, int]]:
    """Return a step's operators with their events.

    Where the numbers of a name differ, those between two neighbours that are known are compared.
    """
    mine: dict[str, list[int]] = defaultdict(list)
    for i, operator in enumerate(flow.operators):
        if operator.step == step:
            mine[_name(operator.name)].append(i)
    pairs: dict[int, int] = {}
    for name, operators in mine.items():
        if len(operators) == len(events.get(name, ())):
            pairs |= zip(operators, events[name], strict=True)
    known, rows, found = sorted(pairs), sorted(pairs.values()), list(pairs.items())
    for name, operators in mine.items():
        if operators[0] not in pairs:
            between, others = _groups(known, operators), _groups(rows, events.get(name, ()))
            for place, group in between.items():
                there = others.get(place, [])
                if len(group) == len(there):
                    found += zip(group, there, strict=True)
                else:
                    found += _around_varying(group, there, [_key(flow.operators[i]) in varying for i in group])
    return found


def _around_varying(group: list[int], there: list[int], varies: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield operators with their events where some do not run equally often: these have all between the others."""
    before = next((k for k, each in enumerate(varies) if each), len(group))
    after = next((k for k, each in enumerate(reversed(varies)) if each), len(group))
    end, last = len(group) - after, len(there) - after
    if before >= end or not all(varies[before:end]) or before > last:
        return
    yield from zip(group[:before] + group[end:], there[:before] + there[last:], strict=True)
    yield from ((group[before + k % (end - before)], row) for k, row in enumerate(there[before:last]))


def _groups(known: list[int], each: Sequence[int]) -> dict[int, list[int]]:
    """Return numbers by how many of the known ones are smaller."""
    found: dict[int, list[int]] = defaultdict(list)
    for number in each:
        found[bisect_left(known, number)].append(number)
    return found


def _events(t: Tables, names: set[str]) -> list[dict[str, list[int]]]:
    """Return for each recorded step its outermost operators of some names, by name."""
    found: list[dict[str, list[int]]] = [defaultdict(list) for _ in range(t.steps.num)]
    called = _called(names, set(t.trace.names))
    rows = _outermost(t, set(called))
    steps = np.searchsorted(t.steps.start, t.trace.events.start[rows], side="right") - 1
    for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
        found[step][called[t.name(row)]].append(row)
    return found


def _called(names: set[str], recorded: set[str]) -> dict[str, str]:
    """Return what the trace calls operators of these names.

    Autograd calls the implementation of some of them itself: aten::_index_put_impl_ for aten::index_put.
    """
    inner = {f"aten::_{name.removeprefix('aten::')}_impl_": name for name in names - recorded}
    return {**{name: name for name in names}, **{impl: name for impl, name in inner.items() if impl in recorded}}


def _name(name: str) -> str:
    """Return an operator's name without its overload, as the profiler has it."""
    return name.partition(".")[0]


def _outermost(t: Tables, names: set[str]) -> Rows:
    """Return the steps' operators of some names that lie in no other of them, in time order.

    Where the host runs ahead, the window begins with tasks that it launched before: these steps count from their begin.
    """
    wanted = np.array([name in names for name in t.trace.names] or [False], bool)
    rows, began = t.host_rows(Kind.OP), t.trace.events.start
    start, end = min(t.steps.window[0], int(t.steps.start[0])), t.steps.window[1]
    rows = rows[wanted[t.trace.events.name[rows]] & (began[rows] >= start) & (began[rows] < end)]
    return outermost_of_threads(t.trace, rows)

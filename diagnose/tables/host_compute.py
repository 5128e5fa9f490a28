"""Long intervals of the host inside operators that called nothing: they computed, or the thread was interrupted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.events import Events, Kind
from diagnose.model.intervals import (
    EMPTY,
    Intervals,
    among,
    contains,
    distinct,
    grouped,
    intersect,
    longer_than,
    span,
    subtract,
    union,
)
from diagnose.tables import Tables, shared_table
from diagnose.tables.calls import of_known_kernels
from diagnose.tables.gaps import launches_unlinked
from diagnose.tables.graph_capture import captures_of
from diagnose.tables.host import host_rows
from diagnose.tables.host_gaps import host_gaps, operator_share, without_calls
from diagnose.tables.names import GRAPH_CAPTURE, GRAPH_LAUNCH
from diagnose.tables.steps import COLD_CALL_NS
from diagnose.text.patterns import lazy_pattern

__all__ = [
    "NEVER_COMPUTES",
    "computing_operators",
    "filled_by_operators",
    "first_use",
    "gaps_of_first_use",
    "graph_captures",
    "host_compute",
    "interruptions",
    "silent_operators",
    "without_operators",
]

# Dispatching one operator takes 5 to 50 µs, recorded with stacks and shapes up to 250: an operator that is silent for
# as long as this computes, compiles or loads.
MIN_SILENCE_NS = 1_000_000
# Of the calls of an operator that launches: where fewer are silent, something else held the others' like up.
MIN_SILENT_SHARE = 0.5
MIN_STEPS_SHARE, MIN_STEPS = 0.8, 3  # in which the same call is silent: a plan made for each new shape, say
MIN_FIRST_RATIO = 3.0  # of the gap before a kernel's first launch over those before its later ones
MIN_FILLED_SHARE = 0.5  # of an interval: where operators cover less, it is Python
# Allocations and views: they touch no element, whatever their size. Where one copies, another operator does it.
NEVER_COMPUTES = lazy_pattern(
    r"^aten::(new_)?empty(_\w+)?$|^aten::(_conj|_neg_view|_reshape_alias|_unsafe_view|adjoint|alias|as_strided_?"
    r"|atleast_[123]d|broadcast_to|chunk|conj|contiguous|detach_?|diagonal|dsplit|expand|expand_as|flatten|hsplit|imag"
    r"|lift_fresh|linalg_diagonal|matrix_H|mH|moveaxis|movedim|mT|narrow|numpy_T|permute|positive|ravel|real|reshape"
    r"|reshape_as|resize_|resolve_conj|resolve_neg|select|set_|slice|split|split_with_sizes|squeeze_?|swapaxes|swapdims"
    r"|t|tensor_split|to|transpose_?|unbind|unflatten|unfold|unsafe_chunk|unsafe_split|unsqueeze_?|view|view_as"
    r"|view_as_complex|view_as_real|vsplit)$"
)
# Calls that neither wait for the device nor load anything.
_INSTANT = lazy_pattern(
    r"^(cuda|hip|cu)(Event(Record|Query)|Stream(Query|WaitEvent|IsCapturing|GetCaptureInfo)|Get(Device|LastError)$"
    r"|PeekAtLastError|PointerGetAttribute|ThreadExchangeStreamCaptureMode)"
)
_WRAPS = lazy_pattern(r"^(autograd|torch|c10d)::|Backward\d*$")


def host_compute(t: Tables) -> Intervals:
    """Return where operators computed on a thread that launches, in gaps that it was late for.

    That are silent intervals of operators, and intervals without any call that many short operators fill for more
    than a half.
    """
    silent = (_chosen(intervals, _computes(t, rows)) for intervals, rows in silent_operators(t))
    return union(*silent, intersect(filled_by_operators(t), t.gaps.unlaunched()))


@shared_table
def filled_by_operators(t: Tables) -> Intervals:
    """Return the intervals without any call that operators which make none, and can compute, fill for more than a half.

    Silent ones are left out: each of them is judged by itself.
    """
    others = union(host_gaps(t), *(_silent(t, thread)[0] for thread in t.threads))
    intervals = longer_than(subtract(without_calls(t), others), MIN_SILENCE_NS)
    return _chosen(intervals, operator_share(t, intervals, computing_operators(t)) > MIN_FILLED_SHARE)


@shared_table
def computing_operators(t: Tables) -> Rows:
    """Return the operators of the threads that launch, but for allocations, views, and what only wraps others."""
    rows = t.host_rows(Kind.OP)
    names = t.trace.events.name[rows]
    idle = [
        i for i in distinct(names).tolist() if NEVER_COMPUTES.search(text := t.trace.names[i]) or _WRAPS.search(text)
    ]
    found: Rows = rows[~among(names, np.array(idle, names.dtype))]
    return found


def interruptions(t: Tables) -> Intervals:
    """Return the silent intervals of operators that do not compute: the thread was taken off its core, or recorded.

    So is a call of a millisecond that only notes or asks something, which takes microseconds.
    """
    if not silent_operators(t):
        return EMPTY
    noted = distinct(t.calls(_INSTANT), of_known_kernels(t))
    calls = longer_than(t.covering(noted), MIN_SILENCE_NS)
    return union(calls, *(_chosen(intervals, ~_computes(t, rows)) for intervals, rows in silent_operators(t)))


def without_operators(t: Tables) -> Intervals:
    """Return the long intervals outside operators and the interruptions within, where nothing was launched."""
    return intersect(union(host_gaps(t), interruptions(t)), t.gaps.unlaunched())


def _chosen(intervals: Intervals, which: Mask) -> Intervals:
    return Intervals(intervals.start[which], intervals.end[which])


def _computes(t: Tables, operators: Rows) -> Mask:
    """Return which of the silent operators can have filled their silence themselves.

    Allocations and views cannot. What launches device work, or wraps other operators, prepares a launch, which takes
    microseconds: it computes only where its like are silent in most of their calls, or the same call of each step is.
    """
    names, all_names = t.trace.events.name[operators], t.trace.events.name
    prepares, silent = _launching(t, operators), np.concatenate([_silent(t, thread)[1] for thread in t.threads])
    ops = t.in_window(t.host_rows(Kind.OP))
    found = np.ones(len(operators), bool)
    for name in distinct(names).tolist() if len(names) else []:
        text, mine = t.trace.names[name], names == name
        like, silent_like = ops[all_names[ops] == name], distinct(silent[all_names[silent] == name])
        if NEVER_COMPUTES.search(text):
            found[mine] = False
        elif len(silent_like) < MIN_SILENT_SHARE * len(like) and not _one_of_each_step(t, like, silent_like):
            found[mine] = ~prepares[mine] & (_WRAPS.search(text) is None)
    return found


def _one_of_each_step(t: Tables, like: Rows, silent: Rows) -> bool:
    """Return whether the silent calls are the same ones of nearly each step, counted from its begin: not by chance."""
    start = np.sort(t.trace.events.start[like], kind="stable")
    first = np.searchsorted(start, t.steps.start)
    began = t.trace.events.start[silent]
    step = np.searchsorted(t.steps.start, began, side="right") - 1
    place = np.searchsorted(start, began)[step >= 0] - first[step[step >= 0]]
    steps_at = np.bincount(place) if len(place) else np.zeros(1, np.int64)
    return bool(steps_at.max() >= max(MIN_STEPS_SHARE * t.steps.num, MIN_STEPS))


def _launching(t: Tables, operators: Rows) -> Mask:
    """Return which operators launched device tasks, on their own thread."""
    events, launch = t.trace.events, t.tasks.launch[t.tasks.launch >= 0]
    found = np.zeros(len(operators), bool)
    for thread in t.threads:
        begun = np.sort(events.start[launch[events.thread[launch] == thread]], kind="stable")
        first, last = np.searchsorted(begun, (events.start[operators], events.end[operators]))
        found |= (events.thread[operators] == thread) & (last > first)
    return found


def first_use(t: Tables) -> Intervals:
    """Return those intervals that end in the first launch of a kernel in the whole file.

    An operator that is silent before kernels launched earlier as well does not prepare their first use, nor does one
    that allocates, makes a view or wraps the operator that launches.
    """
    new = _ends_in_first_launch(t)
    found, seen = [], set[int]()
    for intervals, operator in silent_operators(t):
        gap = np.searchsorted(t.gaps.start, intervals.start, side="right") - 1
        is_new = new[np.maximum(gap, 0)]
        names = t.trace.events.name[operator]
        seen |= set(names[~is_new].tolist())
        prepares = [not (NEVER_COMPUTES.search(text) or _WRAPS.search(text)) for text in map(t.name, operator.tolist())]
        found.append((intervals, is_new & np.array(prepares, bool), names))
    kept = [(s, is_new & ~among(names, np.array(list(seen), names.dtype))) for s, is_new, names in found]
    return union(*((s.start[keep], s.end[keep]) for s, keep in kept)) if kept else EMPTY


def gaps_of_first_use(t: Tables) -> Mask:
    """Return which gaps end in the first launch of a kernel and are many times longer than those before its later ones.

    It needs no operator: what loads a kernel may run between operators, and in files without them.
    """
    gaps, tasks = t.gaps, t.tasks
    waited = np.zeros(len(tasks.row) + 1)
    waited[gaps.after] = np.maximum(gaps.queued_at - gaps.start, 0)  # the last place takes the -1 of no task
    waited = waited[:-1]
    name = grouped(t.trace.events.name[tasks.row]).of
    new = _ends_in_first_launch(t) & (gaps.after >= 0)
    first = gaps.after[new]
    later = np.ones(len(tasks.row), bool)
    later[first] = False
    longest = np.full(int(name.max(initial=-1)) + 1, -1.0)
    np.maximum.at(longest, name[later], waited[later])
    found = np.zeros(len(gaps.start), bool)
    others = longest[name[first]]  # -1: it is launched once
    found[new] = (waited[first] >= COLD_CALL_NS) & (others >= 0) & (waited[first] >= MIN_FIRST_RATIO * others)
    return found


def graph_captures(t: Tables) -> Intervals:
    """Return the time of capturing graphs: from the enclosing operator's begin to the first launch of a graph.

    Between the begin and the end of a capture all work of the thread goes into the graph, whatever operators it is.
    """
    events = t.trace.events
    launches = events.start[t.calls(GRAPH_LAUNCH)]
    found = [captures_of(t.trace, thread) for thread in t.threads]
    for row in t.calls(GRAPH_CAPTURE).tolist():
        layers = t.work_layers.get(int(events.thread[row]))
        around = [r for r in (layers.at(int(events.start[row])) if layers else []) if events.kind[r] == Kind.OP]
        whole = around[0] if around else row
        start, end = int(events.start[whole]), int(events.end[whole])
        first = int(np.searchsorted(launches, events.end[row]))
        end = min(end, int(launches[first])) if first < len(launches) else end
        found.append(span(start, max(start, end)))
    return union(*found) if found else EMPTY


def silent_operators(t: Tables) -> Sequence[tuple[Intervals, Rows]]:
    """Return, for each thread that launches, its silent intervals in gaps that it was late for, and their operators.

    Where launches are not linked to tasks they may not have been recorded either, and silence shows nothing.
    """
    if t.device_id < 0 or launches_unlinked(t.tasks):
        return ()
    return t.cached("silent operators", lambda: _of_threads(t))


def _of_threads(t: Tables) -> Sequence[tuple[Intervals, Rows]]:
    gaps, events = t.gaps, t.trace.events
    thread = np.where(gaps.launch >= 0, events.thread[gaps.launch], t.main)
    found = []
    for each in t.threads:
        late = thread == each
        intervals, operators = _silent(t, each)
        unlaunched = union((gaps.start[late], gaps.launch_start[late]))
        mine = intersect(intervals, unlaunched)
        at = np.searchsorted(intervals.start, mine.start, side="right") - 1
        found.append((mine, operators[at]))
    return found


def _silent(t: Tables, thread: int) -> tuple[Intervals, Rows]:
    """Return the intervals of a thread without any event's begin or end that one operator is innermost in."""
    return t.of_host.cached(("silent", thread), lambda: _find_silent(t, thread))


def _find_silent(t: Tables, thread: int) -> tuple[Intervals, Rows]:
    events, layers = t.trace.events, t.work_layers[thread]
    begin, end = _silences(events, host_rows(t.trace, thread, Kind.OP, Kind.ANNOTATION, Kind.RUNTIME))
    inner = [open_rows[-1] if open_rows else -1 for open_rows in layers.at_each((begin + end) // 2)]
    operator = np.array(inner, np.intp)
    is_op = (operator >= 0) & (events.kind[operator] == Kind.OP)
    return Intervals(begin[is_op], end[is_op]), operator[is_op]


def _silences(events: Events, rows: Rows) -> tuple[Ints, Ints]:
    """Return the long intervals in which none of the events, in time order, begins or ends.

    They lie between two begins that are as far apart, so only the ends of these intervals are put in order.
    """
    if not len(rows):
        return EMPTY
    start, end = events.start[rows], events.end[rows]
    following = np.append(start[1:], end.max() + 1)
    far = following - start >= MIN_SILENCE_NS
    far[-1] = True
    apart = Intervals(start[far], following[far])
    edges = np.concatenate([*apart, end[contains(apart, end)]])
    edges.sort(kind="stable")
    long = np.diff(edges) >= MIN_SILENCE_NS
    long &= contains(apart, edges[:-1])  # what lies between two of these intervals is not silent
    return edges[:-1][long], edges[1:][long]


def _ends_in_first_launch(t: Tables) -> Mask:
    """Return which gaps end in the first run of a kernel, as far as the file shows."""
    events, tasks, gaps = t.trace.events, t.tasks, t.gaps
    kernels = np.flatnonzero(events.kind == Kind.KERNEL)
    is_first = np.zeros(len(events) + 1, bool)
    is_first[kernels[grouped(events.name[kernels]).first]] = True
    after = np.append(tasks.row, -1)[gaps.after]  # -1: no task after
    found: Mask = is_first[after]
    return found

"""Host gaps: long intervals in which the training thread ran Python, files or waits: no launch, hardly an operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from diagnose.model.arrays import Floats, Ints, Mask, Rows
from diagnose.model.events import Events, Kind
from diagnose.model.intervals import (
    EMPTY,
    Intervals,
    among,
    contains,
    covered,
    distinct,
    grouped,
    intersect,
    longer_than,
    overlaps,
    span,
    subtract,
    union,
)
from diagnose.model.limits import AT_ONCE_NS, LONG_NS, MAJORITY, MIN_RECURRENCES, PREVAILS
from diagnose.model.rules import Cause
from diagnose.tables import Tables
from diagnose.tables.calls import allocations, code_loads, collections, compile_frames
from diagnose.tables.collectives import host_exchanges
from diagnose.tables.gaps import MIN_LATENCY_NS, launches_unlinked
from diagnose.tables.host import host_rows, outermost
from diagnose.tables.names import LOADER_NEXT, matching

# Time in which a thread that called backward() waits for autograd's other threads: it runs no Python then.

_EVALUATES = re.compile(r"^autograd::engine::evaluate_function")
_ROOT = re.compile(r"^aten::ones_like$")  # the gradient of the loss, which backward() makes before the engine starts


def autograd_waits(t: Tables) -> Intervals:
    """Return the time from the gradient of the root to what the engine evaluates first on that thread, and so on.

    Where another thread's operators are in the file they lie in that time; where that thread was not recorded, the time
    looks like Python between operators. A thread of autograd's own never makes the root: between what it evaluates lies
    the rest of the step.
    """
    events = t.trace.events
    evaluates, roots = np.zeros(len(events), bool), np.zeros(len(events), bool)
    evaluates[matching(t.trace, (Kind.OP,), _EVALUATES)] = True
    if not evaluates.any():
        return EMPTY
    roots[matching(t.trace, (Kind.OP,), _ROOT)] = True
    found = []
    for thread in t.threads:
        rows = outermost(t.trace, host_rows(t.trace, thread, Kind.OP))
        one, two = rows[:-1], rows[1:]
        follows = evaluates[two] & (roots[one] | evaluates[one])
        begins = np.maximum.accumulate(np.where(follows, 0, np.arange(1, len(one) + 1)))  # the last one that does not
        waits = follows & roots[np.append(rows, -1)[begins]]
        found.append((events.end[one[waits]], events.start[two[waits]]))
    return union(*found)


# Between two operators of a model Python takes 10 to 250 µs even with stacks recorded; what is longer is something
# else. In short steps a tenth of the step is long already.
MIN_GAP_NS = 200_000
# Of the samples at a line. On busy cores up to a fifth of those at a line that only sleeps find it ready to run: the
# wait is over, and it waits for a core.
MIN_LINE_WAIT_SHARE = 0.75
STEADY_SHARE = 0.6  # of the steps, in which a host gap comes at the same place


def min_host_gap_ns(t: Tables) -> int:
    """Return how long an interval between operators must be to count as a host gap, ns."""
    return int(np.clip(0.1 * t.steps.step_ns, MIN_GAP_NS, LONG_NS))


def host_gaps(t: Tables) -> Intervals:
    """Return the long intervals between operators within the window, loading left out.

    Short operators that call nothing do not end one: Python that works on tensors of the host, or only makes views,
    calls thousands of them, and the device gets nothing from it. They must cover less than half of an interval of at
    least a millisecond: in less the framework may be preparing a launch.
    """
    between = longer_than(outside_operators(t), min_host_gap_ns(t))
    events, ops = t.trace.events, t.host_rows(Kind.OP)
    long = ops[events.end[ops] - events.start[ops] >= MIN_GAP_NS]
    intervals = longer_than(subtract(without_calls(t), t.covering(long)), LONG_NS)
    python = operator_share(t, intervals, ops) < MAJORITY
    return union(between, Intervals(intervals.start[python], intervals.end[python]))


def without_calls(t: Tables) -> Intervals:
    """Return the time of the window outside loading, runtime calls and the operators that make such calls.

    Nothing where there is no device, or where calls may not have been recorded: operators are the work then.
    """
    if t.device_id < 0 or launches_unlinked(t.tasks):
        return EMPTY
    busy = [t.covering(t.host_rows(Kind.RUNTIME)), t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))]
    for thread in t.threads:
        rows, calls = (host_rows(t.trace, thread, kind) for kind in (Kind.OP, Kind.RUNTIME))
        first, last = np.searchsorted(
            t.trace.events.start[calls], (t.trace.events.start[rows], t.trace.events.end[rows])
        )
        busy.append(t.covering(rows[last > first]))
    return subtract(span(*t.steps.window), union(*busy))


def operator_share(t: Tables, intervals: Intervals, operators: Rows) -> Floats:
    """Return the share of each interval that these operators cover."""
    within = covered(t.covering(operators), intervals.start, intervals.end)
    share: Floats = within / np.maximum(intervals.end - intervals.start, 1)
    return share


def python_gaps(t: Tables) -> Intervals:
    """Return the host gaps of which something shows that the thread was in the loop, and ran Python.

    Frames and annotations around them show it, that they come back before the same operator, and that the launching
    thread's own events surround them. A capture that sampled the thread has watched it all the time. A program that
    runs no Python has none; nor has a thread within backward() that waits for autograd's other threads.
    """
    if t.runs_no_python:
        return EMPTY
    gaps = t.host_gaps
    if t.capture.samples is not None:
        return subtract(gaps, autograd_waits(t))
    inside = intersect(gaps, t.covering(t.host_rows(Kind.PYTHON, Kind.ANNOTATION)))
    return subtract(union(inside, recurring_gaps(t), gaps_between_own_operators(t)), autograd_waits(t))


def gaps_between_own_operators(t: Tables) -> Intervals:
    """Return the host gaps that one launching thread's own events surround: it lived, and ran Python between them.

    Its operators must lie before and behind; a thread without any may belong to a program that runs no Python.
    """
    gaps, events = t.host_gaps, t.trace.events
    mine = np.zeros(len(gaps.start), bool)
    for thread in t.launch_threads:
        own, ops = host_rows(t.trace, thread, Kind.OP, Kind.RUNTIME), host_rows(t.trace, thread, Kind.OP)
        if not len(ops):
            continue
        ended = np.sort(events.end[own], kind="stable")
        before = np.searchsorted(ended, gaps.start, side="right") - 1
        after = np.searchsorted(events.start[own], gaps.end)
        close = (before >= 0) & (after < len(own))
        # Between a host gap and the events of the thread that surround it.
        close &= gaps.start - ended[np.maximum(before, 0)] <= AT_ONCE_NS
        close &= events.start[own][np.minimum(after, len(own) - 1)] - gaps.end <= AT_ONCE_NS
        mine |= close & (events.start[ops[0]] < gaps.start) & (events.start[ops[-1]] >= gaps.end)
    return Intervals(gaps.start[mine], gaps.end[mine])


def recurring_gaps(t: Tables) -> Intervals:
    """Return the host gaps that come back before the same operator, as often as steps do: they are part of the loop."""
    gaps = t.host_gaps
    if not len(gaps.start):
        return gaps
    alike = _what_follows(t, gaps)
    mine = np.bincount(alike)[alike] >= max(MIN_RECURRENCES, t.steps.num / 2)
    mine &= alike < len(t.trace.names)  # what nothing follows is the end of the recording
    return Intervals(gaps.start[mine], gaps.end[mine])


def gaps_of_every_step(t: Tables) -> Intervals:
    """Return the host gaps that come back before the same operator of a step, in most steps.

    A thread that loses its core loses it anywhere: what comes back at one place of the step is the program's.
    """
    gaps, events = t.host_gaps, t.trace.events
    rows = np.append(t.host_rows(Kind.OP), -1)
    next_row = rows[np.searchsorted(events.start[rows[:-1]], gaps.end)]
    at = ordinals(t)[next_row]
    alike = grouped(events.name[next_row] * (at.max(initial=0) + 2) + at + 1).of
    step = np.searchsorted(t.steps.start, events.start[next_row], side="right")
    once = distinct(alike * (t.steps.num + 1) + step) // (t.steps.num + 1)  # several in a step count once
    mine = np.bincount(once, minlength=len(gaps.start) + 1)[alike] >= max(MIN_RECURRENCES, STEADY_SHARE * t.steps.num)
    mine &= next_row >= 0
    return Intervals(gaps.start[mine], gaps.end[mine])


def ordinals(t: Tables) -> Ints:
    """Return for each event that is an operator of the host how many of its name came before it in its step."""
    events, rows = t.trace.events, t.host_rows(Kind.OP)
    found = np.full(len(events) + 1, -1, np.int64)  # the last one is of no event
    step = np.searchsorted(t.steps.start, events.start[rows], side="right")
    order = np.lexsort((events.start[rows], events.name[rows], step))
    begins = np.ones(len(rows), bool)
    begins[1:] = (np.diff(step[order]) != 0) | (np.diff(events.name[rows][order]) != 0)
    place = np.arange(len(rows))
    found[rows[order]] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return found


def outside_operators(t: Tables) -> Intervals:
    """Return the time of the window in which no thread that matters was in an operator, a call or the loader."""
    loading = t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    return subtract(subtract(span(*t.steps.window), t.in_ops), loading)


def ready_share(t: Tables) -> float:
    """Return the part of the watched time in which the training thread was runnable but not scheduled; 0 if unknown.

    Python that was taken off its core looks like a long host gap.
    """
    return (t.capture.info.sampler.ready_share or 0.0) if t.capture.info else 0.0


def waiting_share(t: Tables, pieces: Intervals, least: float = MIN_LINE_WAIT_SHARE) -> tuple[Ints, Ints]:
    """Return, for each piece, how many samples fell into it and how many of them found the thread waiting.

    Waiting means at a line that waits nearly always, in ``least`` of its samples: one that sleeps, or reads a socket.
    If a line computes as well, as a checkpoint does between its writes, a sample that finds it off the CPU is no
    evidence that it is the wait which holds the step up; 0 counts all that wait.
    """
    none = np.zeros(len(pieces.start), np.int64)
    samples = t.capture.samples
    if samples is None or not t.trace.epoch_ns or not len(pieces.start):
        return none, none
    time = samples.time_ns - t.trace.epoch_ns
    i = np.searchsorted(pieces.start, time, side="right") - 1
    inside = (i >= 0) & (time < pieces.end[np.maximum(i, 0)]) & (samples.running >= 0)
    inside &= samples.place >= 0
    still = samples.running == 0
    at = samples.place[inside]
    num = np.bincount(at, minlength=len(samples.places) + 1)
    idles = np.bincount(at, still[inside], minlength=len(num)) >= least * np.maximum(num, 1)
    seen = np.bincount(i[inside], minlength=len(pieces.start))
    waiting = np.bincount(i[inside & still & idles[samples.place]], minlength=len(pieces.start))
    return seen, waiting


def waits(t: Tables, pieces: Intervals) -> Mask:
    """Return which pieces the thread spent waiting, as far as the sampler shows.

    Samples are few: a piece into which none fell is taken for what the others are that come before the same operator.
    """
    seen, waiting = waiting_share(t, pieces)
    alike = _what_follows(t, pieces)
    seen_alike, waiting_alike = (np.bincount(alike, n.astype(np.float64))[alike] for n in (seen, waiting))
    sampled = seen > 0
    seen, waiting = np.where(sampled, seen, seen_alike), np.where(sampled, waiting, waiting_alike)
    # Of the samples in a host gap.
    found: Mask = (seen > 0) & (waiting >= PREVAILS * seen)
    return found


def _what_follows(t: Tables, pieces: Intervals) -> Ints:
    """Return the name of the operator that starts first after each piece, one that no operator has at the end."""
    rows = t.host_rows(Kind.OP)
    names = np.append(t.trace.events.name[rows], len(t.trace.names))
    following: Ints = names[np.searchsorted(t.trace.events.start[rows], pieces.end)]
    return following


# All of the host's work that a cause stands for, also where the device was busy meanwhile.
#
# A finding names the idle time that its cause left behind. Its cause goes from the step as a whole: what ran under the
# device goes as well, and the host then launches earlier.

MAX_FETCH_NS = 200_000  # of a batch that workers have ready: 0.05 to 0.2 ms on the training thread
MIN_LOADING_SHARE = 0.1  # of the window: less is what it takes to fetch a batch that is there


def host_work(t: Tables, cause: Cause, pieces: Intervals) -> Intervals:
    """Return the host's work behind the idle pieces of a cause; nothing where only the pieces are known."""
    found = _WORK.get(cause)
    work = found(t, pieces) if found is not None else EMPTY
    latency = t.launch_latency or 0
    # What the host does now, the device feels one launch latency later; where that is a few µs, idle and work coincide.
    return union(work, (pieces.start - latency, pieces.end - latency)) if latency > MIN_LATENCY_NS else work


def waits_for_workers(t: Tables, without: str) -> bool:
    """Return whether the device idles, also without a rule's cause, until workers have loaded the next batch."""
    if t.kinds.get(without) == "loading":
        return False
    pieces = _waits_for_batches(t)
    idle = int((t.causes.end - t.causes.start)[pieces].sum())
    return idle > MIN_LOADING_SHARE * (t.steps.window[1] - t.steps.window[0]) and not loads_in_process(t)


def _waits_for_batches(t: Tables) -> Rows:
    """Return the rows of the pieces of idle time that loading takes."""
    loads = np.array([t.kinds.get(rule) == "loading" for rule in t.causes.rules], bool)
    return np.flatnonzero(loads[t.causes.rule])


def loads_in_process(t: Tables) -> bool:
    """Return whether the training process itself loads batches, as the loader's name has it."""
    rows = t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)
    return any("SingleProcess" in t.trace.names[name] for name in distinct(t.trace.events.name[rows]).tolist())


def is_paced_by_workers(t: Tables, without: str) -> bool:
    """Return whether steps come as often as workers load batches, also without a rule's cause.

    They do where the device idles for several batches: what makes a step shorter makes the next wait longer. A wait for
    one batch may be for workers that had just been started.
    """
    if not waits_for_workers(t, without):
        return False
    fetches = np.sort(t.trace.events.start[t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)], kind="stable")
    fetch = np.searchsorted(fetches, t.causes.start[_waits_for_batches(t)], side="right")
    return len(distinct(fetch)) > 1


def _allocating(t: Tables, _pieces: Intervals) -> Intervals:
    return t.covering(allocations(t))


def _collecting(t: Tables, _pieces: Intervals) -> Intervals:
    return collections(t)


def _compiling(t: Tables, _pieces: Intervals) -> Intervals:
    return t.covering(np.concatenate([compile_frames(t), code_loads(t)]))


def _loading(t: Tables, _pieces: Intervals) -> Intervals:
    """Return the loading beyond what fetching a batch takes that is there: as long as the shortest call, or less."""
    calls = t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    start, end = t.trace.events.start[calls], t.trace.events.end[calls]
    fetch_ns = min(int((end - start).min(initial=MAX_FETCH_NS)), MAX_FETCH_NS)
    return union((start + fetch_ns, end))


def _between_operators(t: Tables, pieces: Intervals) -> Intervals:
    """Return the Python between operators: the intervals that a piece touches, and those that show to be Python.

    What other causes take of them is not Python's: collections, calls of the driver, and waits for other processes.
    """
    gaps = t.host_gaps
    touched = overlaps(pieces, gaps.start, gaps.end)
    python = union(Intervals(gaps.start[touched], gaps.end[touched]), t.python_gaps)
    others = union(_collecting(t, pieces), _allocating(t, pieces), _compiling(t, pieces), host_exchanges(t))
    return subtract(python, others)


_WORK: Mapping[Cause, Callable[[Tables, Intervals], Intervals]] = {
    "loading": _loading,
    "allocation": _allocating,
    "collection": _collecting,
    "compilation": _compiling,
    "between-operators": _between_operators,
}


# Long intervals of the host inside operators that called nothing: they computed, or the thread was interrupted.

# Dispatching one operator takes 5 to 50 µs, recorded with stacks and shapes up to 250: an operator that is silent for
# ``LONG_NS`` computes, compiles or loads.
MIN_SILENT_STEP_SHARE = 0.8  # in which the same call is silent, as a plan for a new shape
# Allocations and views: they touch no element, whatever their size. Where one copies, another operator does it.
NEVER_COMPUTES = re.compile(
    r"^aten::(new_)?empty(_\w+)?$|^aten::(_conj|_neg_view|_reshape_alias|_unsafe_view|adjoint|alias|as_strided_?"
    r"|atleast_[123]d|broadcast_to|chunk|conj|contiguous|detach_?|diagonal|dsplit|expand|expand_as|flatten|hsplit|imag"
    r"|lift_fresh|linalg_diagonal|matrix_H|mH|moveaxis|movedim|mT|narrow|numpy_T|permute|positive|ravel|real|reshape"
    r"|reshape_as|resize_|resolve_conj|resolve_neg|select|set_|slice|split|split_with_sizes|squeeze_?|swapaxes|swapdims"
    r"|t|tensor_split|to|transpose_?|unbind|unflatten|unfold|unsafe_chunk|unsafe_split|unsqueeze_?|view|view_as"
    r"|view_as_complex|view_as_real|vsplit)$"
)
# Calls that neither wait for the device nor load anything.
_INSTANT = re.compile(
    r"^(cuda|hip|cu)(Event(Record|Query)|Stream(Query|WaitEvent|IsCapturing|GetCaptureInfo)|Get(Device|LastError)$"
    r"|PeekAtLastError|PointerGetAttribute|ThreadExchangeStreamCaptureMode)"
)
_WRAPS = r"^(autograd|torch|c10d)::|Backward\d*$"


def host_compute(t: Tables) -> Intervals:
    """Return where operators computed on a thread that launches, in gaps that it was late for.

    That are silent intervals of operators, and intervals without any call that many short operators fill for more
    than a half.
    """
    silent = (_chosen(intervals, _computes(t, rows)) for intervals, rows in t.silent_operators)
    return union(*silent, intersect(t.filled_by_operators, t.gaps.unlaunched()))


def filled_by_operators(t: Tables) -> Intervals:
    """Return the intervals without any call that operators which make none, and can compute, fill for more than a half.

    Silent ones are left out: each of them is judged by itself.
    """
    others = union(t.host_gaps, *(intervals for intervals, _ in t.silences.values()))
    intervals = longer_than(subtract(without_calls(t), others), LONG_NS)
    return _chosen(intervals, operator_share(t, intervals, t.computing_operators) > MAJORITY)


def computing_operators(t: Tables) -> Rows:
    """Return the operators of the threads that launch, but for allocations, views, and what only wraps others."""
    rows = t.host_rows(Kind.OP)
    names = t.trace.events.name[rows]
    idle = [
        i
        for i in distinct(names).tolist()
        if NEVER_COMPUTES.search(text := t.trace.names[i]) or re.search(_WRAPS, text)
    ]
    found: Rows = rows[~among(names, np.array(idle, names.dtype))]
    return found


def interruptions(t: Tables) -> Intervals:
    """Return the silent intervals of operators that do not compute: the thread was taken off its core, or recorded.

    So is a call of a millisecond that only notes or asks something, which takes microseconds.
    """
    if not t.silent_operators:
        return EMPTY
    noted = distinct(t.calls(_INSTANT), t.known_kernel_calls)
    calls = longer_than(t.covering(noted), LONG_NS)
    return union(calls, *(_chosen(intervals, ~_computes(t, rows)) for intervals, rows in t.silent_operators))


def without_operators(t: Tables) -> Intervals:
    """Return the long intervals outside operators and the interruptions within, where nothing was launched."""
    return intersect(union(t.host_gaps, interruptions(t)), t.gaps.unlaunched())


def _chosen(intervals: Intervals, which: Mask) -> Intervals:
    return Intervals(intervals.start[which], intervals.end[which])


def _computes(t: Tables, operators: Rows) -> Mask:
    """Return which of the silent operators can have filled their silence themselves.

    Allocations and views cannot. What launches device work, or wraps other operators, prepares a launch, which takes
    microseconds: it computes only where its like are silent in most of their calls, or the same call of each step is.
    """
    names, all_names = t.trace.events.name[operators], t.trace.events.name
    prepares, silent = _launching(t, operators), np.concatenate([rows for _, rows in t.silences.values()])
    ops = t.in_window(t.host_rows(Kind.OP))
    found = np.ones(len(operators), bool)
    for name in distinct(names).tolist() if len(names) else []:
        text, mine = t.trace.names[name], names == name
        like, silent_like = ops[all_names[ops] == name], distinct(silent[all_names[silent] == name])
        if NEVER_COMPUTES.search(text):
            found[mine] = False
        elif len(silent_like) < MAJORITY * len(like) and not _one_of_each_step(t, like, silent_like):
            found[mine] = ~prepares[mine] & (re.search(_WRAPS, text) is None)
    return found


def _one_of_each_step(t: Tables, like: Rows, silent: Rows) -> bool:
    """Return whether the silent calls are the same ones of nearly each step, counted from its begin: not by chance."""
    start = np.sort(t.trace.events.start[like], kind="stable")
    first = np.searchsorted(start, t.steps.start)
    began = t.trace.events.start[silent]
    step = np.searchsorted(t.steps.start, began, side="right") - 1
    place = np.searchsorted(start, began)[step >= 0] - first[step[step >= 0]]
    steps_at = np.bincount(place) if len(place) else np.zeros(1, np.int64)
    return bool(steps_at.max() >= max(MIN_SILENT_STEP_SHARE * t.steps.num, MIN_RECURRENCES))


def _launching(t: Tables, operators: Rows) -> Mask:
    """Return which operators launched device tasks, on their own thread."""
    events, launch = t.trace.events, t.tasks.launch[t.tasks.launch >= 0]
    found = np.zeros(len(operators), bool)
    for thread in t.threads:
        begun = np.sort(events.start[launch[events.thread[launch] == thread]], kind="stable")
        first, last = np.searchsorted(begun, (events.start[operators], events.end[operators]))
        found |= (events.thread[operators] == thread) & (last > first)
    return found


def silent_operators(t: Tables) -> Sequence[tuple[Intervals, Rows]]:
    """Return, for each thread that launches, its silent intervals in gaps that it was late for, and their operators.

    Where launches are not linked to tasks they may not have been recorded either, and silence shows nothing.
    """
    if t.device_id < 0 or launches_unlinked(t.tasks):
        return ()
    gaps, events = t.gaps, t.trace.events
    thread = np.where(gaps.launch >= 0, events.thread[gaps.launch], t.main)
    found = []
    for each, (intervals, operators) in t.silences.items():
        late = thread == each
        unlaunched = union((gaps.start[late], gaps.launch_start[late]))
        mine = intersect(intervals, unlaunched)
        at = np.searchsorted(intervals.start, mine.start, side="right") - 1
        found.append((mine, operators[at]))
    return found


def silences(t: Tables) -> Mapping[int, tuple[Intervals, Rows]]:
    """Return, for each thread that launches, the intervals without an event that one operator is innermost in."""
    events, found = t.trace.events, {}
    for thread in t.threads:
        begin, end = _silences(events, host_rows(t.trace, thread, Kind.OP, Kind.ANNOTATION, Kind.RUNTIME))
        around = t.work_layers[thread].at_each((begin + end) // 2)
        operator = np.array([rows[-1] if rows else -1 for rows in around], np.intp)
        is_op = (operator >= 0) & (events.kind[operator] == Kind.OP)
        found[thread] = (Intervals(begin[is_op], end[is_op]), operator[is_op])
    return found


def _silences(events: Events, rows: Rows) -> tuple[Ints, Ints]:
    """Return the long intervals in which none of the events, in time order, begins or ends.

    They lie between two begins that are as far apart, so only the ends of these intervals are put in order.
    """
    if not len(rows):
        return EMPTY
    start, end = events.start[rows], events.end[rows]
    following = np.append(start[1:], end.max() + 1)
    far = following - start >= LONG_NS
    far[-1] = True
    apart = Intervals(start[far], following[far])
    edges = np.concatenate([*apart, end[contains(apart, end)]])
    edges.sort(kind="stable")
    long = np.diff(edges) >= LONG_NS
    long &= contains(apart, edges[:-1])  # what lies between two of these intervals is not silent
    return edges[:-1][long], edges[1:][long]

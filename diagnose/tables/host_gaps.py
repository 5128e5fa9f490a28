"""Host gaps: long intervals in which the training thread ran Python, files or waits: no launch, hardly an operator."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Floats, Ints, Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import (
    EMPTY,
    Intervals,
    covered,
    distinct,
    grouped,
    intersect,
    longer_than,
    span,
    subtract,
    union,
)
from diagnose.tables import Tables, host_table
from diagnose.tables.autograd_waits import autograd_waits
from diagnose.tables.gaps import launches_unlinked
from diagnose.tables.host import host_rows
from diagnose.tables.names import LOADER_NEXT
from diagnose.tables.native import runs_no_python

__all__ = [
    "gaps_between_own_operators",
    "gaps_of_every_step",
    "host_gaps",
    "min_host_gap_ns",
    "operator_share",
    "ordinals",
    "outside_operators",
    "python_gaps",
    "ready_share",
    "recurring_gaps",
    "waiting_share",
    "waits",
    "without_calls",
]

# Between two operators of a model Python takes 10 to 250 µs even with stacks recorded; what is longer is something
# else. In short steps a tenth of the step is long already.
GAP_NS = 1_000_000
MIN_GAP_NS = 200_000
GAP_STEP_SHARE = 0.1
# Of the samples at a line. On busy cores up to a fifth of those at a line that only sleeps find it ready to run: the
# wait is over, and it waits for a core.
MIN_LINE_WAIT_SHARE = 0.75
MIN_RECURRENCES = 3  # of a host gap, from which on it is part of a loop whose steps are not marked
STEADY_SHARE = 0.6  # of the steps, in which a host gap comes at the same place
MIN_PIECE_WAIT_SHARE = 0.7  # of the samples in a host gap
MAX_OPERATOR_SHARE = (
    0.5  # of an interval without a call: where operators cover more of it, they are what takes the time
)
MAX_APART_NS = 50_000  # between a host gap and the events of the thread that surround it


def min_host_gap_ns(t: Tables) -> int:
    """Return how long an interval between operators must be to count as a host gap, ns."""
    return int(np.clip(GAP_STEP_SHARE * t.steps.step_ns, MIN_GAP_NS, GAP_NS))


@host_table
def host_gaps(t: Tables) -> Intervals:
    """Return the long intervals between operators within the window, loading left out.

    Short operators that call nothing do not end one: Python that works on tensors of the host, or only makes views,
    calls thousands of them, and the device gets nothing from it. They must cover less than half of an interval of at
    least a millisecond: in less the framework may be preparing a launch.
    """
    between = longer_than(outside_operators(t), min_host_gap_ns(t))
    events, ops = t.trace.events, t.host_rows(Kind.OP)
    long = ops[events.end[ops] - events.start[ops] >= MIN_GAP_NS]
    intervals = longer_than(subtract(without_calls(t), t.covering(long)), GAP_NS)
    python = operator_share(t, intervals, ops) < MAX_OPERATOR_SHARE
    return union(between, Intervals(intervals.start[python], intervals.end[python]))


@host_table
def without_calls(t: Tables) -> Intervals:
    """Return the time of the window outside loading, runtime calls and the operators that make such calls.

    Nothing where there is no device, or where calls may not have been recorded: operators are the work then.
    """
    if t.device_id < 0 or launches_unlinked(t.tasks):
        return EMPTY
    busy = [t.covering(t.host_rows(Kind.RUNTIME)), t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))]
    busy += [t.covering(_that_call(t, thread)) for thread in t.threads]
    return subtract(span(*t.steps.window), union(*busy))


def operator_share(t: Tables, intervals: Intervals, operators: Rows) -> Floats:
    """Return the share of each interval that these operators cover."""
    within = covered(t.covering(operators), intervals.start, intervals.end)
    share: Floats = within / np.maximum(intervals.end - intervals.start, 1)
    return share


def _that_call(t: Tables, thread: int) -> Rows:
    """Return the operators of a thread that a runtime call lies in."""
    events = t.trace.events
    rows, calls = (host_rows(t.trace, thread, kind) for kind in (Kind.OP, Kind.RUNTIME))
    first, last = np.searchsorted(events.start[calls], (events.start[rows], events.end[rows]))
    found: Rows = rows[last > first]
    return found


@host_table
def python_gaps(t: Tables) -> Intervals:
    """Return the host gaps of which something shows that the thread was in the loop, and ran Python.

    Frames and annotations around them show it, that they come back before the same operator, and that the launching
    thread's own events surround them. A capture that sampled the thread has watched it all the time. A program that
    runs no Python has none; nor has a thread within backward() that waits for autograd's other threads.
    """
    if runs_no_python(t):
        return EMPTY
    gaps = host_gaps(t)
    if t.capture.samples is not None:
        return subtract(gaps, autograd_waits(t))
    inside = intersect(gaps, t.covering(t.host_rows(Kind.PYTHON, Kind.ANNOTATION)))
    return subtract(union(inside, recurring_gaps(t), gaps_between_own_operators(t)), autograd_waits(t))


def gaps_between_own_operators(t: Tables) -> Intervals:
    """Return the host gaps that one launching thread's own events surround: it lived, and ran Python between them.

    Its operators must lie before and behind; a thread without any may belong to a program that runs no Python.
    """
    gaps, events = host_gaps(t), t.trace.events
    mine = np.zeros(len(gaps.start), bool)
    for thread in t.launch_threads:
        own, ops = host_rows(t.trace, thread, Kind.OP, Kind.RUNTIME), host_rows(t.trace, thread, Kind.OP)
        if not len(ops):
            continue
        ended = np.sort(events.end[own], kind="stable")
        before = np.searchsorted(ended, gaps.start, side="right") - 1
        after = np.searchsorted(events.start[own], gaps.end)
        close = (before >= 0) & (after < len(own))
        close &= gaps.start - ended[np.maximum(before, 0)] <= MAX_APART_NS
        close &= events.start[own][np.minimum(after, len(own) - 1)] - gaps.end <= MAX_APART_NS
        mine |= close & (events.start[ops[0]] < gaps.start) & (events.start[ops[-1]] >= gaps.end)
    return Intervals(gaps.start[mine], gaps.end[mine])


def recurring_gaps(t: Tables) -> Intervals:
    """Return the host gaps that come back before the same operator, as often as steps do: they are part of the loop."""
    gaps = host_gaps(t)
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
    gaps, events = host_gaps(t), t.trace.events
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


def waiting_share(t: Tables, pieces: Intervals) -> tuple[Ints, Ints]:
    """Return, for each piece, how many samples fell into it and how many of them found the thread waiting.

    Waiting means at a line that waits nearly always: one that sleeps, or reads a socket. Where a line computes as
    well, as a checkpoint does between its writes, a sample that finds it off the CPU is no evidence.
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
    idles = np.bincount(at, still[inside], minlength=len(num)) >= MIN_LINE_WAIT_SHARE * np.maximum(num, 1)
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
    found: Mask = (seen > 0) & (waiting >= MIN_PIECE_WAIT_SHARE * seen)
    return found


def _what_follows(t: Tables, pieces: Intervals) -> Ints:
    """Return the name of the operator that starts first after each piece, one that no operator has at the end."""
    rows = t.host_rows(Kind.OP)
    names = np.append(t.trace.events.name[rows], len(t.trace.names))
    following: Ints = names[np.searchsorted(t.trace.events.start[rows], pieces.end)]
    return following

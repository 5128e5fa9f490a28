"""Host gaps: long intervals in which the training thread ran no operator and made no call (Python, files, waiting)."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints, Mask
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, longer_than, span, subtract
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import LOADER_NEXT

__all__ = [
    "host_gaps",
    "min_host_gap_ns",
    "outside_operators",
    "ready_share",
    "recurring_gaps",
    "waiting_share",
    "waits",
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
MIN_PIECE_WAIT_SHARE = 0.7  # of the samples in a host gap


def min_host_gap_ns(t: Tables) -> int:
    """Return how long an interval between operators must be to count as a host gap, ns."""
    return int(np.clip(GAP_STEP_SHARE * t.steps.step_ns, MIN_GAP_NS, GAP_NS))


@shared_table
def host_gaps(t: Tables) -> Intervals:
    """Return the long intervals between operators within the window, loading left out."""
    return longer_than(outside_operators(t), min_host_gap_ns(t))


def recurring_gaps(t: Tables) -> Intervals:
    """Return the host gaps that come back before the same operator, as often as steps do: they are part of the loop."""
    gaps = host_gaps(t)
    if not len(gaps.start):
        return gaps
    alike = _what_follows(t, gaps)
    mine = np.bincount(alike)[alike] >= max(MIN_RECURRENCES, t.steps.num / 2)
    mine &= alike < len(t.trace.names)  # what nothing follows is the end of the recording
    return Intervals(gaps.start[mine], gaps.end[mine])


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

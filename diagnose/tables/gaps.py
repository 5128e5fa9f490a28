"""The idle regions of the device and what bound the task after each: its own launch, or something on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.events import Trace
from diagnose.model.intervals import Intervals, among, distinct, intersect, quantiles, subtract, total, union
from diagnose.model.limits import AT_ONCE_NS, MAJORITY
from diagnose.tables.device import Tasks

# Launch latency: from the end of a launch to the start of its task, on a device that has nothing else to do.
#
# It is 2 to 3 µs on most machines, 14 to 24 on some HIP ones, over 100 under virtualisation. Where it is longer than
# what the host needs for one launch, launches are in flight together, and none meets an idle device that has nothing
# coming: each task starts one latency after its launch all the same.

MIN_LATENCY_NS = 10_000  # of the bound, and the bound where nothing can be measured
MAX_LATENCY_NS = 500_000
LATENCY_SPREAD = 1.5  # from the median to the bound; the upper quartile lies at 1.05 to 1.4 times the median
MIN_DELAYS = 5  # that tell the usual one
MIN_DEVICE_PAUSE_NS = 5_000  # queued tasks follow each other in less; what is longer waited for something


def late_tasks(trace: Trace, tasks: Tasks) -> Mask:
    """Return which tasks were launched onto an empty device: everything before had finished when the launch began."""
    known = tasks.launch >= 0
    order = np.argsort(tasks.start, kind="stable")
    ended = np.empty(len(order), np.int64)
    ended[order] = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(tasks.end[order])[:-1])
    late: Mask = known & (trace.events.start[tasks.launch] >= ended)
    return late


def launch_latency(trace: Trace, tasks: Tasks, idle: Intervals) -> int | None:
    """Return the median time from the end of a launch to the task's start where nothing else held the task, ns.

    Measured on launches onto an empty device. Where those are too few, on tasks that end a pause of the device, if
    they all begin equally long after their launches: what waited for anything but its launch begins at any time.
    Copies are left out, since many of their calls return only when the copy is done. None where neither is seen.
    """
    kernels = (tasks.launch >= 0) & ~(tasks.is_copy | tasks.is_collective)
    delay = tasks.start - trace.events.end[tasks.launch]
    onto_empty = delay[kernels & late_tasks(trace, tasks) & (delay >= 0)]
    if len(onto_empty) >= MIN_DELAYS:
        return int(np.median(onto_empty))
    # Which tasks end a pause of the device.
    pauses = idle.end[idle.end - idle.start >= MIN_DEVICE_PAUSE_NS]
    after_pause = among(tasks.start, pauses)
    delay = delay[kernels & after_pause]
    if len(delay) < MIN_DELAYS:
        return None
    low, middle, high = quantiles(delay, 0.25, 0.5, 0.75)
    close = low * LATENCY_SPREAD >= middle and high <= LATENCY_SPREAD * middle
    return int(middle) if 0 < middle <= MAX_LATENCY_NS and close else None


def latency_bound(latency: int | None) -> int:
    """Return up to which length a pause before a task belongs to its launch, ns."""
    return int(np.clip(LATENCY_SPREAD * (latency or 0), MIN_LATENCY_NS, MAX_LATENCY_NS))


def launches_unlinked(tasks: Tasks) -> bool:
    """Return whether the file links most tasks to no launch; a longer gap is then taken to be the host's."""
    return bool(len(tasks.launch)) and float((tasks.launch >= 0).mean()) < MAJORITY


class Gaps(NamedTuple):
    """One row an idle region, in time order; the host's part comes first, until ``queued_at``."""

    start: Ints
    end: Ints
    launch_start: Ints  # until here nothing was launched for the task after; the launch, if any, begins
    queued_at: Ints  # until here the task after was not queued yet: the host's part; from here on the device's part
    before: Rows  # row of Tasks that ended last before it, -1 at the window's start
    after: Rows  # row of Tasks that ends it, -1 at the window's end
    launch: npt.NDArray[np.int32]  # row of Trace.events: the call that queued `after`, -1 where unknown
    late: Mask  # the launch began after the gap did
    cross_stream: Mask  # queued task after, and the one before ran on another stream only
    latency_ns: int = MIN_LATENCY_NS  # up to here a pause before a task belongs to its launch

    def unlaunched(self) -> Intervals:
        """Return the parts in which nothing had been launched yet."""
        return union((self.start, self.launch_start))

    def host_part(self, which: Mask | None = None) -> Intervals:
        """Return the host's parts, of all gaps or of the chosen ones."""
        keep = slice(None) if which is None else which
        return union((self.start[keep], self.queued_at[keep]))

    def stream_waits(self) -> Mask:
        """Return which gaps are waits for a task on another stream: they end when that does, but for what it takes."""
        # From the end of a task on another stream to the start of the one that waits for it.
        found: Mask = self.cross_stream & (self.end - self.start <= max(AT_ONCE_NS, self.latency_ns))
        return found

    def device_part(self, which: Mask | None = None) -> Intervals:
        """Return the device's parts, of all gaps or of the chosen ones."""
        keep = slice(None) if which is None else which
        return union((self.queued_at[keep], self.end[keep]))


def find_gaps(trace: Trace, tasks: Tasks, idle: Intervals, launch_latency: int | None) -> Gaps:
    """Return the idle regions with their neighbours and their launch.

    A task that starts one launch latency after its launch waited for nothing else, also where the launch was in flight
    before the gap began: all of that gap is the host's part. In a file without any launch nothing is.
    """
    latency = latency_bound(launch_latency)
    start, end = idle
    num = len(tasks.start)
    after = np.searchsorted(tasks.start, end, side="left")
    has_after = after < num
    after = np.where(has_after, after, -1)
    by_end = np.argsort(tasks.end, kind="stable")
    before = np.append(by_end, -1)[np.searchsorted(tasks.end[by_end], start, side="right") - 1]  # the last to end
    launch = np.where(has_after, tasks.launch[after] if num else -1, -1).astype(np.int32)
    known = launch >= 0
    events = trace.events
    launch_start = np.where(known, events.start[launch], start)
    returned = np.where(known, events.end[launch], start)
    late = (known & (launch_start > start)) | ~has_after
    if launches_unlinked(tasks) and (tasks.launch >= 0).any():
        late |= ~known & (end - start >= latency)
        returned = np.where(~known & late, end, returned)
        launch_start = np.where(~known & late, end, launch_start)
    in_flight = known & (end - returned <= LATENCY_SPREAD * (launch_latency or 0))
    queued_at = np.where(late | in_flight, returned + latency, returned)
    queued_at = np.where(has_after, np.clip(queued_at, start, end), end)
    launch_start = np.where(has_after, np.clip(launch_start, start, queued_at), end)
    return Gaps(
        start,
        end,
        launch_start,
        queued_at,
        before,
        after,
        launch,
        late,
        _cross_stream(tasks, start, before, after, known),
        latency,
    )


def _cross_stream(tasks: Tasks, start: Ints, before: Rows, after: Rows, known: Mask) -> Mask:
    """Return for each gap whether the task after can only have waited for a task on another stream."""
    if not len(tasks.start):
        return np.zeros(len(start), bool)
    between: Mask = known & (before >= 0) & (after >= 0) & (tasks.stream[before] != tasks.stream[after])
    if between.any():  # of several that end together one may be the own stream's
        rows = np.flatnonzero(between)
        streams = distinct(tasks.stream)
        stream = np.searchsorted(streams, tasks.stream)
        ended = tasks.end * len(streams) + stream
        between[rows] = ~among(start[rows] * len(streams) + stream[after[rows]], ended)
    return between


def one_gap(start: int, end: int) -> Gaps:
    """Return the window of a trace without a device as one region that is the host's from end to end."""
    none = np.full(1, -1, np.intp)
    one = np.ones(1, np.int64)
    launch, late, cross_stream = none.astype(np.int32), np.ones(1, bool), np.zeros(1, bool)
    return Gaps(start * one, end * one, end * one, end * one, none, none, launch, late, cross_stream)


# Every idle nanosecond gets exactly one cause.
#
# Each idle rule claims the intervals that it can account for; the rules run in their fixed order, and each takes what
# is still unclaimed. So the pieces tile the idle time whatever the rules return: the invariant does not depend on
# them.


class Causes(NamedTuple):
    """The idle time in pieces, in time order; columns are parallel."""

    start: Ints
    end: Ints
    rule: npt.NDArray[np.int16]  # row of rules
    gap: Rows  # row of Gaps that the piece is part of
    rules: tuple[str, ...]

    def of(self, *rules: str) -> Rows:
        """Return the rows of the pieces that some rules account for."""
        return np.flatnonzero(among(self.rule, [i for i, rule in enumerate(self.rules) if rule in rules]))

    def pieces(self, *rules: str) -> Intervals:
        """Return the time that some rules account for."""
        rows = self.of(*rules)
        return Intervals(self.start[rows], self.end[rows])

    def totals(self) -> Mapping[str, int]:
        """Return idle ns by rule, the largest first; rules without any are left out."""
        sums = np.bincount(self.rule, (self.end - self.start).astype(np.float64), minlength=len(self.rules))
        order = np.argsort(-sums, kind="stable")
        return {self.rules[i]: round(sums[i]) for i in order if sums[i] > 0}


def assign(
    gaps: Gaps, idle: Intervals, claims: Iterable[tuple[str, Callable[[Intervals], Intervals]]], *, rest: str
) -> Causes:
    """Give each rule in turn what it claims of the time left; what no rule claims goes to ``rest``."""
    left = idle
    parts: list[tuple[str, Intervals]] = []
    for rule, claim in claims:
        mine = intersect(left, union(claim(left)))
        left = subtract(left, mine)
        parts.append((rule, mine))
        if not total(left):
            break
    parts.append((rest, left))
    rules = tuple(dict.fromkeys(rule for rule, _ in parts))
    start = np.concatenate([p.start for _, p in parts])
    end = np.concatenate([p.end for _, p in parts])
    which = np.concatenate([np.full(len(p.start), rules.index(rule), np.int16) for rule, p in parts])
    order = np.argsort(start, kind="stable")
    start, end, which = start[order], end[order], which[order]
    gap = np.searchsorted(gaps.start, start, side="right") - 1
    return Causes(start, end, which, gap, rules)

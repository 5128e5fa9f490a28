"""The recorded steps as they would have run without the profiler.

Recording an event costs the thread that it happens on one to three microseconds. A step of nine thousand events on a
slow host takes twice as long while it is recorded, and then most of its gaps are the profiler's. Steps are timed
without it as well, so the cost of an event is what makes the replayed step as much shorter as unrecorded steps are;
every event is then moved to where the replay without that cost has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats, Ints, Mask, Rows
from diagnose.model.capture import Capture, Samples
from diagnose.model.events import Events, Kind, Trace
from diagnose.model.intervals import among, distinct, union
from diagnose.replay.build import graph_of
from diagnose.replay.graph import Edge, Graph, Times
from diagnose.replay.simulate import owners, period_ns, simulate, step_ends
from diagnose.tables import Tables
from diagnose.tables.host import host_rows

MAX_RECORDING_NS = 5_000.0  # 0.7 to 1.6 µs on some hosts, 3.4 µs on a virtual machine with an H100
HIDDEN_EVENT_NS = 2_000.0  # where it could not be measured
USUAL_EVENT_NS = 1_000.0  # of recording an operator, if no unrecorded steps show it: 0.7 to 1.6 µs on most machines
MIN_LEFT = 0.1  # of a segment of host work: even the cheapest operator computes something
CALL_WEIGHT = 3  # what a call of the runtime costs against an operator: 7.9 against 2.5 µs on that machine
FRAME_WEIGHT = 0.3  # what a frame of Python costs against an operator: 0.17 µs where operators took 0.4 to 0.6
MIN_CALL_LEFT = 0.4  # of a blocking call, and of the time from a launch call to its task or from a task to a call's end
MIN_COST_EXPLAINED = 0.6  # of what recorded steps are longer
MIN_EXPLAINED_UNDISTURBED = 0.4  # of that by the steps which other things disturbed least
HOST_EDGES = (Edge.THREAD, Edge.HANDOFF, Edge.CALL)


class Unrecorded(NamedTuple):
    """A capture with its timing trace moved to where it would have been."""

    capture: Capture
    event_cost_ns: float
    recorded_ns: float  # step as replayed with the profiler
    step_ns: float  # and without it


def unrecorded(
    t: Tables,
    unprofiled_ns: float,
    undisturbed_ns: float = 0.0,
    certain_ns: float = float("inf"),
    host_ns: float = float("inf"),
) -> Unrecorded | None:
    """Return the capture without the cost of recording it, None where the replay takes no such cost for a step's.

    ``unprofiled_ns`` is what a step takes without the profiler, ``host_ns`` what the host takes at most for its
    quickest one: a device that works longer than the host hides what recording costs, and the host's own steps show it.
    Where even the highest plausible cost of an event does not explain most of the difference, something else made
    recorded steps slow too, and ``undisturbed_ns`` is taken out: how much longer the least disturbed steps were while
    they were recorded. Where little of that is explained, the steps stay. ``certain_ns`` is how much longer recorded
    steps are at least. Where the host waits for the device, what it no longer does for the profiler it waits, so a much
    lower cost of an event explains nearly as much: its error is the distance to the lowest that does.
    """
    graph = graph_of(t)
    if len(graph) < 2:
        return None
    owner, number = owners(t, graph), _events_inside(t, graph)

    def step(cost_ns: float) -> float:
        return period_ns(graph, simulate(_cheaper(graph, number, cost_ns)), owner)

    recorded_ns = step(0.0)
    is_whole = t.steps.start[1:] >= t.steps.window[0]
    by_host = _host_cost_ns(graph, owner, number, is_whole, host_ns) if is_whole.any() else None
    by_step = _cost_ns(step, recorded_ns, unprofiled_ns, undisturbed_ns)
    if by_host is None and by_step is None:
        return None
    high = max(by_host or 0.0, by_step or 0.0)
    lowest = _cost_ns(step, recorded_ns, max(recorded_ns - certain_ns, unprofiled_ns), 0.0) if by_step else high
    lowest = max(lowest, by_host or 0.0) if lowest is not None else by_host
    changed = _cheaper(graph, number, high)
    times = simulate(changed)
    moved = _Moved(t, changed, times)
    samples = t.capture.samples
    capture = replace(
        t.capture,
        trace=moved.trace(),
        samples=moved.samples(samples),
        event_cost_ns=high,
        event_cost_error_ns=max(high - lowest, 0.0) if lowest is not None else 0.0,
        unmoved_samples=samples,
    )
    return Unrecorded(capture, high, recorded_ns, period_ns(changed, times, owner))


def _cost_ns(
    step: Callable[[float], float], recorded_ns: float, unprofiled_ns: float, undisturbed_ns: float
) -> float | None:
    """Return what an event costs for steps to be as long as unrecorded ones, None where no such cost explains them."""
    low, high = 0.0, MAX_RECORDING_NS
    if unprofiled_ns >= recorded_ns:
        return None
    shortest, wanted_ns = step(high), unprofiled_ns
    if recorded_ns - shortest < MIN_COST_EXPLAINED * (recorded_ns - unprofiled_ns):
        wanted_ns = recorded_ns - undisturbed_ns
        if undisturbed_ns <= 0 or recorded_ns - shortest < MIN_EXPLAINED_UNDISTURBED * undisturbed_ns:
            return None
    # Of the cost of an event.
    while shortest <= wanted_ns and high - low > 20.0:
        middle = (low + high) / 2
        low, high = (middle, high) if step(middle) > wanted_ns else (low, middle)
    return high


def _host_cost_ns(graph: Graph, owner: Rows, number: Floats, is_whole: Mask, host_ns: float) -> float | None:
    """Return what an event costs for the host to take so long for its quickest step, None where no such cost does.

    ``is_whole`` says of each step but the first whether all of it lies in the graph.
    """
    alone = replace(
        graph,
        duration=np.where(graph.is_task, 0.0, graph.duration),
        delay=np.where(among(graph.kind, HOST_EDGES), graph.delay, 0.0),
    )

    def step(cost_ns: float) -> float:
        cheaper = _cheaper(alone, number, cost_ns)
        return float(np.diff(step_ends(cheaper, simulate(cheaper), owner))[is_whole].min())

    return _cost_ns(step, step(0.0), host_ns, 0.0)


def unrecorded_host(t: Tables, unprofiled_ns: float, undisturbed_ns: float = 0.0) -> Unrecorded | None:
    """Return the same of a capture without a device: operators are shorter by what recording them and theirs costs.

    What lies apart from operators, such as Python between them, stays as long as it was.
    """
    events, rows = t.trace.events, host_rows(t.trace, t.main, Kind.OP)
    if not len(rows):
        return None
    outer = union((events.start[rows], events.end[rows]))
    edges = np.column_stack([outer.start, outer.end]).ravel()  # operators and what lies between them, in turns
    num = np.diff(np.searchsorted(events.start[rows], edges))[::2]
    length = np.diff(edges).astype(np.float64)

    def knots(cost_ns: float) -> tuple[Ints, Floats]:
        left = length.copy()
        left[::2] = np.maximum(length[::2] - num * cost_ns, MIN_LEFT * length[::2])
        # What an operator's record costs lies before its start and after its end too.
        beside = (num * cost_ns - (length - left)[::2])[: len(length[1::2])]
        left[1::2] = np.maximum(length[1::2] - beside, MIN_LEFT * length[1::2])
        return edges, edges[0] + np.append(0.0, np.cumsum(left))

    def step(cost_ns: float) -> float:
        moved = knots(cost_ns)
        return float(np.median(warped(moved, t.steps.end) - warped(moved, t.steps.start)))

    recorded_ns = step(0.0)
    cost_ns = _cost_ns(step, recorded_ns, unprofiled_ns, undisturbed_ns)
    if cost_ns is None:
        return None
    moved, samples = knots(cost_ns), t.capture.samples
    begin, end = warped(moved, events.start), warped(moved, events.end)
    capture = replace(
        t.capture,
        trace=replace(t.trace, events=in_order(replace(events, start=begin, end=np.maximum(begin, end)))),
        samples=moved_samples(samples, t.trace.epoch_ns, moved),
        event_cost_ns=cost_ns,
        unmoved_samples=samples,
    )
    return Unrecorded(capture, cost_ns, recorded_ns, step(cost_ns))


def without_events(t: Tables, graph: Graph, cost_ns: float) -> Graph:
    """Return a graph of these steps without what recording costs the host, ``cost_ns`` for each of its events.

    Of a segment that a change made shorter the same share of its events is left.
    """
    number = t.cached("events inside", lambda: _events_inside(t, graph))  # of nodes that no change moves
    measured = (graph.end - graph.start).astype(np.float64)
    left = np.divide(graph.duration, measured, out=np.zeros(len(graph)), where=measured > 0)
    return _cheaper(graph, number * left, cost_ns)


def with_recording(t: Tables, measured: Graph, changed: Graph) -> Graph:
    """Return what a change made of ``measured``, with as much of the recording's cost as may be the host's own work.

    A segment gets back no more than was taken from it: where the least that is left of one was reached, that is less
    than its events cost. Of a segment that a change made shorter the same share was recording.
    """
    number, capture = t.cached("events inside", lambda: _events_inside(t, measured)), t.capture
    cost_ns = (capture.event_cost_ns, capture.event_cost_ns - capture.event_cost_error_ns)
    back = np.where(measured.is_task, 0.0, _given_back(measured.duration, number, cost_ns, MIN_LEFT))
    share = np.divide(back, measured.duration, out=np.zeros(len(back)), where=measured.duration > 0)
    later = _given_back(np.maximum(changed.delay, 0.0), _calls(changed), cost_ns, MIN_CALL_LEFT)
    longer = np.minimum(changed.duration, measured.duration) * share
    return replace(changed, duration=changed.duration + longer, delay=changed.delay + later)


def _given_back(left: Floats, number: Floats | Ints, cost_ns: tuple[float, float], min_left: float) -> Floats:
    """Return by how much longer times are that the higher of two costs of an event was taken from, with the lower."""
    high, low = cost_ns
    recorded = left + np.minimum(number * high, (1 / min_left - 1) * left)
    longer: Floats = recorded - np.minimum(number * low, (1 - min_left) * recorded) - left
    return np.maximum(longer, 0.0)


def recording_weight(kind: npt.NDArray[np.uint8]) -> Floats:
    """Return what recording host events of these kinds costs, against an operator."""
    return np.select([kind == Kind.RUNTIME, kind == Kind.PYTHON], [CALL_WEIGHT, FRAME_WEIGHT], 1.0)


def _events_inside(t: Tables, graph: Graph) -> Floats:
    """Return how many host events begin inside each segment of host work, by what recording each costs."""
    events = t.trace.events
    rows = t.host_rows(Kind.OP, Kind.RUNTIME, Kind.ANNOTATION, Kind.PYTHON)
    weight = recording_weight(events.kind[rows])
    number = np.zeros(len(graph))
    for thread in distinct(graph.lane[~graph.is_task]).tolist():
        nodes = np.flatnonzero(~graph.is_task & (graph.lane == thread))
        mine = events.thread[rows] == thread
        began, so_far = events.start[rows[mine]], np.append(0.0, np.cumsum(weight[mine]))
        inside = so_far[np.searchsorted(began, graph.end[nodes])] - so_far[np.searchsorted(began, graph.start[nodes])]
        number[nodes] = np.maximum(inside, 0)
    return number


def _cheaper(graph: Graph, number: Floats, cost_ns: float) -> Graph:
    """Return the graph without what recording adds to host work and to calls of the runtime."""
    less = np.minimum(number * cost_ns, (1 - MIN_LEFT) * graph.duration)
    sooner = np.minimum(_calls(graph) * cost_ns, (1 - MIN_CALL_LEFT) * np.maximum(graph.delay, 0.0))
    return replace(graph, duration=graph.duration - np.where(graph.is_task, 0.0, less), delay=graph.delay - sooner)


def _calls(graph: Graph) -> Ints:
    """Return how many times the cost of an event lies on each edge: on a call, and about a launch or a wait."""
    around = (graph.kind == Edge.LAUNCH) | (graph.kind == Edge.WAIT)
    return np.select([graph.kind == Edge.CALL, around], [CALL_WEIGHT, 1], 0)


class _Moved:
    """Moves events: device tasks to their replayed times, host events along with the work around them."""

    def __init__(self, t: Tables, graph: Graph, times: Times) -> None:
        self._t, self._graph, self._times = t, graph, times
        self._host = {
            thread: self._knots(np.flatnonzero(~graph.is_task & (graph.lane == thread)))
            for thread in distinct(graph.lane[~graph.is_task]).tolist()
            if thread >= 0
        }
        self._device = self._knots(np.flatnonzero(graph.is_task))

    def trace(self) -> Trace:
        """Return the trace with its events moved, in the order of their new times."""
        trace, graph = self._t.trace, self._graph
        events = trace.events
        start, end = events.start.copy(), events.end.copy()
        of_device = (events.device >= 0) & (events.kind != Kind.MEMORY)  # which the host allocates
        for thread in distinct(events.thread[~of_device]).tolist():
            rows = np.flatnonzero(~of_device & (events.thread == thread))
            knots = self._host.get(thread, self._main)
            start[rows], end[rows] = warped(knots, start[rows]), warped(knots, end[rows])
        rows = np.flatnonzero(of_device)
        start[rows], end[rows] = warped(self._device, start[rows]), warped(self._device, end[rows])
        tasks = np.flatnonzero(graph.is_task)
        start[graph.row[tasks]] = np.round(graph.ready(self._times)[tasks]).astype(np.int64)
        end[graph.row[tasks]] = np.round(self._times.end[tasks]).astype(np.int64)
        return replace(trace, events=in_order(replace(events, start=start, end=np.maximum(start, end))))

    def samples(self, samples: Samples | None) -> Samples | None:
        """Return the sampler's rows at the times of the work that they were taken of."""
        return moved_samples(samples, self._t.trace.epoch_ns, self._main)

    @property
    def _main(self) -> tuple[Ints, Floats]:
        """Return the knots of the training thread, which stand for threads that launch nothing."""
        return self._host.get(self._t.main) or next(iter(self._host.values()), self._device)

    def _knots(self, nodes: Rows) -> tuple[Ints, Floats]:
        """Return measured times of a lane's nodes and their times in the replay, both rising; the window's end too.

        What the host does after its last node, as waiting for the device when the recording stops, ends with that.
        """
        graph, times = self._graph, self._times
        old = np.concatenate([graph.start[:1], graph.start[nodes], graph.end[nodes], [graph.end.max()]])
        new = np.concatenate([times.end[:1], times.end[nodes] - graph.duration[nodes], times.end[nodes]])
        new = np.append(new, times.end.max())
        order = np.lexsort((new, old))
        old, new = old[order], np.maximum.accumulate(new[order])
        first = np.append(True, old[1:] != old[:-1])
        return old[first], new[first]


def moved_samples(samples: Samples | None, base: int, knots: tuple[Ints, Floats]) -> Samples | None:
    """Return the sampler's rows moved with the times of a trace that began at ``base``, unix ns."""
    if samples is None:
        return None

    def at(times: Ints) -> Ints:
        return warped(knots, times - base) + base

    runs = at(np.array(samples.gc_runs, np.int64).reshape(-1, 2))
    return replace(
        samples,
        time_ns=at(samples.time_ns),
        gc_runs=tuple((int(begin), int(end)) for begin, end in runs.tolist()),
    )


def warped(knots: tuple[Ints, Floats], times: Ints) -> Ints:
    """Return times moved with the knots around them; before the first and after the last as far as these."""
    old, new = knots
    moved: npt.NDArray[np.float64] = np.interp(times, old, new)
    moved = np.where(times < old[0], times + (new[0] - old[0]), moved)
    moved = np.where(times > old[-1], times + (new[-1] - old[-1]), moved)
    return np.round(moved).astype(np.int64)


def in_order(events: Events) -> Events:
    """Return the rows in the order that every table expects, with ``cause`` pointing to the same rows as before."""
    order = np.lexsort((-(events.end - events.start), events.start))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    cause = np.where(events.cause >= 0, place[np.maximum(events.cause, 0)], events.cause).astype(events.cause.dtype)
    return replace(events, cause=cause).rows(order)

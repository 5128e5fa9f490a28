"""From tables to the dependency graph: nodes, what each of them waits for, and what delay stays on each edge."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Rows
from diagnose.model.intervals import among, distinct, total
from diagnose.model.limits import CALL_NS
from diagnose.model.rules import FREES_HOST, Cause
from diagnose.replay.graph import Edge, Graph, Times, usual_delay
from diagnose.replay.simulate import owners, period_ns, simulate
from diagnose.replay.transforms import typical_delays
from diagnose.replay.waits import (
    LATE_NS,
    MARGIN_NS,
    Points,
    Sort,
    awaited,
    collective_inputs,
    find_points,
    handoffs,
    inferred_events,
    recorded_events,
    room_given,
)
from diagnose.tables import Tables
from diagnose.tables.device import Tasks
from diagnose.tables.gaps import MIN_DELAYS, MIN_LATENCY_NS, launches_unlinked
from diagnose.tables.lost import graph_holes
from diagnose.tables.stages import of_steps
from diagnose.text.numbers import percent

STREAM_NS = 1_500.0  # between two queued tasks on data-centre GPUs

Columns = tuple[Rows, Rows, npt.NDArray[np.int8]]


def graph_of(t: Tables) -> Graph:
    """Return the graph of the whole window, built once."""
    return t.cached("graph of the window", lambda: build(t))


class _Nodes(NamedTuple):
    """Root, then points, then tasks, before they are put in order."""

    row: Rows
    is_task: npt.NDArray[np.bool_]
    lane: Ints
    start: Ints
    end: Ints
    key: Ints  # every dependency goes from a lower to a higher key


def build(t: Tables) -> Graph:
    """Return the graph of the window; without a device it has the host's points only."""
    points = find_points(t)
    src, dst, kind = _edges(t, points)
    nodes = _nodes(t, points)
    nodes = nodes._replace(start=_segment_starts(t, nodes, (src, dst, kind), points))
    rank = np.empty(len(nodes.row), np.intp)
    order = np.lexsort((nodes.is_task, nodes.key))
    order = np.concatenate([[0], order[order != 0]])
    rank[order] = np.arange(len(order))
    slack = nodes.start[dst] - nodes.end[src]
    sound = (rank[src] < rank[dst]) & (slack >= -MARGIN_NS)
    guaranteed = (kind == Edge.LAUNCH) | (kind == Edge.ROOM) | (kind == Edge.STREAM)
    own = (nodes.row[src] >= 0) & (t.trace.events.cause[nodes.row[src]] == nodes.row[dst])
    guaranteed |= (kind == Edge.WAIT) & (own | (slack >= -MARGIN_NS - t.late_by))
    sound |= guaranteed & (rank[src] < rank[dst])
    src, dst, kind, num = src[sound], dst[sound], kind[sound], len(sound)
    alone = np.ones(len(rank), bool)  # a node without a dependency has one on the begin of the window
    alone[0] = alone[dst] = False
    loose = np.flatnonzero(alone)
    src, dst = np.concatenate([src, np.zeros(len(loose), np.intp)]), np.concatenate([dst, loose])
    kind = np.concatenate([kind, np.full(len(loose), Edge.BEFORE)]).astype(np.int8)
    late = (nodes.start[dst] - nodes.end[src]).astype(np.float64)
    delay, binding = _delays(dst, kind, late, t.launch_latency or 0)
    blocked = (kind == Edge.CALL) & among(nodes.row[dst], t.full_queue.calls)
    delay = np.where(blocked, np.minimum(delay, CALL_NS), delay)  # the host waits there, for tasks before these too
    marks = np.flatnonzero(points.sort == Sort.MARK) + 1
    return Graph(
        row=nodes.row[order],
        is_task=nodes.is_task[order],
        api=np.where(nodes.is_task | (nodes.row < 0), -1, t.trace.events.name[nodes.row])[order].astype(np.int32),
        lane=nodes.lane[order],
        start=nodes.start[order],
        end=nodes.end[order],
        duration=(nodes.end - nodes.start)[order].astype(np.float64),
        src=rank[src],
        dst=rank[dst],
        kind=kind,
        delay=delay,
        marks=rank[marks],
        binding=binding,
        dropped=num - int(sound.sum()),
    )


def _nodes(t: Tables, points: Points) -> _Nodes:
    begin, tasks = t.steps.window[0], t.tasks
    num = len(points.time)
    one = np.array([begin], np.int64)
    queued = np.where(tasks.launch >= 0, t.trace.events.start[tasks.launch], tasks.start)
    return _Nodes(
        row=np.concatenate([[-1], points.row, tasks.row]).astype(np.intp),
        is_task=np.concatenate([np.zeros(num + 1, bool), np.ones(len(tasks.row), bool)]),
        lane=np.concatenate([[-1], points.thread, tasks.stream]).astype(np.int64),
        start=np.concatenate([one, points.time, tasks.start]),
        end=np.concatenate([one, points.time, tasks.end]),
        key=np.concatenate([one, points.time, np.maximum(tasks.start - t.late_by, queued)]),
    )


def _segment_starts(t: Tables, nodes: _Nodes, edges: Columns, points: Points) -> Ints:
    """Return the starts with those of host segments at the latest point that they follow; a wait has no length.

    A call that frees memory works when its wait is over: as long as that takes.
    """
    src, dst, kind = edges
    latest = np.full(len(nodes.row), nodes.start[0])
    host = (kind == Edge.THREAD) | (kind == Edge.HANDOFF)
    np.maximum.at(latest, dst[host], nodes.end[src[host]])
    segment = np.zeros(len(nodes.row), bool)
    segment[1 : len(points.sort) + 1] = points.sort != Sort.AWAITED
    starts: Ints = np.where(segment, latest, nodes.start)
    frees = t.freeing_calls
    ends = np.flatnonzero(points.sort == Sort.AWAITED) + 1
    ends = ends[among(nodes.row[ends], frees.calls)]
    starts[ends] = frees.done[np.searchsorted(frees.calls, nodes.row[ends])]
    return starts


def _edges(t: Tables, points: Points) -> Columns:
    """Return the dependencies between root (0), points (from 1) and tasks (behind them)."""
    first = len(points.time) + 1
    tasks = t.tasks
    host = np.arange(1, first)
    before = _previous(points.thread) + 1
    passed = handoffs(t, points)
    given = np.flatnonzero(passed >= 0)
    ahead = _before_on_stream(tasks)
    behind = np.flatnonzero(ahead >= 0)
    # Of each task whose launch lies in the window the point of that; one launch may have many tasks.
    called = np.flatnonzero((points.sort != Sort.AWAITED) & (points.row >= 0))
    order = called[np.argsort(points.row[called], kind="stable")]
    at = np.searchsorted(points.row[order], tasks.launch)
    inside = np.append(points.row[order], -2)[at] == tasks.launch
    launched, launch = np.flatnonzero(inside), order[at[inside]]
    waited, ended = awaited(t, points)
    recorded = recorded_events(t)
    allowed = np.full(len(tasks.row), t.steps.window[0])
    allowed[behind] = tasks.end[ahead[behind]]
    allowed[launched] = np.maximum(allowed[launched], points.time[launch])
    reads = collective_inputs(t)
    late = np.flatnonzero(tasks.start - allowed > LATE_NS)
    late = late[~among(late, np.asarray(recorded[1], np.intp))]
    inferred = inferred_events(t, late, allowed)
    given_room = room_given(t, late[~among(late, inferred[1])])
    parts = [
        (before, host, np.where(points.sort == Sort.AWAITED, Edge.CALL, Edge.THREAD)),
        (passed[given] + 1, given + 1, Edge.HANDOFF),
        (ahead[behind] + first, behind + first, Edge.STREAM),
        (launch + 1, launched + first, Edge.LAUNCH),
        (np.array(waited, np.intp) + first, np.array(ended, np.intp) + 1, Edge.WAIT),
        (np.array(recorded[0], np.intp) + first, np.array(recorded[1], np.intp) + first, Edge.EVENT),
        (reads[0] + first, reads[1] + first, Edge.EVENT),
        (inferred[0] + first, inferred[1] + first, Edge.INFERRED),
        (given_room[0] + first, given_room[1] + first, Edge.ROOM),
    ]
    return (
        np.concatenate([p[0] for p in parts]).astype(np.intp),
        np.concatenate([p[1] for p in parts]).astype(np.intp),
        np.concatenate([np.broadcast_to(np.asarray(p[2], np.int8), p[1].shape) for p in parts]).astype(np.int8),
    )


def _before_on_stream(tasks: Tasks) -> Rows:
    """Return, for each task, the one that its stream did before it, -1 for the first.

    Nodes of one graph may overlap on a stream; each follows the last one to end before it then. A kernel that was
    launched to begin early, as the one before it ends, follows that one all the same.
    """
    ahead = _previous(tasks.stream.astype(np.int64))
    overlap = (ahead >= 0) & (tasks.end[ahead] > tasks.start + MARGIN_NS)
    early = overlap & (tasks.launch >= 0) & (tasks.launch[ahead] >= 0) & (tasks.launch != tasks.launch[ahead])
    for task in np.flatnonzero(overlap & ~early).tolist():
        earlier = np.flatnonzero((tasks.stream[:task] == tasks.stream[task]) & (tasks.end[:task] <= tasks.start[task]))
        ahead[task] = earlier[tasks.end[earlier].argmax()] if len(earlier) else -1
    return ahead


def _previous(lane: Ints) -> Rows:
    """Return, for each row, the row before it in the same lane, -1 for the first."""
    found = np.full(len(lane), -1, np.intp)
    order = np.argsort(lane, kind="stable")
    same = lane[order][1:] == lane[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found


def _delays(
    dst: Rows, kind: npt.NDArray[np.int8], slack: npt.NDArray[np.float64], launch_latency: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the delay of each edge and whether it binds.

    What the node started after last is what it waited for: that edge keeps the measured delay. On the others as much
    time may have passed as is usual for their kind, never more than was measured, and on a stream that binds too seldom
    to know what is usual at most what is usual elsewhere. A launch needs its latency, which is
    no waiting where it is long: other launches are in flight meanwhile.
    """
    needed = np.where(kind == Edge.LAUNCH, launch_latency if launch_latency > MIN_LATENCY_NS else 0, 0)
    order = np.lexsort((slack - needed, dst))
    binding = np.zeros(len(dst), bool)
    binding[order[np.append(True, dst[order][1:] != dst[order][:-1])[: len(order)]]] = True
    usual = np.zeros(len(Edge))
    for each in distinct(kind).tolist():
        known = slack[binding & (kind == each)]
        usual[each] = usual_delay(known)
        if each == Edge.STREAM and len(known) < MIN_DELAYS:  # hardly any task followed another one at once
            usual[each] = min(usual[each], STREAM_NS)
    return np.where(binding, slack, np.minimum(slack, np.maximum(usual[kind], 0))), binding


# The few steps that are replayed, and how well a replay explains them; the same for every question about a trace.
#
# A few steps of the window are enough: what a change saves in one steady step it saves in the others.

# The error of the replay with usual delays. Beyond the first what changes save is bounded instead of replayed; up to
# the second the replay is taken to show what the step waits for, and no warning stands beside an answer.
MAX_ERROR_TO_PREDICT = 0.1
MAX_ERROR_TO_RELY = 0.03
MAX_TASKS = 8_000  # a replay of these takes 5 ms; one long step may have more


class ReplayBase(NamedTuple):
    """The steps that are replayed; the same for every question about a trace."""

    t: Tables  # of these steps
    graph: Graph
    times: Times  # of the unchanged replay
    owner: npt.NDArray[np.intp]  # of each node: the step
    period_ns: float  # from step to step in the unchanged replay; 0 where the steps have no length
    error: float  # share by which a replay with usual delays misses the one with measured delays
    why_not: str = ""  # why what changes save is bounded instead of replayed, one sentence
    is_uneven: bool = False  # the first step is unlike the others: what changes save is a mean of all of them
    is_hostless: bool = False  # then only of what changes on the host: no launches tie the device to it

    def period_of(self, graph: Graph, times: Times) -> float:
        """Return the time from step to step in a replay, of the same steps as that of the unchanged one, ns."""
        return times.window_ns / self.t.steps.num if self.is_uneven else period_ns(graph, times, self.owner)

    def refuses(self, cause: Cause) -> bool:
        """Return whether the replay cannot show what happens without a cause."""
        return bool(self.why_not) and (not self.is_hostless or cause in FREES_HOST)

    @property
    def is_reliable(self) -> bool:
        """Return whether the replay shows what the step waits for."""
        return not self.why_not and self.error <= MAX_ERROR_TO_RELY


def replay_base(t: Tables) -> ReplayBase:
    """Return the steps of a trace that are replayed, as a graph; built once."""

    def make() -> ReplayBase:
        part = step_subset(t)
        graph = build(part)
        owner, times = owners(part, graph), simulate(graph)
        usual = simulate(typical_delays(graph)).window_ns
        error = abs(usual / times.window_ns - 1) if times.window_ns > 0 else 0.0
        why_not = unreplayable(t)
        if error > MAX_ERROR_TO_PREDICT and not why_not:
            why_not = (
                f"Replayed with usual delays the step comes out {percent(error, 0)} off: the trace does not show what "
                "its tasks waited for, so what changes save is bounded, not replayed."
            )
        is_hostless = t.device_id >= 0 and launches_unlinked(t.tasks) and error <= MAX_ERROR_TO_PREDICT
        period = period_ns(graph, times, owner)
        mean = times.window_ns / part.steps.num
        is_uneven = period > 0 and abs(mean / period - 1) > MAX_ERROR_TO_PREDICT
        period = mean if is_uneven else period
        return ReplayBase(part, graph, times, owner, period, error, why_not, is_uneven, is_hostless)

    return t.cached("replay base", make)


def unreplayable(t: Tables) -> str:
    """Return why the recorded steps cannot be replayed, whatever its error; "" where they can."""
    if t.device_id < 0:
        return ""
    if launches_unlinked(t.tasks):
        known = float((t.tasks.launch >= 0).mean())
        return (
            f"Only {percent(known, 0)} of the device tasks are linked to a launch, so the trace does not show what "
            "they waited for on the host: what changes there save is bounded, not replayed."
        )
    holes = total(graph_holes(t)) / max(t.steps.window[1] - t.steps.window[0], 1)
    if holes > MAX_ERROR_TO_RELY:
        return (
            f"For {percent(holes, 0)} of the time nodes of a graph ran that were not recorded: what changes save is "
            "bounded, not replayed."
        )
    return ""


def step_subset(t: Tables, max_tasks: int = MAX_TASKS) -> Tables:
    """Return tables of consecutive steps with at most so many tasks, all of them where they are few; never none.

    The steps are those around the typical one. Work that was queued before them is left out: the window
    begins when the device is done with it, and ends with the last task that they launched.
    """
    # As many as a capture records: what comes in one step of ten is among them.
    num = min(max(1, int(max_tasks * t.steps.num / max(len(t.tasks.row), 1))), 10)
    if t.steps.num <= num:
        return t
    first = min(max(t.steps.median_step - num // 2, 0), t.steps.num - num)
    last = first + num
    begin, finish = int(t.steps.start[first]), int(t.steps.end[last - 1])
    tasks = t.tasks
    queued = np.where(tasks.launch >= 0, t.trace.events.start[tasks.launch], tasks.start)
    mine = (queued >= begin) & (queued < finish)
    if not mine.any():
        return t
    before = tasks.end[queued < begin]
    window_start = max(begin, int(before.max())) if len(before) and before.max() > begin else begin
    window_start = min(window_start, int(tasks.start[mine].min()))
    kept = tasks.chosen(mine)
    steps = t.steps._replace(
        start=t.steps.start[first:last],
        end=t.steps.end[first:last],
        number=t.steps.number[first:last],
        window_start=window_start,
        window_end=max(finish, int(kept.end.max())),
    )
    return of_steps(t, steps, kept)

"""The replay: one pass over the nodes in their order, and the time from step to step in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model import diagnosis as forecast
from diagnose.model.arrays import Floats
from diagnose.model.diagnosis import Finding, PathSegment
from diagnose.model.intervals import among, covered
from diagnose.model.limits import MIN_RECURRENCES
from diagnose.model.rules import Cause
from diagnose.replay.graph import Graph, Times
from diagnose.tables import Tables

# The critical path: the chain of nodes that the length of the window follows from, and its segments in one step.


class CriticalPath(NamedTuple):
    """The chain in time order; columns are parallel. What they sum to is the length of the window."""

    node: npt.NDArray[np.intp]
    duration_ns: npt.NDArray[np.float64]  # of the node itself
    delay_ns: npt.NDArray[np.float64]  # on the edge by which the chain came to it

    @property
    def length_ns(self) -> float:
        """Return the length of the chain."""
        return float(self.duration_ns.sum() + self.delay_ns.sum())

    def divided(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return how much of the chain's length each node takes, and the delay before it; neither is negative.

        Where clocks are skewed a node begins before the one that it follows has ended (its delay is negative): the
        chain leaves a node as soon as a later one begins.
        """
        end = np.cumsum(self.delay_ns + self.duration_ns)
        ready = end - self.duration_ns
        left = np.append(np.minimum.accumulate(ready[::-1])[::-1][1:], np.inf)  # when the chain goes on to another node
        before = np.append(0.0, end[:-1])
        node = np.maximum(np.minimum(end, left) - np.minimum(ready, left), 0.0)
        delay = np.maximum(np.minimum(ready, left) - np.minimum(before, left), 0.0)
        return node, delay


def critical_path(graph: Graph, times: Times) -> CriticalPath:
    """Return the chain of nodes, each waiting for the one before it, that ends with the window."""
    into, allowed = graph.incoming(), times.end[graph.src] + graph.delay
    held = np.repeat(into.latest(allowed), into.num[into.num > 0])
    holding = into.order[allowed[into.order] == held]
    # A change may leave a node without anything to wait for: it follows the begin of the window.
    before = np.zeros(len(graph), np.intp)
    before[graph.dst[holding]] = graph.src[holding]  # of several the last one
    followed = before.tolist()
    nodes: list[int] = []
    node = int(times.end.argmax())
    while node > 0:
        nodes.append(node)
        node = followed[node]
    chain = np.array(nodes[::-1], np.intp)
    # Beyond the edge's own delay nothing passes, except where clocks are skewed at the begin of the window.
    return CriticalPath(chain, graph.duration[chain], graph.ready(times)[chain] - times.end[before[chain]])


def categories(t: Tables, graph: Graph, path: CriticalPath) -> npt.NDArray[np.str_]:
    """Return what each node of the path is: host, compute, communication or copy."""
    rows, on_device = graph.row[path.node], graph.is_task[path.node]
    found = np.where(on_device, "compute", "host").astype("U13")
    found[on_device & among(rows, t.tasks.row[t.tasks.is_collective])] = "communication"
    found[on_device & among(rows, t.tasks.row[t.tasks.is_copy])] = "copy"
    return found


def shares(t: Tables, graph: Graph, path: CriticalPath) -> Mapping[str, float]:
    """Return what the path consists of: shares of host, compute, communication, copy and latency, which sum to 1.

    Latency is what passes between one node's end and the next one's begin: from launch to task, from event to wait.
    """
    length = path.length_ns
    if length <= 0:
        return {}
    kinds = categories(t, graph, path)
    names = ("host", "compute", "communication", "copy")
    node, delay = path.divided()
    found = {kind: float(node[kinds == kind].sum()) / length for kind in names}
    return found | {"latency": float(delay.sum()) / length}


def on_path(t: Tables, graph: Graph, path: CriticalPath, finding: Finding, cause: Cause) -> float:
    """Return the share of the path that a finding covers: its idle time on the host, its tasks on the device.

    ``t`` holds the causes; the graph may be of a part of its window.
    """
    node, delay = path.divided()
    pieces = t.causes.pieces(finding.rule)
    task = graph.is_task[path.node]
    mine = np.where(task, 0, covered(pieces, graph.start[path.node], graph.end[path.node])).astype(np.float64)
    tasks = finding.tasks
    if cause in ("collective", "copy"):
        tasks = np.flatnonzero(t.tasks.is_collective if cause == "collective" else t.tasks.is_copy)
    named = task & among(graph.row[path.node], t.tasks.row[tasks])
    mine[named] = node[named]
    begun = graph.start[path.node].astype(np.float64)
    waited = np.where(task, covered(pieces, (begun - path.delay_ns).astype(np.int64), graph.start[path.node]), 0)
    # A call that waits is measured with its wait, which on the path is another node's time.
    covering = float(np.minimum(mine, node).sum() + np.minimum(waited, delay).sum())
    return min(covering / path.length_ns, 1.0) if path.length_ns > 0 else 0.0


def path_report(
    t: Tables, graph: Graph, times: Times, step: tuple[int, int], shares: Mapping[str, float]
) -> forecast.CriticalPath:
    """Return the path with the given shares, and its pieces between begin and end of a step, ns of the trace."""
    path = critical_path(graph, times)
    start, end = step
    pieces = [  # cut to the step, and counted from its begin; outside it they have no length
        piece._replace(start_ns=max(piece.start_ns, start) - start, end_ns=min(piece.end_ns, end) - start)
        for piece in _pieces(t, graph, times, path)
    ]
    return forecast.CriticalPath(
        # Shorter pieces no eye could tell apart.
        shares,
        tuple(_joined([p for p in pieces if p.end_ns > p.start_ns], (end - start) * 1 / 400)),
    )


def _pieces(t: Tables, graph: Graph, times: Times, path: CriticalPath) -> Iterator[PathSegment]:
    """Yield each node of the path and the delay before it, on the trace's clock."""
    kinds = categories(t, graph, path)
    for n, node in enumerate(path.node.tolist()):
        ended = int(times.end[node])
        ready = ended - int(path.duration_ns[n])
        row, number = int(graph.row[node]), int(graph.lane[node])
        is_task = bool(graph.is_task[node])
        lane = f"GPU {t.device_id} stream {number}" if is_task else f"host {t.trace.threads[number].tid}"
        name = t.name(row) if row >= 0 else "end of the step"
        yield PathSegment(ready - int(path.delay_ns[n]), ready, "latency", name, lane)
        yield PathSegment(ready, ended, str(kinds[n]), name, lane)


def _joined(pieces: Sequence[PathSegment], least_ns: float) -> list[PathSegment]:
    """Join neighbours of one category, after those too short to be seen were joined to what most of their time is."""
    joined: list[PathSegment] = []
    for piece in _in_groups(_in_turn(pieces), least_ns):
        if joined and joined[-1].category == piece.category:
            longest = max(joined[-1], piece, key=_length)
            joined[-1] = longest._replace(start_ns=joined[-1].start_ns, end_ns=piece.end_ns)
        else:
            joined.append(piece)
    return joined


def _in_groups(pieces: Iterable[PathSegment], least_ns: float) -> Iterator[PathSegment]:
    """Yield one piece for each group of at least ``least_ns``: of the category that most of its time belongs to."""
    group: list[PathSegment] = []
    for piece in pieces:
        group.append(piece)
        if piece.end_ns - group[0].start_ns >= least_ns:
            yield _stands_for(group)
            group = []
    if group:
        yield _stands_for(group)


def _stands_for(group: list[PathSegment]) -> PathSegment:
    time: Counter[str] = Counter()
    for piece in group:
        time[piece.category] += _length(piece)
    category = max(time, key=lambda name: time[name])
    longest = max((piece for piece in group if piece.category == category), key=_length)
    return longest._replace(start_ns=group[0].start_ns, end_ns=group[-1].end_ns)


def _in_turn(pieces: Iterable[PathSegment]) -> Iterator[PathSegment]:
    """Let each piece begin no earlier than the one before it ends: clocks of host and device may be skewed."""
    reached = 0
    for whole in pieces:
        piece = whole._replace(start_ns=max(whole.start_ns, reached))
        if piece.end_ns > piece.start_ns:
            reached = piece.end_ns
            yield piece


def _length(piece: PathSegment) -> int:
    return piece.end_ns - piece.start_ns


_BLOCK = 4096  # nodes whose columns are lists at a time: as lists they take seven times the memory


def simulate(graph: Graph) -> Times:
    """Return when each node ends: a while after the last of what it waits for, and after the window's begin."""
    into, begin = graph.incoming(), float(graph.start[0])
    source, delay = np.append(graph.src, 0), np.append(graph.delay, 0.0)  # an edge that a node lacks begins there
    further: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)  # beyond the first two
    for edge in into.further.tolist():
        further[int(graph.dst[edge])].append((int(graph.src[edge]), float(graph.delay[edge])))
    ends = [begin]
    for first in range(1, len(graph), _BLOCK):
        part = slice(first, first + _BLOCK)
        waits = (column[edges[part]].tolist() for edges in into.pair for column in (source, delay))
        each = zip(*waits, graph.duration[part].tolist(), strict=True)
        for node, (one, one_delay, other, other_delay, duration) in enumerate(each, first):
            ready = max(begin, ends[one] + one_delay, ends[other] + other_delay)
            if node in further:
                ready = max(ready, *(ends[src] + late for src, late in further[node]))
            ends.append(ready + duration)
    return Times(np.array(ends))


def owners(t: Tables, graph: Graph) -> npt.NDArray[np.intp]:
    """Return the step that each node belongs to: the one in which it was queued."""
    began, cause = t.trace.events.start, t.trace.events.cause[np.maximum(graph.row, 0)]
    queued = np.where(graph.is_task, graph.start, graph.end)
    queued = np.where(graph.is_task & (cause >= 0), began[np.maximum(cause, 0)], queued)
    step = np.searchsorted(t.steps.end, queued, side="left")
    return np.minimum(step, t.steps.num - 1).astype(np.intp)


def period_ns(graph: Graph, times: Times, owner: npt.NDArray[np.intp]) -> float:
    """Return the mean time between the ends of steps, host and device done; of few steps the mean.

    So neither the first step's start-up nor the device's last tasks count.
    """
    num = int(owner.max()) + 1 if len(owner) else 1
    # Fewer leave no two ends of steps beside the first: the whole window counts then.
    if num < MIN_RECURRENCES:
        return times.window_ns / num
    done = step_ends(graph, times, owner)
    return float(done[-1] - done[0]) / (num - 1)


def step_ends(graph: Graph, times: Times, owner: npt.NDArray[np.intp]) -> Floats:
    """Return when each step ends, host and device done, and all before it."""
    done = np.full(int(owner.max()) + 1, float(graph.start[0]))
    np.maximum.at(done, owner, times.end)
    return np.maximum.accumulate(done)

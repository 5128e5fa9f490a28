"""The dependency graph of the steady steps, as flat arrays.

A node is a device task or a segment of host work that ends at a point: a launch, the end of a blocking call, or a step
mark. A node becomes ready when every edge into it allows, ``end[src] + delay``, and ends ``duration`` later. So a
blocking call's end is never stored: it follows from what the call waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows


class Edge(IntEnum):
    """Why one node has to wait for another."""

    THREAD = 0  # order on a host thread
    HANDOFF = 1  # a thread that was doing nothing goes on after another one: backward after forward
    LAUNCH = 2  # launch -> task
    STREAM = 3  # order on a stream
    EVENT = 4  # event record -> wait, recorded
    INFERRED = 5  # the same, inferred: a queued task began right when a task of another stream ended
    CALL = 6  # begin -> end of a blocking call: what it costs when there is nothing to wait for
    WAIT = 7  # device task -> end of the blocking call that waits for it
    BEFORE = 8  # begin of the window -> what was already under way
    ROOM = 9  # a kernel that fills the device -> a task of another stream, which starts in its last wave


EdgeRows: TypeAlias = npt.NDArray[np.int32]


class Incoming(NamedTuple):
    """The edges by the node that they lead to."""

    order: EdgeRows  # the edges, those to one node beside each other
    first: EdgeRows  # of each node, where its edges begin in ``order``
    num: EdgeRows  # of each node, its edges
    pair: tuple[EdgeRows, EdgeRows]  # of each node, its first two edges; one that it lacks is the number of all edges
    further: EdgeRows  # edges beyond those two

    def latest(self, allowed: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the largest value among the edges of each node that has some; one value an edge is given."""
        return np.asarray(np.maximum.reduceat(allowed[self.order], self.first[self.num > 0]))


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which every edge points forward; node 0 is the begin of the window. Times in ns."""

    row: Rows  # row of Trace.events: the task, or the call at the point that ends a segment; -1 for marks
    is_task: npt.NDArray[np.bool_]
    api: npt.NDArray[np.int32]  # of a point at a call: the row of Trace.names; -1 else
    lane: Ints  # stream of a task, thread of a segment
    start: Ints  # measured
    end: Ints  # measured
    duration: npt.NDArray[np.float64]
    src: Rows
    dst: Rows
    kind: npt.NDArray[np.int8]  # an Edge
    delay: npt.NDArray[np.float64]  # what passes on an edge beyond its order, measured: launch latency and the like
    marks: Rows  # the node at which each step ends on the host, in time order
    binding: npt.NDArray[np.bool_]  # the edge that the measured start followed, one a node
    dropped: int = 0  # dependencies that contradict the measured times, as skewed clocks make them

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.row)

    def with_edges(self, kept: Mask) -> Graph:
        """Return the graph with these of its edges only."""
        return replace(
            self,
            src=self.src[kept],
            dst=self.dst[kept],
            kind=self.kind[kept],
            delay=self.delay[kept],
            binding=self.binding[kept],
        )

    def incoming(self) -> Incoming:
        """Return the edges by the node that they lead to."""
        num = len(self)
        order = np.argsort(self.dst, kind="stable").astype(np.int32)
        edges = np.bincount(self.dst, minlength=num).astype(np.int32)
        first = np.cumsum(edges, dtype=np.int32) - edges
        edge = np.append(order, np.int32(len(order)))
        one, two = (np.where(edges > i, edge[np.minimum(first + i, len(order))], edge[-1]) for i in (0, 1))
        further = order[np.arange(len(order), dtype=np.int32) - first[self.dst[order]] > 1]
        return Incoming(order, first, edges, (one, two), further)

    def ready(self, times: Times) -> npt.NDArray[np.float64]:
        """Return when each node could begin in a replay of this graph, ns on the trace's clock."""
        into, begin = self.incoming(), float(self.start[0])
        ready = np.full(len(self), begin)
        ready[into.num > 0] = np.maximum(into.latest(times.end[self.src] + self.delay), begin)
        return ready


Transform: TypeAlias = Callable[[Graph], Graph]
"""A change to the recorded steps. Several are replayed together by applying one to what another returns."""


class Times(NamedTuple):
    """When each node ended in a replay, ns on the trace's clock."""

    end: npt.NDArray[np.float64]

    @property
    def window_ns(self) -> float:
        """Return the length of the window."""
        return float(self.end.max() - self.end[0])


def usual_delay(delays: npt.NDArray[np.float64]) -> float:
    """Return the mean of the middle delays, 0 without any.

    A mean, since delays add up along a path: where a file's times are whole microseconds the median of most delays is
    0 and their sum is not. Of the middle, since what stands out has a cause of its own.
    """
    if not len(delays):
        return 0.0
    ordered = np.sort(delays)
    last = len(ordered) - 1  # np.quantile loads masked arrays
    low, high = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
    return float(delays[(delays >= low) & (delays <= high)].mean())

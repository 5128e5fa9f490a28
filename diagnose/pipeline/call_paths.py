"""Python frames by the frames of the same kind around them, and what a step spends in each such path."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from diagnose.model.arrays import Floats, Ints, Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import distinct, grouped
from diagnose.tables import Tables
from diagnose.tables.host import Layers, host_rows, layers
from diagnose.tables.names import names_of
from diagnose.tables.passes import links
from diagnose.tables.step_clock import StepClock

__all__ = ["MODULE", "CallPaths", "call_paths", "frames_of"]

MODULE = "nn.Module: "
MAX_DEPTH = 200  # of one kind of frame: recursion beyond it counts for the frame at that depth


class _Thread(NamedTuple):
    """Frames of one thread, each with its path."""

    rows: Rows
    path: Ints  # -1 deeper than MAX_DEPTH
    nested: Layers

    def innermost(self, time: Ints) -> Ints:
        """Return the path that is open at each time, -1 for none."""
        found = np.full(len(time), -1, np.int64)
        for depth in range(len(self.nested.rows)):
            row = self.nested.open_in(depth, time)
            inside = row >= 0
            if not inside.any():
                break
            found[inside] = self.path[np.searchsorted(self.rows, row[inside])]
        return found


class CallPaths(NamedTuple):
    """A tree of paths: a path's number is larger than that of the path around it. Times are sums over all steps, ns."""

    parent: list[int]  # -1: outermost
    name: list[int]  # row of Trace.names
    calls: Floats
    host: Floats  # with what is called in it
    own: Floats  # without the paths in it
    device: Floats  # of tasks, with those of the paths in it
    backward: Floats  # of the host
    backward_device: Floats


class _Tree:
    def __init__(self, num_names: int) -> None:
        self.parent: list[int] = []
        self.name: list[int] = []
        self._known: dict[int, int] = {}
        self._num_names = num_names

    def add(self, t: Tables, rows: Rows) -> _Thread:
        """Give each frame of a thread its path, layer by layer."""
        events = t.trace.events
        nested, path = layers(t.trace, rows, MAX_DEPTH, deep=True), np.full(len(rows), -1, np.int64)
        for depth, mine in enumerate(nested.rows):
            around = np.full(len(mine), -1, np.int64)
            if depth:
                outer = nested.open_in(depth - 1, events.start[mine])
                around[outer >= 0] = path[np.searchsorted(rows, outer[outer >= 0])]
            keys = grouped((around + 1) * self._num_names + events.name[mine])
            numbers = np.array([self._number(key) for key in keys.value.tolist()], np.int64)
            path[np.searchsorted(rows, mine)] = numbers[keys.of]
        return _Thread(rows, path, nested)

    def _number(self, key: int) -> int:
        if key not in self._known:
            self._known[key] = len(self.parent)
            around, name = divmod(key, self._num_names)
            self.parent.append(around - 1)
            self.name.append(name)
        return self._known[key]


def frames_of(t: Tables, thread: int, is_wanted: Callable[[str], bool]) -> Rows:
    """Return a thread's Python frames with such names."""
    wanted = np.zeros(len(t.trace.names) + 1, bool)
    for name in names_of(t.trace, Kind.PYTHON):
        wanted[name] = is_wanted(t.trace.names[name])
    if not wanted.any():
        return np.empty(0, np.intp)
    rows = host_rows(t.trace, thread, Kind.PYTHON)
    found: Rows = rows[wanted[t.trace.events.name[rows]]]
    return found


def call_paths(t: Tables, clock: StepClock, is_wanted: Callable[[str], bool]) -> CallPaths | None:
    """Return the paths of the frames with such names on the threads that matter, None where there are none.

    ``t`` are the tables of the window with names, ``clock`` what its times are brought to.
    """
    events, tree = t.trace.events, _Tree(len(t.trace.names) + 1)
    found = {thread: tree.add(t, rows) for thread in t.threads if len(rows := frames_of(t, thread, is_wanted))}
    if not found:
        return None
    num = len(tree.parent)

    def summed(path: Ints, weight: Floats | Mask) -> Floats:
        of = path >= 0
        sums: Floats = np.bincount(path[of], weight[of], minlength=num).astype(np.float64)
        return sums

    rows, path = (np.concatenate([getattr(each, key) for each in found.values()]) for key in ("rows", "path"))
    host = summed(path, clock.length(events.start[rows], events.end[rows]))
    calls = summed(path, clock.counts(events.start[rows]))

    def within(launched: Rows) -> Ints:
        """Return the path that each event lies in; times are rounded, so it is looked for in the event's middle."""
        inside, time = np.full(len(launched), -1, np.int64), (events.start[launched] + events.end[launched]) // 2
        for thread, frames in found.items():
            mine = (events.thread[launched] == thread) & clock.counts(time)
            inside[mine] = frames.innermost(time[mine])
        return inside

    linked = links(t)
    nested = {thread: layers(t.trace, linked.nodes[mine]) for thread, mine in _by_thread(t, linked.nodes)}
    of_node, task_ns = within(linked.ops), (t.tasks.end - t.tasks.start).astype(np.float64)
    of_task, of_backward = (np.full(len(task_ns), -1, np.int64) for _ in range(2))
    launched = np.flatnonzero(t.tasks.launch >= 0)
    of_task[launched] = within(t.tasks.launch[launched].astype(np.intp))
    node = _node_of(t, launched, nested)
    launched, node = launched[node >= 0], node[node >= 0]
    of_backward[launched] = of_node[np.searchsorted(linked.nodes, node)]
    of_task[of_backward >= 0] = -1
    sums = (of_task, task_ns), (of_node, _alone(t, linked.nodes, nested, clock)), (of_backward, task_ns)
    device, backward, backward_device = (_with_inner(tree.parent, summed(*each)) for each in sums)
    own = host.copy()
    np.subtract.at(own, [p for p in tree.parent if p >= 0], host[[p >= 0 for p in tree.parent]])
    return CallPaths(tree.parent, tree.name, calls, host, np.maximum(own, 0.0), device, backward, backward_device)


def _with_inner(parent: list[int], own: Floats) -> Floats:
    """Return the sums of paths with those of the paths in them."""
    whole = own.tolist()
    for path in range(len(whole) - 1, -1, -1):
        if parent[path] >= 0:
            whole[parent[path]] += whole[path]
    return np.array(whole, np.float64)


def _by_thread(t: Tables, rows: Rows) -> list[tuple[int, Mask]]:
    threads = t.trace.events.thread[rows]
    return [(thread, threads == thread) for thread in distinct(threads).tolist()] if len(rows) else []


def _alone(t: Tables, nodes: Rows, nested: Mapping[int, Layers], clock: StepClock) -> Floats:
    """Return what each node of the backward pass takes without the nodes in it, as of a pass that recomputes."""
    events = t.trace.events
    took = clock.length(events.start[nodes], events.end[nodes])
    for each in nested.values():
        for depth in range(1, len(each.rows)):
            inner = each.rows[depth]
            outer = each.open_in(depth - 1, events.start[inner])
            known = outer >= 0
            inner_ns = clock.length(events.start[inner], events.end[inner])
            np.subtract.at(took, np.searchsorted(nodes, outer[known]), inner_ns[known])
    return np.maximum(took, 0.0)


def _node_of(t: Tables, tasks: Rows, nested: Mapping[int, Layers]) -> Rows:
    """Return for each task the innermost node of the backward pass that launched it, -1 for none."""
    events, launch = t.trace.events, t.tasks.launch[tasks]
    found = np.full(len(tasks), -1, np.intp)
    time = (events.start[launch] + events.end[launch]) // 2
    for thread, each in nested.items():
        mine = np.flatnonzero(events.thread[launch] == thread)
        for depth in range(len(each.rows)):
            row = each.open_in(depth, time[mine])
            found[mine[row >= 0]] = row[row >= 0]
    return found

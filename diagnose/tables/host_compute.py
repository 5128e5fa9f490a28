"""Long stretches of the host inside one operator that called nothing: the operator itself was computing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.model.arrays import Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, span, union
from diagnose.tables import Tables
from diagnose.tables.gaps import launches_unlinked
from diagnose.tables.graph_capture import captures_of
from diagnose.tables.host import host_rows
from diagnose.tables.names import GRAPH_CAPTURE, GRAPH_LAUNCH

__all__ = ["first_use", "graph_captures", "host_compute", "silent_operators"]

# Dispatching one operator takes 5 to 50 µs, recorded with stacks and shapes up to 250: an operator that is silent for
# as long as this computes, compiles or loads.
MIN_SILENCE_NS = 1_000_000


def host_compute(t: Tables) -> Intervals:
    """Return the silent stretches of operators on the threads that launch, in gaps that these threads were late for."""
    return union(*(stretches for stretches, _ in silent_operators(t)))


def first_use(t: Tables) -> Intervals:
    """Return those stretches that end in the first launch of a kernel in the whole file.

    An operator that is silent before kernels launched earlier as well does not prepare their first use.
    """
    new = _ends_in_first_launch(t)
    found, seen = [], set[int]()
    for stretches, operator in silent_operators(t):
        gap = np.searchsorted(t.gaps.start, stretches.start, side="right") - 1
        is_new = new[np.maximum(gap, 0)]
        names = t.trace.events.name[operator]
        seen |= set(names[~is_new].tolist())
        found.append((stretches, is_new, names))
    kept = [(s, is_new & ~np.isin(names, list(seen))) for s, is_new, names in found]
    return union(*((s.start[keep], s.end[keep]) for s, keep in kept)) if kept else EMPTY


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
    """Return, for each thread that launches, its silent stretches in gaps that it was late for, and their operators.

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
        stretches, operators = _silent(t, each)
        unlaunched = union((gaps.start[late], gaps.launch_start[late]))
        mine = intersect(stretches, unlaunched)
        at = np.searchsorted(stretches.start, mine.start, side="right") - 1
        found.append((mine, operators[at]))
    return found


def _silent(t: Tables, thread: int) -> tuple[Intervals, Rows]:
    """Return the stretches of a thread without any event's begin or end that one operator is innermost in."""
    events = t.trace.events
    rows = host_rows(t.trace, thread, Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)
    edges = np.sort(np.concatenate([events.start[rows], events.end[rows]]), kind="stable")  # in runs already
    long = np.flatnonzero(np.diff(edges) >= MIN_SILENCE_NS)
    middle = (edges[long] + edges[long + 1]) // 2
    inner = [open_rows[-1] if open_rows else -1 for open_rows in t.work_layers[thread].at_each(middle)]
    operator = np.array(inner, np.intp)
    is_op = (operator >= 0) & (events.kind[operator] == Kind.OP)
    return Intervals(edges[long][is_op], edges[long + 1][is_op]), operator[is_op]


def _ends_in_first_launch(t: Tables) -> Mask:
    """Return which gaps end in the first run of a kernel, as far as the file shows."""
    events, tasks, gaps = t.trace.events, t.tasks, t.gaps
    kernels = np.flatnonzero(events.kind == Kind.KERNEL)
    is_first = np.zeros(len(events) + 1, bool)
    is_first[kernels[np.unique(events.name[kernels], return_index=True)[1]]] = True
    after = np.append(tasks.row, -1)[gaps.after]  # -1: no task after
    found: Mask = is_first[after]
    return found

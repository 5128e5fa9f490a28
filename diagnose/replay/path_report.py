"""The critical path as reports show it: its pieces in one step, and which findings lie on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from diagnose.model.forecast import CriticalPath as Drawn
from diagnose.model.forecast import PathSegment
from diagnose.replay.graph import Graph, Times
from diagnose.replay.path import CriticalPath, categories, critical_path
from diagnose.tables import Tables

__all__ = ["drawn_path"]

SMALL = 1 / 400  # of the step: shorter pieces are joined to the one before, since no eye could tell them apart


def drawn_path(t: Tables, graph: Graph, times: Times, step: tuple[int, int], shares: Mapping[str, float]) -> Drawn:
    """Return the path with the given shares, and its pieces between begin and end of a step, ns of the trace."""
    path = critical_path(graph, times)
    start, end = step
    pieces = [_within(piece, start, end) for piece in _pieces(t, graph, times, path)]
    return Drawn(shares, tuple(_joined([p for p in pieces if p.end_ns > p.start_ns], (end - start) * SMALL)))


def _pieces(t: Tables, graph: Graph, times: Times, path: CriticalPath) -> Iterator[PathSegment]:
    """Yield each node of the path and the delay before it, on the trace's clock."""
    kinds = categories(t, graph, path)
    for n, node in enumerate(path.node.tolist()):
        ended = int(times.end[node])
        ready = ended - int(path.duration_ns[n])
        row, lane = int(graph.row[node]), _lane(t, graph, node)
        name = t.name(row) if row >= 0 else "end of the step"
        yield PathSegment(ready - int(path.delay_ns[n]), ready, "latency", name, lane)
        yield PathSegment(ready, ended, str(kinds[n]), name, lane)


def _within(piece: PathSegment, start: int, end: int) -> PathSegment:
    """Cut a piece to the step and count its time from the step's begin; outside it has no length."""
    return piece._replace(start_ns=max(piece.start_ns, start) - start, end_ns=min(piece.end_ns, end) - start)


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


def _lane(t: Tables, graph: Graph, node: int) -> str:
    lane = int(graph.lane[node])
    return f"GPU {t.device_id} stream {lane}" if graph.is_task[node] else f"host {t.trace.threads[lane].tid}"

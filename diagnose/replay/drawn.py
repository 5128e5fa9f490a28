"""The critical path as reports show it: its pieces in one step, and which findings lie on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from diagnose.figures import CriticalPath as Drawn
from diagnose.figures import PathPiece
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


def _pieces(t: Tables, graph: Graph, times: Times, path: CriticalPath) -> Iterator[PathPiece]:
    """Yield each node of the path and the delay before it, on the trace's clock."""
    kinds = categories(t, graph, path)
    for n, node in enumerate(path.node.tolist()):
        ended = int(times.end[node])
        ready = ended - int(path.duration_ns[n])
        row, lane = int(graph.row[node]), _lane(t, graph, node)
        name = t.name(row) if row >= 0 else "end of the step"
        yield PathPiece(ready - int(path.delay_ns[n]), ready, "latency", name, lane)
        yield PathPiece(ready, ended, str(kinds[n]), name, lane)


def _within(piece: PathPiece, start: int, end: int) -> PathPiece:
    """Cut a piece to the step and count its time from the step's begin; outside it has no length."""
    return replace(piece, start_ns=max(piece.start_ns, start) - start, end_ns=min(piece.end_ns, end) - start)


def _joined(pieces: Sequence[PathPiece], least_ns: float) -> list[PathPiece]:
    """Join neighbours of one category, and what is too short to be seen to the piece before it."""
    joined: list[PathPiece] = []
    for whole in pieces:
        # Where the clocks of host and device are skewed a task seems to begin before what it waited for has ended.
        piece = replace(whole, start_ns=max(whole.start_ns, joined[-1].end_ns if joined else 0))
        if piece.end_ns <= piece.start_ns:
            continue
        short = piece.end_ns - piece.start_ns < least_ns
        if joined and (short or joined[-1].category == piece.category):
            last = joined[-1]
            longest = max(last, piece, key=lambda p: p.end_ns - p.start_ns)
            joined[-1] = PathPiece(last.start_ns, piece.end_ns, last.category, longest.name, last.lane)
        else:
            joined.append(piece)
    return joined


def _lane(t: Tables, graph: Graph, node: int) -> str:
    lane = int(graph.lane[node])
    return f"GPU {t.device_id} stream {lane}" if graph.is_task[node] else f"host {t.trace.threads[lane].tid}"

"""What the charts draw of one step: its bars, its gaps by cause, and the depth of the queue."""

from __future__ import annotations

import numpy as np

from diagnose.findings import Gap, Picture, Span
from diagnose.places import doing
from diagnose.tables import Tables
from diagnose.tables.queue import depth_over_time
from diagnose.trace import Ints, Kind

__all__ = ["picture"]

# A page stays quick with so many bars; the longest are kept and the rest counted.
MAX_SPANS = 3000
MAX_GAPS = 1500
MAX_DEPTHS = 1500
MAX_LAYERS = 3  # of the host's nesting


def picture(t: Tables) -> Picture:
    """Draw the step nearest to the median length, up to the begin of the next one or the end of the window."""
    lengths = t.steps.end - t.steps.start
    i = int(np.argmin(np.abs(lengths - np.median(lengths))))
    start = int(t.steps.start[i])
    end = int(t.steps.end[i]) if i + 1 < t.steps.num else t.steps.window_end
    spans = [*_device_spans(t, start, end), *_host_spans(t, start, end)]
    kept = sorted(spans, key=lambda s: s.start_ns - s.end_ns)[:MAX_SPANS]
    return Picture(
        step=int(t.steps.number[i]),
        step_ns=end - start,
        spans=tuple(sorted(kept, key=lambda s: (s.lane, s.start_ns))),
        gaps=_gaps(t, start, end),
        depth=_depth(t, start, end) if t.device_id >= 0 else (),
        num_spans_left_out=len(spans) - len(kept),
    )


def _device_spans(t: Tables, start: int, end: int) -> list[Span]:
    if t.device_id < 0:
        return []
    tasks = t.tasks
    inside = np.flatnonzero((tasks.start < end) & (tasks.end > start))
    category = np.where(tasks.is_collective, "communication", np.where(tasks.is_copy, "copy", "compute"))
    return [
        Span(
            lane=f"GPU {t.device_id} stream {tasks.stream[i]}",
            start_ns=max(int(tasks.start[i]) - start, 0),
            end_ns=min(int(tasks.end[i]), end) - start,
            name=t.name(int(tasks.row[i])),
            category=str(category[i]),
        )
        for i in inside.tolist()
    ]


_CATEGORY = {Kind.OP: "operator", Kind.ANNOTATION: "annotation", Kind.RUNTIME: "runtime"}


def _host_spans(t: Tables, start: int, end: int) -> list[Span]:
    events = t.trace.events
    spans = []
    for thread in t.threads:
        nested = t.work_layers[thread]
        for depth, rows in enumerate(nested.rows[: MAX_LAYERS + 1]):
            inside: Ints = rows[(events.start[rows] < end) & (events.end[rows] > start)]
            spans += [
                Span(
                    lane=f"host {t.trace.threads[thread].tid}" + (f" +{depth}" if depth else ""),
                    start_ns=max(int(events.start[row]) - start, 0),
                    end_ns=min(int(events.end[row]), end) - start,
                    name=t.name(row),
                    category=_CATEGORY[Kind(int(events.kind[row]))],
                )
                for row in inside.tolist()
            ]
    return spans


def _gaps(t: Tables, start: int, end: int) -> tuple[Gap, ...]:
    causes = t.causes
    rows = np.flatnonzero((causes.start < end) & (causes.end > start))
    rows = np.sort(rows[np.argsort(causes.start[rows] - causes.end[rows], kind="stable")[:MAX_GAPS]])
    return tuple(
        Gap(
            start_ns=max(int(causes.start[r]) - start, 0),
            end_ns=min(int(causes.end[r]), end) - start,
            cause=causes.rules[int(causes.rule[r])],
            detail=doing(t, t.main, int(causes.start[r] + causes.end[r]) // 2),
        )
        for r in rows.tolist()
    )


def _depth(t: Tables, start: int, end: int) -> tuple[tuple[int, int], ...]:
    time, depth = depth_over_time(t.trace, t.tasks, t.steps.window)
    first = max(int(np.searchsorted(time, start, side="right")) - 1, 0)
    last = int(np.searchsorted(time, end, side="left"))
    time, depth = np.maximum(time[first:last], start) - start, depth[first:last]
    if len(time) > MAX_DEPTHS:
        keep = np.unique(np.linspace(0, len(time) - 1, MAX_DEPTHS).astype(np.intp))
        time, depth = time[keep], depth[keep]
    return tuple(zip(time.tolist(), depth.tolist(), strict=True))

"""What the charts draw of one step: its bars, its gaps by cause, and the depth of the queue."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.locate import enclosing_operators
from diagnose.model.charts import Gap, Picture, Span
from diagnose.model.events import Kind
from diagnose.model.intervals import distinct
from diagnose.tables import Tables
from diagnose.tables.queue import depth_over_time

__all__ = ["picture"]

# A page stays quick with so many bars; the longest are kept and the rest counted.
MAX_DEVICE_SPANS = 1500
MAX_HOST_SPANS = 500
MAX_GAPS = 600
MAX_DEPTHS = 800
MAX_LAYERS = 3  # of the host's nesting


def picture(t: Tables) -> Picture:
    """Draw the typical step, up to the begin of the next one or the end of the window."""
    i = t.steps.median_step
    start = int(t.steps.start[i])
    end = int(t.steps.end[i]) if i + 1 < t.steps.num else t.steps.window_end
    device, host = _device_bars(t, start, end), _host_bars(t, start, end)
    kept = [*_longest(t, device, start, end, MAX_DEVICE_SPANS), *_longest(t, host, start, end, MAX_HOST_SPANS)]
    num = sum(len(bars.rows) for bars in (*device, *host))
    return Picture(
        step=int(t.steps.number[i]),
        step_ns=end - start,
        spans=tuple(sorted(kept, key=lambda s: (s.lane, s.start_ns))),
        gaps=_gaps(t, start, end),
        depth=_depth(t, start, end) if t.device_id >= 0 else (),
        num_spans_left_out=num - len(kept),
    )


class _Bars(NamedTuple):
    """Events of one lane and category."""

    lane: str
    category: str
    rows: npt.NDArray[np.intp]


def _device_bars(t: Tables, start: int, end: int) -> list[_Bars]:
    if t.device_id < 0:
        return []
    tasks = t.tasks
    inside = (tasks.start < end) & (tasks.end > start)
    kinds = {"communication": tasks.is_collective, "copy": tasks.is_copy}
    kinds["compute"] = ~(tasks.is_collective | tasks.is_copy)
    return [
        _Bars(f"GPU {t.device_id} stream {stream}", category, tasks.row[inside & mask & (tasks.stream == stream)])
        for stream in distinct(tasks.stream[inside]).tolist()
        for category, mask in kinds.items()
    ]


_CATEGORY = {Kind.OP: "operator", Kind.ANNOTATION: "annotation", Kind.RUNTIME: "runtime"}


def _host_bars(t: Tables, start: int, end: int) -> list[_Bars]:
    events = t.trace.events
    bars = []
    for thread in t.threads:
        for depth, rows in enumerate(t.work_layers[thread].rows[: MAX_LAYERS + 1]):
            lane = f"host {t.trace.threads[thread].tid}" + (f" +{depth}" if depth else "")
            inside = rows[(events.start[rows] < end) & (events.end[rows] > start)]
            bars += [_Bars(lane, name, inside[events.kind[inside] == kind]) for kind, name in _CATEGORY.items()]
    return bars


def _longest(t: Tables, lanes: list[_Bars], start: int, end: int, most: int) -> list[Span]:
    """Draw the ``most`` longest events of the lanes."""
    events = t.trace.events
    length = np.concatenate([(events.end - events.start)[bars.rows] for bars in lanes] or [np.zeros(0, np.int64)])
    least_ns = int(np.partition(length, -most)[-most]) if len(length) > most else 0
    spans = [span for bars in lanes for span in _spans(t, bars, start, end, least_ns)]
    return sorted(spans, key=lambda s: s.start_ns - s.end_ns)[:most]


def _spans(t: Tables, bars: _Bars, start: int, end: int, least_ns: int) -> list[Span]:
    events = t.trace.events
    rows = bars.rows[(events.end - events.start)[bars.rows] >= least_ns]
    return [
        Span(
            lane=bars.lane,
            start_ns=max(int(events.start[row]) - start, 0),
            end_ns=min(int(events.end[row]), end) - start,
            name=t.name(row),
            category=bars.category,
        )
        for row in rows.tolist()
    ]


def _gaps(t: Tables, start: int, end: int) -> tuple[Gap, ...]:
    causes = t.causes
    rows = np.flatnonzero((causes.start < end) & (causes.end > start))
    rows = np.sort(rows[np.argsort(causes.start[rows] - causes.end[rows], kind="stable")[:MAX_GAPS]])
    details = enclosing_operators(t, t.main, (causes.start[rows] + causes.end[rows]) // 2)
    return tuple(
        Gap(
            start_ns=max(int(causes.start[r]) - start, 0),
            end_ns=min(int(causes.end[r]), end) - start,
            cause=causes.rules[int(causes.rule[r])],
            detail=detail,
        )
        for r, detail in zip(rows.tolist(), details, strict=True)
    )


def _depth(t: Tables, start: int, end: int) -> tuple[tuple[int, int], ...]:
    time, depth = depth_over_time(t.trace, t.tasks, t.steps.window, t.launch_latency)
    first = max(int(np.searchsorted(time, start, side="right")) - 1, 0)
    last = int(np.searchsorted(time, end, side="left"))
    time, depth = np.maximum(time[first:last], start) - start, depth[first:last]
    if len(time) > MAX_DEPTHS:
        keep = np.unique(np.linspace(0, len(time) - 1, MAX_DEPTHS).astype(np.intp))
        time, depth = time[keep], depth[keep]
    return tuple(zip(time.tolist(), depth.tolist(), strict=True))

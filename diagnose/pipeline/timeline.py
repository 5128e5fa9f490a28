"""What the charts draw of one step: its bars, its gaps by cause, and the depth of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.common.locate import enclosing_operators, locate_one
from diagnose.model.arrays import Rows
from diagnose.model.capture import Capture
from diagnose.model.charts import Gap, Picture, SpanTable
from diagnose.model.diagnosis import Where
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import among, distinct, grouped
from diagnose.pipeline.device_time import by_operator, every_kernel
from diagnose.pipeline.flames import flames
from diagnose.pipeline.readings import readings
from diagnose.pipeline.step_parts import step_parts
from diagnose.tables import Tables
from diagnose.tables.queue import depth_over_time

__all__ = ["picture", "whole_window"]

MIN_ROLE_SHARE = 0.5  # of a stream's time: from here on it is called by what it does
MAX_SPANS = 300_000  # of the page: it grows by about six bytes for each; the longest are kept and the rest counted
MAX_GAPS = 20_000
MAX_PLACES = 60  # gaps whose line is looked up, the largest
MAX_DEPTHS = 20_000  # points of the queue's depth: more than a wide screen has pixels, zoomed in tenfold
MAX_LAYERS = 24  # of the host's nesting


def picture(
    t: Tables,
    shares: Mapping[str, float] | None = None,
    *,
    named: Tables | None = None,
    recorded: Trace | None = None,
    whole: bool = False,
) -> Picture:
    """Draw the typical step, up to the begin of the next one or the end of the window; all steps with ``whole``.

    ``shares`` are those of the causes, where something was taken out of them. ``named`` are the tables of the
    attribution window, which has stacks. ``recorded`` is the trace with the clock's times, where the cost of recording
    was taken out of ``t``.
    """
    i = t.steps.median_step
    start = int(t.steps.start[0 if whole else i])
    end = int(t.steps.end[i]) if i + 1 < t.steps.num and not whole else t.steps.window_end
    bars = [*_device_bars(t, start, end), *_host_bars(t, start, end)]
    spans = _table(t, bars, start, end)
    return Picture(
        step=int(t.steps.number[i]),
        step_ns=end - start,
        spans=spans,
        gaps=_gaps(t, start, end),
        depth=_depth(t, start, end) if t.device_id >= 0 else (),
        num_spans_left_out=sum(len(b.rows) for b in bars) - len(spans),
        titles=_titles(t),
        steps=step_parts(t),
        kernels=every_kernel(t),
        by_operator=by_operator(t),
        flames=flames(t, named, shares),
        readings=readings(t, recorded),
    )


def whole_window(capture: Capture) -> Picture:
    """Draw all steady steps of a rank."""
    from diagnose.pipeline.find import build_tables  # which draws pictures itself

    return picture(build_tables(capture, capture.trace), whole=True)


class _Bars(NamedTuple):
    """Events of one lane and category."""

    lane: str
    category: str
    rows: Rows


_TASKS = ("compute", "communication", "copy")
_CATEGORY = {Kind.OP: "operator", Kind.ANNOTATION: "annotation", Kind.RUNTIME: "runtime"}


def _device_bars(t: Tables, start: int, end: int) -> list[_Bars]:
    if t.device_id < 0:
        return []
    tasks = t.tasks
    inside = (tasks.start < end) & (tasks.end > start)
    kinds = dict(zip(_TASKS, (~(tasks.is_collective | tasks.is_copy), tasks.is_collective, tasks.is_copy), strict=True))
    return [
        _Bars(_stream(t, stream), category, tasks.row[shown[mask[shown]]])
        for stream, mine in t.streams.items()
        if len(shown := mine[inside[mine]])
        for category, mask in kinds.items()
    ]


def _stream(t: Tables, stream: int) -> str:
    return f"GPU {t.device_id} stream {stream}"


def _host_bars(t: Tables, start: int, end: int) -> list[_Bars]:
    events = t.trace.events
    bars = []
    for thread in _threads(t):
        for depth, rows in enumerate(t.work_layers[thread].rows[:MAX_LAYERS]):
            lane = _thread(t, thread) + (f" +{depth}" if depth else "")
            inside = rows[(events.start[rows] < end) & (events.end[rows] > start)]
            bars += [_Bars(lane, name, inside[events.kind[inside] == kind]) for kind, name in _CATEGORY.items()]
    return bars


def _threads(t: Tables) -> tuple[int, ...]:
    """Return the threads that are drawn; a file of device tasks alone has none."""
    return tuple(thread for thread in t.threads if 0 <= thread < len(t.trace.threads))


def _thread(t: Tables, thread: int) -> str:
    return f"host {t.trace.threads[thread].tid}"


def _titles(t: Tables) -> dict[str, str]:
    """Return what a lane is called: a thread's own name and what it is for, a stream's role."""
    titles = {}
    for thread in _threads(t):
        known = t.trace.threads[thread]
        name = known.name.strip() or "thread"
        named = name if known.tid in name else f"{name} {known.tid}"
        titles[_thread(t, thread)] = f"training thread · {named}" if thread == t.main else named
    for stream, mine in t.streams.items() if t.device_id >= 0 else ():
        length = (t.tasks.end[mine] - t.tasks.start[mine]).astype(np.float64)
        whole = float(length.sum()) or 1.0
        for mask, role in ((t.tasks.is_collective, "communication"), (t.tasks.is_copy, "copies")):
            if float(length[mask[mine]].sum()) > MIN_ROLE_SHARE * whole:
                titles[_stream(t, stream)] = f"{_stream(t, stream)} · {role}"
    return titles


def _table(t: Tables, bars: list[_Bars], start: int, end: int) -> SpanTable:
    """Return the bars in columns, lane by lane in time order; of too many the longest."""
    events = t.trace.events
    rows = np.concatenate([b.rows for b in bars] or [np.zeros(0, np.intp)]).astype(np.intp)
    counts = [len(b.rows) for b in bars]
    lanes, categories = (
        {name: i for i, name in enumerate(dict.fromkeys(getattr(b, key) for b in bars))} for key in ("lane", "category")
    )
    lane = np.repeat([lanes[b.lane] for b in bars], counts).astype(np.int64)
    category = np.repeat([categories[b.category] for b in bars], counts).astype(np.int64)
    if len(rows) > MAX_SPANS:
        length = events.end[rows] - events.start[rows]
        keep = np.sort(np.argsort(-length, kind="stable")[:MAX_SPANS])
        rows, lane, category = rows[keep], lane[keep], category[keep]
    order = np.lexsort((-events.end[rows], events.start[rows], lane))
    rows, lane, category = rows[order], lane[order], category[order]
    names, _, name = grouped(events.name[rows])
    of_row = np.full(len(events) + 1, -1, np.int64)
    of_row[rows] = np.arange(len(rows))
    is_task = among(category, [categories[c] for c in _TASKS if c in categories])
    cause = np.where(is_task, events.cause[rows], -1) if len(rows) else np.zeros(0, np.int64)
    return SpanTable(
        tuple(lanes),
        tuple(t.trace.names[i] for i in names.tolist()),
        tuple(categories),
        lane=lane,
        start=np.maximum(events.start[rows] - start, 0),
        end=np.minimum(events.end[rows], end) - start,
        name=name.astype(np.int64),
        category=category,
        launch=of_row[cause],
    )


def _gaps(t: Tables, start: int, end: int) -> tuple[Gap, ...]:
    causes = t.causes
    rows = np.flatnonzero((causes.start < end) & (causes.end > start))
    rows = np.sort(rows[np.argsort(causes.start[rows] - causes.end[rows], kind="stable")[:MAX_GAPS]])
    middle = (causes.start[rows] + causes.end[rows]) // 2
    details = enclosing_operators(t, t.main, middle)
    largest = np.argsort(causes.start[rows] - causes.end[rows], kind="stable")[:MAX_PLACES]
    places = {int(rows[i]): _line(locate_one(t, t.main, int(middle[i]))) for i in largest.tolist()}
    return tuple(
        Gap(
            start_ns=max(int(causes.start[r]) - start, 0),
            end_ns=min(int(causes.end[r]), end) - start,
            cause=causes.rules[int(causes.rule[r])],
            detail=detail,
            place=places.get(r, ""),
        )
        for r, detail in zip(rows.tolist(), details, strict=True)
    )


def _line(where: Where) -> str:
    """Return "train.py:42", "" where the line is not known."""
    if not where.file or not where.line or where.line <= 0:
        return ""
    return f"{where.file.rpartition('/')[2]}:{where.line}"


def _depth(t: Tables, start: int, end: int) -> tuple[tuple[int, int], ...]:
    time, depth = depth_over_time(t.trace, t.tasks, t.steps.window, t.launch_latency)
    first = max(int(np.searchsorted(time, start, side="right")) - 1, 0)
    last = int(np.searchsorted(time, end, side="left"))
    time, depth = np.maximum(time[first:last], start) - start, depth[first:last]
    if len(time) > MAX_DEPTHS:
        cuts = distinct(np.linspace(0, len(time), MAX_DEPTHS, endpoint=False).astype(np.intp))
        time, depth = time[cuts], np.maximum.reduceat(depth, cuts)
    return tuple(zip(time.tolist(), depth.tolist(), strict=True))

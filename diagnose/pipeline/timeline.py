"""What the charts draw of one step: its bars, its gaps by cause, and the depth of the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.common.locate import enclosing_operators, locate_one
from diagnose.model.arrays import Floats, Ints, Rows
from diagnose.model.capture import Capture
from diagnose.model.charts import BUSY, DeviceShare, Gap, KernelTime, Picture, Readings, SpanTable, StepParts
from diagnose.model.diagnosis import Where
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import Intervals, among, covered, distinct, grouped
from diagnose.pipeline.flames import flames
from diagnose.tables import Tables
from diagnose.tables.kernel_classes import kernel_times
from diagnose.tables.nvml_readings import gpu_rows
from diagnose.tables.op_launches import operators
from diagnose.tables.queue import depth_over_time
from diagnose.tables.steps import find_steps

__all__ = ["by_operator", "every_kernel", "picture", "readings", "step_parts", "whole_window"]

# Device time as a page lists it: by every kernel, and by the operator that launched it.

MAX_KERNELS = 400  # names on a page; what is left out is its last row
MAX_LOCATED = 60  # kernels whose launch is looked up, the most expensive
MAX_SHARES = 60  # operators


def every_kernel(t: Tables) -> tuple[KernelTime, ...]:
    """Return the kernels by name, the most expensive with the place of their launch."""
    events = t.trace.events
    return tuple(
        replace(row, where=replace(locate_one(t, int(events.thread[at]), int(events.start[at])), stack=()))
        if at >= 0 and i < MAX_LOCATED
        else row
        for i, (row, at) in enumerate(kernel_times(t, MAX_KERNELS))
    )


def by_operator(t: Tables) -> tuple[DeviceShare, ...]:
    """Return the device time that each operator launched; what no operator launched is one entry."""
    if t.device_id < 0 or not len(t.tasks.row):
        return ()
    ops = operators(t)
    names = np.where(ops >= 0, t.trace.events.name[np.maximum(ops, 0)], -1).astype(np.int64)
    return _shares(t, names, {-1: "(no operator recorded)"})


def _shares(t: Tables, names: Ints, others: dict[int, str]) -> tuple[DeviceShare, ...]:
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    ids, _, inverse = grouped(names)
    time, calls = np.bincount(inverse, length), np.bincount(inverse)
    whole = float(length.sum()) or 1.0
    found = [
        DeviceShare(
            others.get(int(ids[i])) or t.trace.names[int(ids[i])],
            int(calls[i]) / t.steps.num,
            float(time[i]) / t.steps.num,
            float(time[i]) / whole,
        )
        for i in np.argsort(-time, kind="stable")[:MAX_SHARES].tolist()
    ]
    return tuple(found)


# What each recorded step consists of: the idle time of its causes, and the rest.

MAX_STEPS = 2_000  # of the chart: more than a screen has room for


def step_parts(t: Tables) -> tuple[StepParts, ...]:
    """Return the steady steps with their own numbers, each from its begin to that of the next one."""
    first, causes = t.steps.start, t.causes
    last = np.append(first[1:], t.steps.end[-1:])
    parts = {
        rule: covered(_of(t, rule), first, last)
        for i, rule in enumerate(causes.rules)
        if bool((causes.rule == i).any())
    }
    idle = sum(parts.values(), np.zeros(len(first), np.int64))
    if t.device_id >= 0:
        parts[BUSY] = np.maximum(last - first - idle, 0)
    return tuple(
        StepParts(
            int(t.steps.number[i]),
            int(t.steps.end[i] - t.steps.start[i]),
            {name: int(each[i]) for name, each in parts.items() if each[i] > 0},
        )
        for i in range(min(t.steps.num, MAX_STEPS))
    )


def _of(t: Tables, rule: str) -> Intervals:
    rows = t.causes.of(rule)
    return Intervals(t.causes.start[rows], t.causes.end[rows])


# What NVML read while the recorded steps ran, laid over them.

MAX_POINTS = 1_000  # of a series: a chart is about as many pixels wide


def readings(t: Tables, recorded: Trace | None = None) -> tuple[Readings, ...]:
    """Return the series of the device that fall into the recorded steps.

    ``recorded`` is the trace as it was recorded, where the cost of recording was taken out of ``t``: readings have
    the time of the clock, and so have its steps.
    """
    gpu = next((gpu for gpu in gpu_rows(t) if gpu.index == t.device_id), None)
    trace = recorded if recorded is not None else t.trace
    if gpu is None or not trace.epoch_ns:
        return ()
    steps = find_steps(trace)
    if not steps.marked or steps.num != t.steps.num:
        return ()
    time = np.array(gpu.time_ns, np.int64) - trace.epoch_ns
    at = np.searchsorted(steps.start, time, side="right") - 1
    inside = (at >= 0) & (time < steps.end[np.maximum(at, 0)])
    length = np.maximum(steps.end - steps.start, 1)[np.maximum(at, 0)]
    position = at + (time - steps.start[np.maximum(at, 0)]) / length
    kept = np.flatnonzero(inside)
    kept = kept[distinct(np.linspace(0, len(kept) - 1, min(len(kept), MAX_POINTS)).astype(np.intp))]
    found = (
        ("GPU utilisation", "%", gpu.utilisation, 1.0, 100.0),
        ("SM clock", "MHz", gpu.sm_mhz, 1.0, gpu.max_sm_mhz),
        ("Power", "W", gpu.power_w, 1.0, gpu.power_limit_w),
        ("Memory in use", "GB", gpu.memory_used_bytes, 1e-9, (gpu.memory_total_bytes or 0) / 1e9 or None),
    )
    series = [
        Readings(name, unit, _points(position, kept.tolist(), values, per), limit)
        for name, unit, values, per, limit in found
    ]
    return tuple(s for s in series if s.points)


def _points(
    position: Floats, kept: Sequence[int], values: Sequence[float | None], per: float
) -> tuple[tuple[float, float], ...]:
    """Return the readings that the board answered."""
    known = ((i, values[i]) for i in kept if i < len(values))
    return tuple((round(float(position[i]), 3), round(value * per, 3)) for i, value in known if value is not None)


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

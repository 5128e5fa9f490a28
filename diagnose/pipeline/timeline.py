"""What the charts draw of one step: its bars, its gaps by cause, and the depth of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.common.locate import enclosing_operators, locate_one
from diagnose.model.arrays import Rows
from diagnose.model.capture import Capture
from diagnose.model.charts import BUSY, Gap, Picture, Readings, SpanTable, StepParts
from diagnose.model.diagnosis import Where
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import Intervals, among, covered, distinct, grouped
from diagnose.pipeline.code_times import MAX_PAGE_ROWS, by_operator, kernels
from diagnose.pipeline.flames import flames
from diagnose.tables import Tables
from diagnose.tables.nvml_readings import gpu_rows
from diagnose.tables.queue import depth_over_time
from diagnose.tables.steps import find_steps

__all__ = ["picture", "readings", "whole_window"]

MIN_ROLE_SHARE = 0.5  # of a stream's time: from here on it is called by what it does


class Drawn(NamedTuple):
    """How much is drawn at most."""

    whole: bool = False  # all steps, and not a typical one
    spans: int = 300_000  # a page grows by about six bytes for each; the longest are kept and the rest counted
    gaps: int = 20_000
    depths: int = 20_000  # points of the queue's depth: more than a wide screen has pixels, zoomed in tenfold
    layers: int = 24  # of the host's nesting
    steps: int = 2_000  # of a chart, and readings of a device: more than a screen has room for


TYPICAL_STEP = Drawn()


def picture(
    t: Tables,
    shares: Mapping[str, float] | None = None,
    *,
    named: Tables | None = None,
    recorded: Trace | None = None,
    most: Drawn = TYPICAL_STEP,
) -> Picture:
    """Draw the typical step, up to the begin of the next one or the end of the window; or ``most``.

    ``shares`` are those of the causes, where something was taken out of them. ``named`` are the tables of the
    attribution window, which has stacks. ``recorded`` is the trace with the clock's times, where the cost of recording
    was taken out of ``t``.
    """
    i = t.steps.median_step
    start = int(t.steps.start[0 if most.whole else i])
    end = int(t.steps.end[i]) if i + 1 < t.steps.num and not most.whole else t.steps.window_end
    bars = [*_device_bars(t, start, end), *_host_bars(t, start, end, most.layers)]
    spans = _table(t, bars, (start, end), most.spans)
    return Picture(
        step=int(t.steps.number[i]),
        step_ns=end - start,
        spans=spans,
        gaps=_gaps(t, start, end, most.gaps),
        depth=_depth(t, start, end, most.depths) if t.device_id >= 0 else (),
        num_spans_left_out=sum(len(b.rows) for b in bars) - len(spans),
        titles=_titles(t),
        steps=step_parts(t, most.steps),
        kernels=kernels(t, 400),  # names on a page
        by_operator=by_operator(t),
        flames=flames(t, named, shares),
        readings=readings(t, recorded),
    )


def whole_window(capture: Capture) -> Picture:
    """Draw all steady steps of a rank."""
    from diagnose.pipeline.find import build_tables  # which draws pictures itself

    return picture(build_tables(capture, capture.trace), most=Drawn(whole=True))


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
        _Bars(f"GPU {t.device_id} stream {stream}", category, tasks.row[shown[mask[shown]]])
        for stream, mine in t.streams.items()
        if len(shown := mine[inside[mine]])
        for category, mask in kinds.items()
    ]


def _host_bars(t: Tables, start: int, end: int, num_layers: int) -> list[_Bars]:
    events = t.trace.events
    bars = []
    for thread in _threads(t):
        for depth, rows in enumerate(t.work_layers[thread].rows[:num_layers]):
            lane = f"host {t.trace.threads[thread].tid}" + (f" +{depth}" if depth else "")
            inside = rows[(events.start[rows] < end) & (events.end[rows] > start)]
            bars += [_Bars(lane, name, inside[events.kind[inside] == kind]) for kind, name in _CATEGORY.items()]
    return bars


def _threads(t: Tables) -> tuple[int, ...]:
    """Return the threads that are drawn; a file of device tasks alone has none."""
    return tuple(thread for thread in t.threads if 0 <= thread < len(t.trace.threads))


def _titles(t: Tables) -> dict[str, str]:
    """Return what a lane is called: a thread's own name and what it is for, a stream's role."""
    titles = {}
    for thread in _threads(t):
        known = t.trace.threads[thread]
        name = known.name.strip() or "thread"
        named = name if known.tid in name else f"{name} {known.tid}"
        titles[f"host {known.tid}"] = f"training thread · {named}" if thread == t.main else named
    for stream, mine in t.streams.items() if t.device_id >= 0 else ():
        lane = f"GPU {t.device_id} stream {stream}"
        length = (t.tasks.end[mine] - t.tasks.start[mine]).astype(np.float64)
        for mask, role in ((t.tasks.is_collective, "communication"), (t.tasks.is_copy, "copies")):
            if float(length[mask[mine]].sum()) > MIN_ROLE_SHARE * float(length.sum()):
                titles[lane] = f"{lane} · {role}"
    return titles


def _table(t: Tables, bars: list[_Bars], window: tuple[int, int], most: int) -> SpanTable:
    """Return the bars in columns, lane by lane in time order; of too many the longest."""
    events, (start, end) = t.trace.events, window
    rows = np.concatenate([np.zeros(0, np.intp), *(b.rows for b in bars)])
    counts = [len(b.rows) for b in bars]
    lanes, categories = (
        {name: i for i, name in enumerate(dict.fromkeys(getattr(b, key) for b in bars))} for key in ("lane", "category")
    )
    lane = np.repeat([lanes[b.lane] for b in bars], counts).astype(np.int64)
    category = np.repeat([categories[b.category] for b in bars], counts).astype(np.int64)
    longest = np.sort(np.argsort(events.start[rows] - events.end[rows], kind="stable")[:most])
    rows, lane, category = rows[longest], lane[longest], category[longest]
    order = np.lexsort((-events.end[rows], events.start[rows], lane))
    rows, lane, category = rows[order], lane[order], category[order]
    names, _, name = grouped(events.name[rows])
    of_row = np.full(len(events) + 1, -1, np.int64)
    of_row[rows] = np.arange(len(rows))
    is_task = among(category, [categories.get(c, -1) for c in _TASKS])
    return SpanTable(
        tuple(lanes),
        tuple(t.trace.names[i] for i in names.tolist()),
        tuple(categories),
        lane=lane,
        start=np.maximum(events.start[rows] - start, 0),
        end=np.minimum(events.end[rows], end) - start,
        name=name.astype(np.int64),
        category=category,
        launch=of_row[np.where(is_task, events.cause[rows], -1)],
    )


def _gaps(t: Tables, start: int, end: int, most: int) -> tuple[Gap, ...]:
    causes = t.causes
    rows = np.flatnonzero((causes.start < end) & (causes.end > start))
    rows = np.sort(rows[np.argsort(causes.start[rows] - causes.end[rows], kind="stable")[:most]])
    middle = (causes.start[rows] + causes.end[rows]) // 2
    details = enclosing_operators(t, t.main, middle)
    largest = np.argsort(causes.start[rows] - causes.end[rows], kind="stable")[:MAX_PAGE_ROWS]
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


def _depth(t: Tables, start: int, end: int, most: int) -> tuple[tuple[int, int], ...]:
    time, depth = depth_over_time(t.trace, t.tasks, t.steps.window, t.launch_latency)
    first = max(int(np.searchsorted(time, start, side="right")) - 1, 0)
    last = int(np.searchsorted(time, end, side="left"))
    time, depth = np.maximum(time[first:last], start) - start, depth[first:last]
    cuts = distinct(np.linspace(0, len(time), min(len(time), most), endpoint=False).astype(np.intp))
    return tuple(zip(time[cuts].tolist(), np.maximum.reduceat(depth, cuts).tolist(), strict=True))


# What each recorded step consists of: the idle time of its causes, and the rest.


def step_parts(t: Tables, most: int) -> tuple[StepParts, ...]:
    """Return the steady steps with their own numbers, each from its begin to that of the next one."""
    first, causes = t.steps.start, t.causes
    last = np.append(first[1:], t.steps.end[-1:])
    rows = {rule: causes.of(rule) for rule in causes.rules}
    parts = {rule: covered(Intervals(causes.start[at], causes.end[at]), first, last) for rule, at in rows.items()}
    if t.device_id >= 0:
        parts[BUSY] = np.maximum(last - first - sum(parts.values(), np.zeros_like(first)), 0)
    return tuple(
        StepParts(
            int(t.steps.number[i]),
            int(t.steps.end[i] - t.steps.start[i]),
            {name: int(each[i]) for name, each in parts.items() if each[i] > 0},
        )
        for i in range(min(t.steps.num, most))
    )


# What NVML read while the recorded steps ran, laid over them.


def readings(t: Tables, recorded: Trace | None = None) -> tuple[Readings, ...]:
    """Return the series of the device that fall into the recorded steps.

    ``recorded`` is the trace as it was recorded, where the cost of recording was taken out of ``t``: readings have
    the time of the clock, and so have its steps.
    """
    trace = recorded if recorded is not None else t.trace
    gpus, steps = [gpu for gpu in gpu_rows(t) if gpu.index == t.device_id], find_steps(trace)
    if not gpus or not trace.epoch_ns or not steps.marked or steps.num != t.steps.num:
        return ()
    gpu, time = gpus[0], np.array(gpus[0].time_ns, np.int64) - trace.epoch_ns
    at = np.searchsorted(steps.start, time, side="right") - 1
    step = np.maximum(at, 0)
    position = at + (time - steps.start[step]) / np.maximum(steps.end - steps.start, 1)[step]
    kept = np.flatnonzero((at >= 0) & (time < steps.end[step]))
    kept = kept[distinct(np.linspace(0, len(kept) - 1, min(len(kept), TYPICAL_STEP.steps)).astype(np.intp))]
    found = (
        ("GPU utilisation", "%", gpu.utilisation, 1.0, 100.0),
        ("SM clock", "MHz", gpu.sm_mhz, 1.0, gpu.max_sm_mhz),
        ("Power", "W", gpu.power_w, 1.0, gpu.power_limit_w),
        ("Memory in use", "GB", gpu.memory_used_bytes, 1e-9, (gpu.memory_total_bytes or 0) / 1e9 or None),
    )
    series = []
    for name, unit, values, per, limit in found:
        known = ((i, values[i]) for i in kept.tolist() if i < len(values))  # what the board answered
        points = ((round(float(position[i]), 3), round(value * per, 3)) for i, value in known if value is not None)
        series.append(Readings(name, unit, tuple(points), limit))
    return tuple(s for s in series if s.points)

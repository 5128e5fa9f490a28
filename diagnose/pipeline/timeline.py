"""What the charts draw: a step's bars, gaps by cause, queue depth, flame graphs; a finding's part of the data flow."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diagnose.analyzers.common.locate import enclosing_operators, locate_one, source_line
from diagnose.model.arrays import Floats, Ints, Rows
from diagnose.model.capture import Capture
from diagnose.model.charts import (
    BUSY,
    Flame,
    FlowNode,
    FlowPicture,
    Frame,
    Gap,
    KeptByLine,
    LeftByLine,
    Mark,
    MemoryByLine,
    Picture,
    Readings,
    SpanTable,
    StepParts,
)
from diagnose.model.dataflow import Frame as Caller
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import Intervals, among, covered, distinct, grouped, subtract
from diagnose.model.limits import MAJORITY
from diagnose.model.locations import Where, is_own_file
from diagnose.pipeline.code_times import (
    MAX_PAGE_ROWS,
    MAX_STACK_DEPTH,
    MIN_SAMPLES_SHOWN,
    MIN_SHOWN_SHARE,
    by_operator,
    kernels,
)
from diagnose.tables import Tables
from diagnose.tables.call_frames import names_of_open_frames
from diagnose.tables.flow import Flow, shows_values
from diagnose.tables.host import Layers, host_rows, layers
from diagnose.tables.names import NAME_PART, STEP_MARK
from diagnose.tables.nvml_readings import gpu_rows
from diagnose.tables.queue import depth_over_time
from diagnose.tables.steps import find_steps

if TYPE_CHECKING:
    from diagnose.dataflow.graph import Graph


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
    bars, events = _device_bars(t, start, end), t.trace.events
    for thread in _threads(t):
        for depth, rows in enumerate(t.work_layers[thread].rows[: most.layers]):
            lane = f"host {t.trace.threads[thread].tid}" + (f" +{depth}" if depth else "")
            inside = rows[(events.start[rows] < end) & (events.end[rows] > start)]
            bars += [_Bars(lane, name, inside[events.kind[inside] == kind]) for kind, name in _CATEGORY.items()]
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
            if float(length[mask[mine]].sum()) > MAJORITY * float(length.sum()):
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
    places = {}
    for i in largest.tolist():
        where = locate_one(t, t.main, int(middle[i]))
        if where.file and where.line and where.line > 0:
            places[int(rows[i])] = f"{where.file.rpartition('/')[2]}:{where.line}"
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


# What the host's threads were in while the device was idle, by cause: the boxes of flame graphs.
#
# Python frames stand in the attribution window alone; its steps are slower, so the shares are taken from there and the
# time from the timing window. Where a cause is not found there, or stacks were not recorded, operators and calls of
# the timing window are shown, and the sampler's lines where no operator runs.

_KINDS = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.PYTHON)
_KIND_NAMES = {Kind.OP: "operator", Kind.ANNOTATION: "annotation", Kind.RUNTIME: "runtime"}
_ADDRESS = r" at 0x[0-9a-fA-F]+(?=>)"
_FRAME = r"^(?P<file>.+?)\(\d+\): "
_LINE = r"\(\d+\)(?=: )"
# What starts a script and what stands between a module and its forward: in every stack, and never the reason.
_WRAPPERS = (
    r"^<frozen |^<string>\(|(^|/)(runpy|threading|contextlib)\.py\(|(^|/)diagnose/\w|torch/utils/_contextlib\.py\("
    r"|torch/nn/modules/module\.py\(\d+\): _(wrapped_)?call_impl"
    r"|^<built-in (method|function) exec(\b| of)"
)


def flames(
    t: Tables, named: Tables | None, shares: Mapping[str, float] | None = None, *, most: int = 600
) -> tuple[Flame, ...]:
    """Return a flame graph of each cause, the largest first.

    ``named`` are the tables of the attribution window, ``shares`` what a report states of each cause,
    ``most`` how many boxes of a cause there are: a screen has room for about half of these.
    """
    totals = {rule: ns / t.steps.num for rule, ns in t.causes.totals().items()}
    step_ns = t.steps.step_ns
    stated = {rule: min(share * step_ns, totals.get(rule, 0.0)) for rule, share in (shares or {}).items()} or totals
    largest = sorted((rule for rule, ns in stated.items() if ns >= MIN_SHOWN_SHARE * step_ns), key=lambda r: -stated[r])
    sources = [(t, False)] if named is None or not _has_stacks(named) else [(named, True), (t, False)]
    found: list[Flame] = []
    for rule in largest[:12]:
        for source, is_scaled in sources:
            scale = stated[rule] / max(source.causes.totals().get(rule, 0), 1)
            if frames := _frames(source, rule, scale, most):
                found.append(Flame(rule, round(stated[rule]), frames, is_scaled=is_scaled))
                break
    return tuple(found)


def _has_stacks(t: Tables) -> bool:
    return any(len(found.rows) for found in t.frame_layers.values())


class _Pieces(NamedTuple):
    """Pieces of time in order, each with the box that it is in."""

    start: Ints
    end: Ints
    box: Ints


class _Tree:
    """Boxes by what is around them; box 0 is the cause."""

    def __init__(self) -> None:
        self.parent, self.name, self.ns = [-1], [-1], [0]

    def inside(self, pieces: _Pieces, start: Ints, end: Ints, name: Ints) -> tuple[_Pieces, _Pieces]:
        """Return what of the pieces one layer of events covers, in boxes of their own, and what it leaves."""
        low, high = np.searchsorted(end, pieces.start, "right"), np.searchsorted(start, pieces.end, "left")
        count = np.maximum(high - low, 0)
        of = np.repeat(np.arange(len(count)), count)
        event = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count) + low[of]
        from_, to = np.maximum(pieces.start[of], start[event]), np.minimum(pieces.end[of], end[event])
        kept = to > from_
        of, event, from_, to = of[kept], event[kept], from_[kept], to[kept]
        boxes, _, which = grouped((pieces.box[of] << 32) + name[event])
        first = len(self.parent)
        self.parent += (boxes >> 32).tolist()
        self.name += (boxes & 0xFFFFFFFF).tolist()
        self.ns += np.bincount(which, (to - from_).astype(np.float64), minlength=len(boxes)).astype(np.int64).tolist()
        left = subtract(Intervals(pieces.start, pieces.end), Intervals(from_, to))
        around = np.searchsorted(pieces.start, left.start, "right") - 1
        return _Pieces(from_, to, first + which), _Pieces(left.start, left.end, pieces.box[around])


def _frames(t: Tables, rule: str, scale: float, most: int) -> tuple[Frame, ...]:
    """Return the boxes of one cause; ``scale`` turns their sums into time per step."""
    rows = t.causes.of(rule)
    start, end = t.causes.start[rows], t.causes.end[rows]
    names, tree = _names(t), _Tree()
    tree.ns[0] = int((end - start).sum())
    bare = _Pieces(start, end, np.zeros(len(rows), np.int64))
    for thread in t.threads:  # what another thread does stands below what the main thread was in
        nested = t.cached(("flame layers", thread), partial(_shown_layers, t, thread))
        innermost = []
        for each, begin in zip(nested.rows, nested.start, strict=True):
            bare, left = tree.inside(bare, begin, nested.event_end[each], names.of_row[each])
            innermost.append(left)
            if not len(bare.start):
                break
        parts = (*innermost, bare)
        order = np.argsort(np.concatenate([p.start for p in parts]), kind="stable")
        bare = _Pieces(*(np.concatenate(columns)[order] for columns in zip(*parts, strict=True)))
    if not _has_stacks(t):
        _add_lines(t, tree, bare, names)
    # The largest boxes, each before what it called.
    ns = np.array(tree.ns, np.int64)
    # A box is at least as long as what is in it and has a lower number, so no box is kept without those around it.
    kept = np.argsort(-ns, kind="stable")[: most + 1]
    # Of the cause's time: less is thinner than a pixel even when zoomed in tenfold.
    kept = kept[(ns[kept] >= 0.001 * ns[0]) & (kept > 0)]
    children: dict[int, list[int]] = {}
    for box in kept.tolist():
        children.setdefault(tree.parent[box], []).append(box)
    found: list[Frame] = []
    waiting = [(box, 0) for box in reversed(children.get(0, []))]
    while waiting:
        box, depth = waiting.pop()
        name = tree.name[box]
        found.append(Frame(names.texts[name], names.kinds[name], depth, round(tree.ns[box] * scale)))
        waiting += [(inner, depth + 1) for inner in reversed(children.get(box, []))]
    return tuple(found)


def _add_lines(t: Tables, tree: _Tree, pieces: _Pieces, names: _Names) -> None:
    """Divide the time in which no operator ran among the lines that the sampler saw then, by how often it did."""
    samples = t.capture.samples
    if samples is None or not t.trace.epoch_ns or not len(pieces.start):
        return
    time = samples.time_ns - t.trace.epoch_ns
    at = np.maximum(np.searchsorted(pieces.start, time, side="right") - 1, 0)
    is_open = np.array([name < 0 or names.kinds[name] == "annotation" for name in tree.name])[pieces.box[at]]
    seen = (samples.place >= 0) & (time >= pieces.start[at]) & (time < pieces.end[at]) & is_open
    bare_ns = np.bincount(pieces.box, (pieces.end - pieces.start).astype(np.float64), minlength=len(tree.ns))
    box, place = pieces.box[at][seen], samples.place[seen]
    num = np.bincount(box, minlength=len(bare_ns))
    keys, _, which = grouped((box.astype(np.int64) << 32) + place)
    for key, times in zip(keys.tolist(), np.bincount(which).tolist(), strict=True):
        parent, line = divmod(key, 1 << 32)
        if num[parent] >= MIN_SAMPLES_SHOWN:
            tree.parent.append(parent)
            tree.name.append(names.first_line + line)
            tree.ns.append(int(bare_ns[parent] * times / num[parent]))


def _shown_layers(t: Tables, thread: int) -> Layers:
    """Return a thread's frames and events nested, without the marks of steps and what only wraps others."""
    rows = host_rows(t.trace, thread, *_KINDS)
    names = t.trace.events.name[rows]
    hidden = np.zeros(len(t.trace.names), bool)
    for name in distinct(names).tolist():
        text = t.trace.names[name]
        hidden[name] = bool(STEP_MARK.match(text) or re.search(_WRAPPERS, text[:NAME_PART]))
    return layers(t.trace, rows[~hidden[names]], MAX_STACK_DEPTH)


class _Names(NamedTuple):
    """What boxes are called: the trace's names and the sampled lines; those that differ by an address are one."""

    texts: list[str]
    kinds: list[str]  # "" for names of other events
    of_row: Ints  # row of texts, for each event
    first_line: int  # row of texts of the first sampled place


def _names(t: Tables) -> _Names:
    lines = (
        [f"{file}({line}): {function}" for file, line, function in t.capture.samples.places]
        if t.capture.samples
        else []
    )
    already = names_of_open_frames(t)
    texts, kinds = [*t.trace.names, *lines], [""] * len(t.trace.names) + [_frame_kind(line) for line in lines]
    alike = np.arange(len(texts))
    first: dict[str, int] = {}
    rows = np.concatenate([host_rows(t.trace, thread, *_KINDS) for thread in t.threads] or [np.zeros(0, np.intp)])
    pairs = np.zeros((len(t.trace.names), len(Kind)), np.bool_)
    pairs[t.trace.events.name[rows], t.trace.events.kind[rows]] = True
    for name, kind in np.argwhere(pairs).tolist():
        texts[name] = re.sub(_ADDRESS, "", texts[name])
        kinds[name] = _KIND_NAMES.get(Kind(kind)) or _frame_kind(texts[name])
        if name in already:
            texts[name] = re.sub(_LINE, "", texts[name])
        alike[name] = first.setdefault(texts[name], name)
    return _Names(texts, kinds, alike[t.trace.events.name], len(t.trace.names))


def _frame_kind(text: str) -> str:
    if text.startswith("nn.Module: "):
        return "module"
    match = re.match(_FRAME, text)
    return "own" if match is not None and is_own_file(match["file"]) else "library"


# What the operators of a data flow take in the timing window, on the host and on the device.


def operator_times(t: Tables, flow: Flow) -> tuple[Floats, Floats]:
    """Return the time of each operator on the host, and that of the tasks that it launches."""
    events, num = t.trace.events, len(flow.rows)
    rows = np.concatenate(flow.rows)
    operator = np.repeat(np.arange(num), [len(each) for each in flow.rows])
    host = np.bincount(operator, (events.end - events.start)[rows].astype(np.float64), num)
    order = np.argsort(events.start[rows], kind="stable")
    rows, operator = rows[order], operator[order]
    launched = np.flatnonzero(t.tasks.launch >= 0)
    launch = events.start[t.tasks.launch[launched]]
    at = np.searchsorted(events.start[rows], launch, side="right") - 1
    inside = (at >= 0) & (launch <= events.end[rows[at]])
    length = (t.tasks.end - t.tasks.start)[launched[inside]].astype(np.float64)
    device = np.bincount(operator[at[inside]], length, num)
    return host.astype(np.float64), device.astype(np.float64)


MAX_NAMED_OPERATORS = 24  # operators: with what is next to them about two screens
MAX_DRAWN_OPERATORS = 36


def flow_pictures(t: Tables, findings: Sequence[Finding]) -> tuple[FlowPicture, ...]:
    """Return a picture for each finding that names operators of the data flow."""
    if t.analyses is None:
        return ()
    graph, lines = t.analyses.graph, t.capture.lines
    return tuple(flow_picture(graph, f.rule, f.operators, lines) for f in findings if f.operators)


def flow_picture(
    graph: Graph, rule: str, operators: Sequence[int], lines: Mapping[tuple[str, int], str]
) -> FlowPicture:
    """Return a picture of operators of one step; ``lines`` are the texts of source lines."""
    from diagnose.dataflow.graph import plain_name  # only a recorded data flow needs it

    step = _Step(graph, graph.operators[operators[0]].step, frozenset(operators))
    rows = [i for i in graph.of_step(step.number) if step.has(i)]
    result, use = step.passed_on()
    drawn = step.chosen(result)
    number = {row: i for i, row in enumerate(drawn)}
    before = [0]  # how many operators are left out before each drawn one, and after the last
    for row in rows:
        if row in number:
            before.append(0)
        else:
            before[-1] += 1
    nodes = tuple(
        FlowNode(
            operator=plain_name(graph.operators[row].name),
            where=Where(op=graph.operators[row].name)
            if (place := graph.operators[row].place) is None
            else Where(*place, code=lines.get(place[:2])),
            phase=graph.operators[row].phase,
            shape=writes[0].shape if (writes := graph.operators[row].writes) else (),
            dtype=writes[0].dtype if writes else "",
            reads=tuple(sorted(number[each] for each in step.makers(row) if each in number)),
            inputs=tuple(step.inputs(row))[:2],
            share=graph.share((row,)),
            is_named=row in step.named,
            mark=step.mark(row, result, use),
            num_before=before[number[row]],
        )
        for row in drawn
    )
    return FlowPicture(
        rule,
        nodes,
        num_operators=len(rows),
        num_named=len(step.named.intersection(rows)),
        share=graph.share(operators),
        num_after=before[-1],
    )


class _Step(NamedTuple):
    """The operators of one step, without views: an operator that reads a view reads what made the value."""

    graph: Graph
    number: int
    named: frozenset[int]  # by the finding

    def has(self, operator: int) -> bool:
        """Return whether an operator is one of the step that can be drawn."""
        one = self.graph.operators[operator]
        return one.step == self.number and not one.is_view

    def makers(self, operator: int) -> list[int]:
        """Return which operators made what one reads."""
        made_by = (self.graph.values[value].producer for value in self.graph.needs[operator])
        return [each for each in dict.fromkeys(made_by) if each >= 0 and self.has(each)]

    def readers(self, operator: int) -> list[int]:
        """Return which operators read what one makes."""
        values = (use.value for use in self.graph.operators[operator].writes)
        return [each for each in dict.fromkeys(r for v in values for r in self.graph.readers[v]) if self.has(each)]

    def inputs(self, operator: int) -> Iterator[str]:
        """Yield the names of what an operator reads and no operator of the step made."""
        for value in self.graph.needs[operator]:
            known = self.graph.values[value]
            is_made_here = known.producer >= 0 and self.graph.operators[known.producer].step == self.number
            if not is_made_here and (name := known.name or known.role):
                yield name

    def mark(self, row: int, result: int, use: int) -> Mark:
        """Return what an operator is, beside the result and its use."""
        if row in (result, use) and use >= 0:
            return "use" if row == use else "result"
        made = [one.value for one in self.graph.operators[row].writes]
        is_read = not made or any(self.graph.readers[value] for value in made)
        return "unused" if row in self.named and not is_read else ""

    def passed_on(self) -> tuple[int, int]:
        """Return the last named operator that one which is not named reads, and that one; -1 where none does."""
        for row in sorted(filter(self.has, self.named), reverse=True):
            for reader in self.readers(row):
                if reader not in self.named:
                    return row, reader
        return max(filter(self.has, self.named), default=-1), -1

    def chosen(self, first: int) -> list[int]:
        """Return what is drawn, in order: named operators from ``first`` on, then those next to them."""
        inside = list(dict.fromkeys([*self._reached(first), *sorted(filter(self.has, self.named))]))[
            :MAX_NAMED_OPERATORS
        ]
        next_to = dict.fromkeys(
            each for row in inside for each in (*self.readers(row), *self.makers(row)) if each not in self.named
        )
        return sorted([*inside, *list(next_to)[: MAX_DRAWN_OPERATORS - len(inside)]])

    def _reached(self, first: int) -> Iterator[int]:
        """Yield the named operators that hand values to each other, those nearest to ``first`` first."""
        seen, queue = {first}, deque([first] if first >= 0 else [])
        while queue:
            row = queue.popleft()
            yield row
            for each in (*self.makers(row), *self.readers(row)):
                if each in self.named and each not in seen:
                    seen.add(each)
                    queue.append(each)


# What a step keeps for its backward pass and leaves to later steps, by line.


def memory_by_line(t: Tables) -> MemoryByLine | None:
    """Return the lines; None if there is no data flow, or if neither kind of them is worth a table."""
    flow = t.flow
    if flow is None:
        return None
    from diagnose.dataflow.kept import kept_by_line  # only a recorded data flow needs it

    memory = kept_by_line(flow.found.graph)
    # Of the peak, of all lines: to compute less than that again frees too little to be worth a table.
    lines = memory.lines if memory.num_bytes >= 0.1 * memory.peak_bytes else ()
    times = operator_times(t, flow) if shows_values(t) else ()

    def longest(operators: Sequence[int]) -> float | None:
        """Return what operators take per step, on the host or the device; None if it is not known."""
        return max((float(each[list(operators)].sum()) / t.steps.num for each in times), default=0.0) or None

    kept = tuple(
        KeptByLine(_where_of(t, one.line), one.num_bytes, longest(one.operators))
        for one in lines
        if one.num_bytes >= 0.01 * memory.peak_bytes  # of the peak, of a line
    )
    left = tuple(
        LeftByLine(_where_of(t, one.line), one.num_values, one.num_bytes)
        for one in flow.found.piled_up
        if one.num_bytes >= 0.001 * memory.peak_bytes  # of the peak: a thousand such steps double it
    )
    if not kept and not left:
        return None
    return MemoryByLine(memory.device, memory.peak_bytes, memory.num_bytes, kept[:20], left[:20])


def _where_of(t: Tables, line: Caller | None) -> Where:
    if line is None:
        return Where()
    return Where(line.file, line.line, line.function, code=source_line(t, line.file, line.line))

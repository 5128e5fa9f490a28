"""From one rank's tables to its profile: the only step of the comparison of ranks that reads a trace."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Verdict
from diagnose.model.events import Kind
from diagnose.model.intervals import (
    EMPTY,
    Intervals,
    contains,
    covered,
    grouped,
    intersect,
    span,
    subtract,
    total,
    union,
)
from diagnose.model.locations import is_own_file
from diagnose.model.rules import OUTSIDE, WORK
from diagnose.ranks.collectives import collectives_of, elements_of, hidden_by
from diagnose.ranks.parts import kept_parts
from diagnose.ranks.profile import (
    COMMUNICATION,
    PHASES,
    CauseTraits,
    Collectives,
    LineTime,
    RankProfile,
    SampledLine,
    Speeds,
)
from diagnose.ranks.reduced_sums import reduced_of
from diagnose.ranks.sizes import made_lines
from diagnose.ranks.stages import receives_of
from diagnose.tables import Tables
from diagnose.tables.gaps import launches_unlinked
from diagnose.tables.host import host_rows
from diagnose.tables.host_gaps import ready_share
from diagnose.tables.names import BACKWARD, OPTIMIZER_STEP, matching
from diagnose.tables.nvml_readings import clocks_of, gpu_rows
from diagnose.tables.roofline import gpu_spec
from diagnose.tables.stages import of_tasks
from diagnose.text.plain_text import middle

MIN_WAITING_CALL_NS = 100_000  # of a call of the runtime: it waits for the device, or for room in its queue
_Place: TypeAlias = tuple[str, int, str]  # file, line, function
_EXCHANGE = re.compile(r"^c10d::|^record_param_comms|^gloo:")  # such a call that takes long waits for other ranks


def profile_of(
    t: Tables, traits: CauseTraits, *, verdict: Verdict = "no-gpu", notes: tuple[str, ...] = ()
) -> RankProfile:
    """Return what the comparison of ranks needs of this one.

    ``t`` has to know the rules of idle time (``pipeline.find.build_tables``); the verdict is what they led to.
    """
    found, own = collectives_of(t), unlaunched(t, traits.waits)
    c, copies = found.collectives, t.occupancy.exposed_copy if t.device_id >= 0 else EMPTY
    bounds = _bounds(t, c)
    parts = _parts(t, traits, own, copies)
    begin, end = np.append(t.steps.window[0], bounds), np.append(bounds, t.steps.window[1])
    rows = {cause: covered(part, begin, end) for cause, part in parts.items()}
    rows[COMMUNICATION] = (end - begin) - sum(rows.values(), np.zeros(len(begin), np.int64))
    rows = {cause: row for cause, row in rows.items() if row.any()}
    spent = np.array(list(rows.values()), np.int64).reshape(len(rows), len(begin))
    busy = own | ({traits.copies: union(own.get(traits.copies, EMPTY), copies)} if len(copies.start) else {})
    beside = np.array([covered(busy.get(cause, EMPTY), begin, end) for cause in rows]) if busy else spent[:0]
    if own:  # the rank's own time beside its collectives
        _, rest = hidden_by(union(t.occupancy.compute, *own.values()), c.start, c.end)
        c = replace(c, unlaunched=c.alone - rest)
    computing = t.tasks.row[~t.tasks.is_collective] if t.device_id >= 0 else np.empty(0, np.intp)
    launched = ~(t.tasks.is_collective | t.tasks.is_copy) & (t.tasks.launch >= 0)
    (kernels, kernel_names), leaves, spec = _speeds(t, computing), _leaves(t), gpu_spec(t)
    info, clocks = t.capture.info, [each for gpu in gpu_rows(t) if (each := clocks_of(gpu)) is not None]
    of_host = {cause: part for cause, part in parts.items() if t.device_id < 0 or cause not in (*PHASES, traits.copies)}
    of_host[COMMUNICATION] = union(t.causes.pieces(*traits.waits))
    return RankProfile(
        rank=t.trace.rank,
        world_size=t.trace.world_size,
        path=t.trace.path,
        run_id=info.run_id if info else "",
        host=str(t.trace.metadata.get("host_name", "")),
        has_device=t.device_id >= 0,
        device=next((d.name for d in t.trace.devices if d.id == t.device_id), ""),
        link_gbps=spec.link / 2 if spec is not None else 0.0,
        verdict=verdict,
        step_ns=t.steps.step_ns,
        partition=t.partition if t.device_id >= 0 else None,
        epoch_ns=t.trace.epoch_ns,
        window=(int(t.steps.window[0]), int(t.steps.window[1])),
        step_number=np.asarray(t.steps.number, np.int64),
        step_begin=np.asarray(t.steps.start, np.int64),
        step_end=np.asarray(t.steps.end, np.int64),
        bounds=bounds,
        host_time=host_times(t, bounds, parts, traits.copies),
        causes=tuple(rows),
        spent=spent,
        beside=beside,
        groups=found.groups,
        kinds=found.kinds,
        collectives=c,
        kernels=kernels,
        kernel_names=tuple(middle(name.removeprefix("void "), 80) for name in kernel_names),  # templates have thousands
        operators=_speeds(t, leaves)[0],
        blocks=float(np.maximum(t.trace.events.grid[t.tasks.row[launched]].astype(np.int64), 0).sum()) / t.steps.num,
        elements=_elements(t, leaves),
        lines=tuple(_lines(t, of_host)),
        receives=receives_of(t),
        reduced=reduced_of(t.capture),
        kept=kept_parts(t),
        made=made_lines(t.capture),
        run_lines=_run_lines(t.capture),
        run_samples=len(t.capture.run.path) if t.capture.run is not None else 0,
        ready_share=ready_share(t),
        clock_mhz=float(np.mean([each.mhz.mean() for each in clocks])) if clocks else 0.0,
        is_cut=t.trace.cut,
        num_events=len(t.trace.events),
        notes=notes,
    )


def _bounds(t: Tables, c: Collectives) -> Ints:
    """Return when the last collective of each step ends; of a step without one, when its host ends it."""
    last = np.zeros(t.steps.num, np.int64)
    np.maximum.at(last, c.step, c.end)
    bounds = np.where(np.bincount(c.step, minlength=t.steps.num) > 0, last, t.steps.end)
    clipped: Ints = np.clip(np.maximum.accumulate(bounds), *t.steps.window)
    return clipped


def _parts(t: Tables, traits: CauseTraits, own: Mapping[str, Intervals], copies: Intervals) -> dict[str, Intervals]:
    """Return what the rank's time goes into: computing by phase, and what rules account for of the rest.

    The device computes, or without one operators of the host. ``own`` is what the rank lacks beside collectives.
    """
    causes, tasks, events = t.causes, t.tasks, t.trace.events
    idle = {rule: union(causes.pieces(rule)) for rule in causes.totals() if rule not in traits.waits}
    parts: dict[str, Intervals] = {}
    if t.device_id < 0:
        left = union(idle.pop(WORK, EMPTY), idle.pop(OUTSIDE, EMPTY))
    else:
        left, own = t.occupancy.compute, {**own, traits.copies: union(copies, own.get(traits.copies, EMPTY))}
    works = ~(tasks.is_collective | tasks.is_copy) & (tasks.launch >= 0)
    # When the host is in the optimizer and when in the backward; the rest of a step is the forward.
    optimizer = t.covering(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP))
    backward = t.covering(t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION))
    host_phases = {PHASES[2]: optimizer, PHASES[1]: subtract(backward, optimizer)}
    for phase, during in host_phases.items():
        mine = works & contains(during, events.start[tasks.launch])
        computing = union((tasks.start[mine], tasks.end[mine])) if t.device_id >= 0 else during
        parts[phase] = intersect(computing, left)
        left = subtract(left, parts[phase])
    parts[PHASES[0]] = left
    return parts | {rule: union(idle.get(rule, EMPTY), own.get(rule, EMPTY)) for rule in {**idle, **own}}


def _leaves(t: Tables) -> Rows:
    """Return the operators of the training thread's steps that call no other, nor wait for the device."""
    events = t.trace.events
    rows = host_rows(t.trace, t.main, Kind.OP)
    rows = rows[(events.start[rows] >= t.steps.start[0]) & (events.start[rows] < t.steps.end[-1])]
    if t.device_id >= 0:
        rows = rows[covered(t.covering(t.blocking_calls), events.start[rows], events.end[rows]) == 0]
    following = np.append(events.start[rows[1:]], np.iinfo(np.int64).max)[: len(rows)]
    leaves: Rows = rows[events.end[rows] <= following]
    return leaves


def _speeds(t: Tables, rows: Rows) -> tuple[Speeds, list[str]]:
    """Return count and time of the names that take most of it, and these names."""
    events = t.trace.events
    names = events.name[rows]
    size = len(t.trace.names) + 1
    total = np.bincount(names, (events.end - events.start)[rows].astype(np.float64), minlength=size)
    count = np.bincount(names, minlength=size)
    top = np.argsort(-total, kind="stable")[:12]  # the others take too little to compare
    top = top[total[top] > 0]
    crc = np.array([zlib.crc32(t.trace.names[i].encode()) for i in top.tolist()], np.int64)
    order = np.argsort(crc, kind="stable")
    speeds = Speeds(crc[order], count[top][order].astype(np.int64), total[top][order].astype(np.int64))
    return speeds, [t.trace.names[i] for i in top[order].tolist()]


def _elements(t: Tables, operators: Rows) -> float:
    """Return how many elements the inputs of a step's operators have, 0 where shapes were not recorded."""
    shapes = t.trace.events.shapes[operators]
    kinds = grouped(shapes[shapes >= 0])
    texts = [t.trace.names[int(shape)] for shape in shapes[shapes >= 0][kinds.first].tolist()]
    try:
        each = np.array([elements_of(text) for text in texts], np.float64)
    except (ValueError, RecursionError):  # the file's texts may be anything
        return 0.0
    return float((each * np.bincount(kinds.of, minlength=len(each))).sum()) / t.steps.num


def host_times(t: Tables, bounds: Ints, parts: Mapping[str, Intervals], copies: str) -> Ints:
    """Return for each step what its host takes; 0 without a device.

    Where the host begins and ends a step before the device has done what was launched, that is the step of the host.
    Elsewhere it is the time from one step's last collective to the next one's in which the host is seen to work, or the
    device waits for it. ``parts`` is the rank's own time by cause, ``copies`` the cause that waits for no host.
    """
    if t.device_id < 0:
        return np.zeros(t.steps.num, np.int64)
    events, start, end = t.trace.events, np.asarray(t.steps.start, np.int64), np.asarray(t.steps.end, np.int64)
    calls = t.host_rows(Kind.RUNTIME)
    blocked = t.covering(calls[events.end[calls] - events.start[calls] >= MIN_WAITING_CALL_NS])
    before = np.concatenate([[t.steps.window[0]], bounds[:-1]])
    is_ahead = (end < bounds) & (start < np.concatenate([[start[0]], bounds[:-1]]))
    waited_for = union(*(part for cause, part in parts.items() if cause not in (*PHASES, copies)))
    busy = union(_seen(t, blocked), waited_for)
    return np.where(is_ahead, end - start - covered(blocked, start, end), covered(busy, before, bounds))


def _seen(t: Tables, blocked: Intervals) -> Intervals:
    """Return when the host is in operators, or between two that follow each other at once, and does not wait."""
    inside = t.in_ops
    if len(inside.start) > 1:
        begin, end = inside.end[:-1], inside.start[1:]
        short = end - begin <= 100_000  # between two operators: Python goes on; longer silence may be waiting
        inside = union(inside, Intervals(begin[short], end[short]))
    events, calls = t.trace.events, matching(t.trace, (Kind.OP, Kind.ANNOTATION), _EXCHANGE)
    exchanges = t.covering(calls[events.end[calls] - events.start[calls] >= MIN_WAITING_CALL_NS])
    return subtract(subtract(inside, blocked), exchanges)


def unlaunched(t: Tables, waits: frozenset[str]) -> dict[str, Intervals]:
    """Return by cause when nothing but collectives ran although the host did not wait for them.

    ``waits`` are the rules whose time is waiting for other ranks.
    """
    exposed = t.occupancy.exposed_communication if t.device_id >= 0 else EMPTY
    if not len(exposed.start) or launches_unlinked(t.tasks):
        return {}
    late = subtract(intersect(exposed, _before_launches(t)), t.covering(t.blocking_calls))
    # Of the window: less is not worth it to ask all rules once more.
    if total(late) < 0.002 * (t.steps.window[1] - t.steps.window[0]):
        return {}
    without = of_tasks(t, t.tasks.chosen(~t.tasks.is_collective))
    late = intersect(late, without.gaps.unlaunched())
    causes = without.causes
    found = {rule: intersect(late, union(causes.pieces(rule))) for rule in causes.totals() if rule not in waits}
    return {rule: part for rule, part in found.items() if len(part.start)}


def _before_launches(t: Tables) -> Intervals:
    """Return from each end of computing to the launch of the next task, but where the host woke with a collective."""
    tasks, events = t.tasks.chosen(~t.tasks.is_collective), t.trace.events
    if not len(tasks.row):
        return EMPTY
    known = tasks.launch >= 0
    launched = np.where(known, events.start[np.maximum(tasks.launch, 0)], tasks.start)
    reached = np.concatenate([[t.steps.window[0]], np.maximum.accumulate(tasks.end)[:-1]])
    late = known & (launched > reached)
    begin, end = reached[late], launched[late]
    ended = np.sort(t.tasks.end[t.tasks.is_collective])
    at = np.searchsorted(ended, end, side="right") - 1
    last = ended[np.maximum(at, 0)]
    # A silent host that goes on within it behind a collective's end waited for that.
    woken = (at >= 0) & (last > begin) & (end - last <= 50_000) & ~contains(t.in_ops, last)
    return union((begin[~woken], end[~woken]))


def _lines(t: Tables, parts: Mapping[str, Intervals]) -> Iterator[LineTime]:
    """Yield the lines that the sampler saw most in each part of the rank's host time, at most six of a cause."""
    samples = t.capture.samples
    if samples is None or not t.trace.epoch_ns:
        return
    time = samples.time_ns - t.trace.epoch_ns
    seen = (samples.place >= 0) & contains(span(*t.steps.window), time)
    time, place = time[seen], samples.place[seen]
    for cause, part in parts.items():
        num = np.bincount(place[contains(part, time)], minlength=len(samples.places))
        if num.sum() < 5:  # fewer show no shares
            continue
        each_ns = total(intersect(part, span(*t.steps.window))) / float(num.sum()) / max(t.steps.num, 1)
        for row in np.argsort(-num, kind="stable")[: min(6, int((num > 0).sum()))].tolist():
            file, line, function = samples.places[row]
            code = t.capture.lines.get((file, line), "")
            yield LineTime(cause, file, line, function, code, int(num[row]) * each_ns)


def _run_lines(capture: Capture) -> tuple[SampledLine, ...]:
    """Return the user's lines that the samples of the whole run saw most, with the line that calls each most often."""
    run = capture.run
    if run is None or not len(run.path):
        return ()
    within, at, callers = Counter[_Place](), Counter[_Place](), Counter[tuple[_Place, _Place]]()
    for row, num in Counter(run.path.tolist()).items():
        path = [place for place in (run.paths[row] if row >= 0 else ()) if is_own_file(place[0])]
        within.update(dict.fromkeys(path, num))
        at.update(dict.fromkeys(path[:1], num))
        callers.update(dict.fromkeys(pairwise(path), num))
    # Of a rank's samples; the others have too few to compare.
    number = {place: i for i, (place, _) in enumerate(within.most_common(64))}
    row_of_caller = {inner: number.get(outer, -1) for (inner, outer), _ in reversed(callers.most_common())}
    return tuple(
        SampledLine(*place, capture.lines.get(place[:2], ""), within[place], at[place], row_of_caller.get(place, -1))
        for place in number
    )

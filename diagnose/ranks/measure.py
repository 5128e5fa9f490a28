"""From one rank's tables to its profile: the only step of the comparison of ranks that reads a trace."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Rows
from diagnose.model.diagnosis import Verdict
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, covered, grouped, intersect, subtract, union
from diagnose.model.rules import OUTSIDE, WORK
from diagnose.ranks.collectives import collectives_of, elements_of, hidden_by
from diagnose.ranks.host_times import host_times
from diagnose.ranks.lines import lines_of
from diagnose.ranks.profile import COMMUNICATION, PHASES, Collectives, RankProfile, Speeds
from diagnose.ranks.traits import CauseTraits
from diagnose.ranks.unlaunched import unlaunched
from diagnose.tables import Tables
from diagnose.tables.host import host_rows
from diagnose.tables.host_gaps import ready_share
from diagnose.tables.names import BACKWARD, OPTIMIZER_STEP
from diagnose.tables.nvml_readings import clocks_of, gpu_rows
from diagnose.tables.roofline import gpu_spec
from diagnose.text.plain_text import middle

__all__ = ["profile_of"]

MAX_NAME_CHARS = 80  # of a kernel: templates have thousands
MAX_NAMES = 12  # kernels or operators whose speed is compared


def profile_of(
    t: Tables, traits: CauseTraits, *, verdict: Verdict = "no-gpu", notes: tuple[str, ...] = ()
) -> RankProfile:
    """Return what the comparison of ranks needs of this one.

    ``t`` has to know the rules of idle time (``pipeline.find.build_tables``); the verdict is what they led to.
    """
    found, own = collectives_of(t), unlaunched(t, traits.waits)
    bounds = _bounds(t, found.collectives)
    device_work = (*PHASES, traits.copies)  # what the host does meanwhile is not what takes the time
    parts = _device_parts(t, traits, own) if t.device_id >= 0 else _host_parts(t, traits.waits)
    causes, spent = _spent(t, bounds, parts)
    inside = _intervals(t, bounds)
    copies = t.occupancy.exposed_copy if t.device_id >= 0 else EMPTY
    busy = own | {traits.copies: union(own.get(traits.copies, EMPTY), copies)} if len(copies.start) else own
    beside = np.array([covered(busy.get(cause, EMPTY), *inside) for cause in causes]) if busy else spent[:0]
    kernels, kernel_names = _speeds(t, t.tasks.row[~t.tasks.is_collective] if t.device_id >= 0 else _NONE)
    info, clocks = t.capture.info, [c for gpu in gpu_rows(t) if (c := clocks_of(gpu)) is not None]
    return RankProfile(
        rank=t.trace.rank,
        world_size=t.trace.world_size,
        path=t.trace.path,
        run_id=info.run_id if info else "",
        host=str(t.trace.metadata.get("host_name", "")),
        has_device=t.device_id >= 0,
        device=next((d.name for d in t.trace.devices if d.id == t.device_id), ""),
        link_gbps=spec.link / 2 if (spec := gpu_spec(t)) is not None else 0.0,
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
        causes=causes,
        spent=spent,
        beside=beside,
        groups=found.groups,
        kinds=found.kinds,
        collectives=_beside(t, found.collectives, own),
        kernels=kernels,
        kernel_names=tuple(middle(name.removeprefix("void "), MAX_NAME_CHARS) for name in kernel_names),
        operators=_speeds(t, _leaves(t))[0],
        blocks=_blocks(t),
        elements=_elements(t, _leaves(t)),
        lines=lines_of(
            t, {cause: part for cause, part in parts.items() if t.device_id < 0 or cause not in device_work}
        ),
        ready_share=ready_share(t),
        clock_mhz=float(np.mean([c.mhz.mean() for c in clocks])) if clocks else 0.0,
        is_cut=t.trace.cut,
        num_events=len(t.trace.events),
        notes=notes,
    )


_NONE: Rows = np.empty(0, np.intp)


def _bounds(t: Tables, collectives: Collectives) -> Ints:
    """Return when the last collective of each step ends; of a step without one, when its host ends it."""
    bounds = np.asarray(t.steps.end, np.int64).copy()
    for step in range(t.steps.num):
        mine = collectives.step == step
        if mine.any():
            bounds[step] = collectives.end[mine].max()
    start, end = t.steps.window
    clipped: Ints = np.clip(np.maximum.accumulate(bounds), start, end)
    return clipped


def _beside(t: Tables, collectives: Collectives, own: Mapping[str, Intervals]) -> Collectives:
    """Return the collectives with the rank's own time beside them."""
    if not own:
        return collectives
    _, rest = hidden_by(union(t.occupancy.compute, *own.values()), collectives.start, collectives.end)
    return replace(collectives, unlaunched=collectives.alone - rest)


def _spent(t: Tables, bounds: Ints, parts: Mapping[str, Intervals]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return what the rank's time went into, by cause and interval."""
    begin, end = _intervals(t, bounds)
    rows = {cause: covered(part, begin, end) for cause, part in parts.items()}
    rows[COMMUNICATION] = (end - begin) - sum(rows.values(), np.zeros(len(begin), np.int64))
    kept = {cause: row for cause, row in rows.items() if row.any()}
    return tuple(kept), np.array(list(kept.values()), np.int64).reshape(len(kept), len(begin))


def _intervals(t: Tables, bounds: Ints) -> tuple[Ints, Ints]:
    """Return begins and ends of the steps' intervals, and of what follows."""
    first, last = t.steps.window
    return np.concatenate([[first], bounds]), np.concatenate([bounds, [last]])


def _device_parts(t: Tables, traits: CauseTraits, own: Mapping[str, Intervals]) -> dict[str, Intervals]:
    events, tasks = t.trace.events, t.tasks
    works = ~(tasks.is_collective | tasks.is_copy)
    launched = np.where(tasks.launch >= 0, events.start[tasks.launch], -1)
    parts: dict[str, Intervals] = {}
    left = t.occupancy.compute
    for phase, during in _host_phases(t).items():
        mine = works & (launched >= 0) & (covered(during, launched, launched + 1) > 0)
        parts[phase] = intersect(union((tasks.start[mine], tasks.end[mine])), left)
        left = subtract(left, parts[phase])
    parts[PHASES[0]] = left
    parts |= _idle_parts(t, traits.waits)
    parts |= {rule: union(parts[rule], part) if rule in parts else part for rule, part in own.items()}
    copies = t.occupancy.exposed_copy
    parts[traits.copies] = union(copies, parts[traits.copies]) if traits.copies in parts else copies
    return parts


def _host_parts(t: Tables, waits: frozenset[str]) -> dict[str, Intervals]:
    """Return the same without a device: operators by phase, and what rules account for of the rest."""
    parts = _idle_parts(t, waits)
    left = union(parts.pop(WORK, union()), parts.pop(OUTSIDE, union()))
    for phase, during in _host_phases(t).items():
        parts[phase] = intersect(during, left)
        left = subtract(left, during)
    parts[PHASES[0]] = left
    return parts


def _idle_parts(t: Tables, waits: frozenset[str]) -> dict[str, Intervals]:
    rules = [rule for rule in t.causes.totals() if rule not in waits]
    rows = {rule: t.causes.of(rule) for rule in rules}
    return {rule: union((t.causes.start[mine], t.causes.end[mine])) for rule, mine in rows.items()}


def _host_phases(t: Tables) -> dict[str, Intervals]:
    """Return when the host is in the optimizer and when in the backward; the rest of a step is the forward."""
    optimizer = t.covering(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP))
    backward = t.covering(t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION))
    return {PHASES[2]: optimizer, PHASES[1]: subtract(backward, optimizer)}


def _leaves(t: Tables) -> Rows:
    """Return the operators of the training thread's steps that call no other, nor wait for the device."""
    events = t.trace.events
    rows = host_rows(t.trace, t.main, Kind.OP)
    rows = rows[(events.start[rows] >= t.steps.start[0]) & (events.start[rows] < t.steps.end[-1])]
    if t.device_id >= 0:
        rows = rows[covered(t.covering(t.blocking_calls), events.start[rows], events.end[rows]) == 0]
    following = np.append(events.start[rows[1:]], np.iinfo(np.int64).max) if len(rows) else _NONE
    leaves: Rows = rows[events.end[rows] <= following]
    return leaves


def _speeds(t: Tables, rows: Rows) -> tuple[Speeds, list[str]]:
    """Return count and time of the names that take most of it, and these names."""
    events = t.trace.events
    names = events.name[rows]
    size = len(t.trace.names) + 1
    total = np.bincount(names, (events.end - events.start)[rows].astype(np.float64), minlength=size)
    count = np.bincount(names, minlength=size)
    top = np.argsort(-total, kind="stable")[:MAX_NAMES]
    top = top[total[top] > 0]
    crc = np.array([zlib.crc32(t.trace.names[i].encode()) for i in top.tolist()], np.int64)
    order = np.argsort(crc, kind="stable")
    speeds = Speeds(crc[order], count[top][order].astype(np.int64), total[top][order].astype(np.int64))
    return speeds, [t.trace.names[i] for i in top[order].tolist()]


def _blocks(t: Tables) -> float:
    """Return how many blocks of threads the kernels that a step launches run, 0 where that was not recorded."""
    computes = ~(t.tasks.is_collective | t.tasks.is_copy) & (t.tasks.launch >= 0)
    return float(np.maximum(t.trace.events.grid[t.tasks.row[computes]].astype(np.int64), 0).sum()) / t.steps.num


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

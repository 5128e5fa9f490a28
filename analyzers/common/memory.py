"""The memory of the steady steps: its peak, what it consists of then, and which lines took it.

What a block is for follows from when it was taken and given back: taken in the forward and given back in the backward
it is an activation; taken in the backward and kept beyond it, a gradient; kept beyond a step of the optimizer that
took it, the optimizer's state. What was there before the recording are parameters, that state, and what else lives on:
a capture holds the sizes of both, other traces do not.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.locate import ranked_places
from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, contains, distinct
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD, matching, rows_of
from diagnose.tables.nvml_readings import device_memory
from diagnose.tables.roofline import device_of

if TYPE_CHECKING:
    from diagnose.model.charts import Memory

BEFORE, OTHERS = "held from before (parameters, optimizer state)", "held from before (buffers and others)"
ACTIVATIONS, GRADIENTS, WORKSPACE, INPUT = "activations", "gradients", "workspace", "input"
NEVER = np.iinfo(np.int64).max  # a block that the recording's end finds held
PARAMETERS = "parameters"
OPTIMIZER, KEPT = "optimizer state", "kept"
GROWING = (ACTIVATIONS, INPUT, WORKSPACE)  # with the batch
_TO_DEVICE = r"(?i)HtoD|HostToDevice"
_FORWARD_PHASE, _BACKWARD_PHASE, _OPTIMIZER_PHASE = range(3)


def memory_of(t: Tables) -> Memory | None:
    """Return the memory of the steady steps, from the attribution window where the timing window lacks it."""
    from diagnose.model.charts import Memory

    blocks, (start, end) = find_allocations(t), t.steps.window
    if blocks is None:
        return t.named.memory if t.named is not t else None
    inside = np.flatnonzero((blocks.time >= start) & (blocks.time <= end))
    if not len(inside):
        return None
    peak = int(inside[blocks.allocated[inside].argmax()])
    time, allocated = int(blocks.time[peak]), int(blocks.allocated[peak])
    held, timeline, category = blocks.held_at(time), _timeline(blocks, inside, start), _categories(t, blocks)
    device, by_driver = device_of(t) if t.device_id >= 0 else None, device_memory(t)
    largest = held[np.argsort(-blocks.size[held], kind="stable")][:400]
    rows, events = blocks.row[largest], t.trace.events
    places = ranked_places(t, events.thread[rows], events.start[rows], blocks.size[largest])
    name = f"GPU {t.device_id}" if t.device_id >= 0 else "host"
    return Memory(
        device=(device.name or f"GPU {device.id}") if device else name,
        peak_allocated=allocated,
        peak_reserved=max(int(blocks.reserved[inside].max()), 0) or None,
        capacity=(device.memory_bytes or None) if device else None,
        peak_at_ns=time - start,
        timeline=timeline,
        categories_over_time=_over_time(blocks, category, timeline, start),
        by_category=_by_category(t, blocks.size[held], category[held], allocated),
        by_place=tuple(places[:8]),
        retries=t.capture.known.memory.retries,
        device_used=by_driver.used if by_driver else None,
        device_total=by_driver.total if by_driver else None,
        other_processes=by_driver.others if by_driver else None,
    )


def driver_evidence(memory: Memory) -> tuple[str, ...]:
    """Return one sentence on the memory that the allocator does not count, none where the driver was not sampled."""
    outside = memory.outside_allocator
    if outside is None or memory.device_used is None:
        return ()
    text = (
        f"NVML shows {memory.device_used / 1e9:.2f} GB in use on the device, {outside / 1e9:.2f} GB in addition to "
        "what the allocator reserved"
    )
    if memory.other_processes is None:
        return (f"{text}: the CUDA context, communicators, libraries, and any other processes.",)
    others = min(memory.other_processes, outside)
    own = f"{(outside - others) / 1e9:.2f} GB for the CUDA context, communicators and libraries"
    return (f"{text}: {own}, {others / 1e9:.2f} GB of other processes.",)


def forward_ns(t: Tables) -> float:
    """Return the device's time for the forward pass of a step, 0 where the recording shows no backward pass."""
    if not len(_backward(t).start):
        return forward_ns(t.named) if t.named is not t else 0.0
    tasks = np.flatnonzero((t.tasks.launch >= 0) & ~t.tasks.is_copy & ~t.tasks.is_collective)
    is_forward = _phase(t, t.trace.events.start[t.tasks.launch[tasks]]) == _FORWARD_PHASE
    return float((t.tasks.end - t.tasks.start)[tasks[is_forward]].sum()) / t.steps.num


def _timeline(blocks: Allocations, inside: Rows, start: int) -> tuple[tuple[int, int, int], ...]:
    """Return the step function, of each interval of time its highest point where there are too many."""
    if len(inside) > 600:  # a chart has no more pixels
        cuts = distinct(np.linspace(0, len(inside), 600, endpoint=False).astype(np.intp))
        inside = np.array([part[blocks.allocated[part].argmax()] for part in np.split(inside, cuts[1:])], np.intp)
    columns = (blocks.time[inside] - start, blocks.allocated[inside], blocks.reserved[inside])
    return tuple(zip(*(column.tolist() for column in columns), strict=True))


def _over_time(
    blocks: Allocations, category: npt.NDArray[np.str_], timeline: tuple[tuple[int, int, int], ...], start: int
) -> dict[str, tuple[int, ...]]:
    """Return what each category holds at each point, the largest first; they sum to what is allocated."""
    since, allocated, _ = np.array(timeline, np.int64).T
    times, held = since + start, dict[str, Ints]()
    for name in dict.fromkeys(category.tolist()):
        mine = np.flatnonzero(category == name)
        taken, freed = np.argsort(blocks.taken[mine]), np.argsort(blocks.freed[mine])
        got = np.append(0, np.cumsum(blocks.size[mine][taken]))
        gone = np.append(0, np.cumsum(blocks.size[mine][freed]))
        held[name] = (
            got[np.searchsorted(blocks.taken[mine][taken], times, side="right")]
            - gone[np.searchsorted(blocks.freed[mine][freed], times, side="right")]
        )
    known = sum(held.values(), np.zeros(len(times), np.int64))
    held[BEFORE] = np.maximum(allocated - known, 0)
    ranked = sorted(held, key=lambda name: -int(held[name].max(initial=0)))
    return {name: tuple(held[name].tolist()) for name in ranked if held[name].max(initial=0) > 0}


def _by_category(t: Tables, size: Ints, category: npt.NDArray[np.str_], allocated: int) -> dict[str, int]:
    """Return what each category holds of what is allocated, the largest first.

    What was there before the recording is divided if a capture holds how large the parameters and the optimizer's state
    are, of which the recording may have seen a part being taken.
    """
    found = Counter({name: int(size[category == name].sum()) for name in dict.fromkeys(category.tolist())})
    before = max(allocated - found.total(), 0)
    main = t.capture.known.optimizer
    every = (main, *main.others)
    parameters = min(sum(one.param_bytes or 0 for one in every), before)
    state = min(max(sum(one.state_bytes or 0 for one in every) - found[OPTIMIZER], 0), before - parameters)
    if parameters:
        found.update({PARAMETERS: parameters, OPTIMIZER: state, OTHERS: before - parameters - state})
        return {name: held for name, held in found.most_common() if held or name in category}
    found[BEFORE] += before
    return dict(found.most_common())


def _categories(t: Tables, blocks: Allocations) -> npt.NDArray[np.str_]:
    """Return what each block is for."""
    taken, freed = _phase(t, blocks.taken), _phase(t, blocks.freed)
    same = np.zeros(len(taken), bool)  # the call of the optimizer that took them gave them back itself
    if len(t.updates.start):
        call = np.maximum(np.searchsorted(t.updates.start, blocks.taken, side="right") - 1, 0)
        same = blocks.freed <= t.updates.end[call]
    events, is_input = t.trace.events, np.zeros(len(taken), bool)  # taken inside a call that copies to the device
    copies = [n for n, name in enumerate(t.trace.names) if re.search(_TO_DEVICE, name[:40])]
    launch = t.tasks.launch[among(events.name[t.tasks.row], copies) & t.tasks.is_copy & (t.tasks.launch >= 0)]
    called = np.sort(events.start[launch], kind="stable")
    for thread, layers in t.work_layers.items() if len(called) else ():
        mine = np.flatnonzero(events.thread[blocks.row] == thread)
        for depth in range(len(layers.rows)):
            open_rows = layers.open_in(depth, blocks.taken[mine])
            is_op = (open_rows >= 0) & (events.kind[np.maximum(open_rows, 0)] == Kind.OP)
            begin, end = events.start[np.maximum(open_rows, 0)], events.end[np.maximum(open_rows, 0)]
            inside = np.searchsorted(called, end) > np.searchsorted(called, begin)
            is_input[mine[is_op & inside]] = True
    category: npt.NDArray[np.str_] = np.select(
        [
            taken == _OPTIMIZER_PHASE,
            taken == _BACKWARD_PHASE,
            is_input,
            blocks.freed > t.steps.window[1],
            freed == _FORWARD_PHASE,
        ],
        [
            np.where(same, WORKSPACE, OPTIMIZER),
            np.where(freed == _BACKWARD_PHASE, WORKSPACE, GRADIENTS),
            INPUT,
            KEPT,
            WORKSPACE,
        ],
        ACTIVATIONS,
    )
    return category


def _phase(t: Tables, time: Ints) -> Rows:
    """Return in which phase of a step each time lies; what is neither backward nor optimizer counts as forward."""
    found = np.zeros(len(time), np.intp)
    known = np.flatnonzero(time != NEVER)
    for phase, during in ((_BACKWARD_PHASE, _backward(t)), (_OPTIMIZER_PHASE, t.updates)):
        inside = contains(during, time[known])
        found[known[inside]] = phase
    return found


def _backward(t: Tables) -> Intervals:
    return t.covering(matching(t.trace, (Kind.OP, Kind.ANNOTATION), BACKWARD))


class Allocations(NamedTuple):
    """The blocks that were taken while the profiler ran, in the order of their time, and the totals."""

    row: Rows  # the event, for its thread and time
    taken: Ints  # ns
    freed: Ints  # ns, NEVER where the recording ends before
    size: Ints  # bytes
    time: Ints  # of each taking or giving back, ns
    allocated: Ints  # bytes after it
    reserved: Ints  # bytes after it, -1 where unknown

    def held_at(self, time: int) -> Rows:
        """Return which blocks are held at a time."""
        return np.flatnonzero((self.taken <= time) & (self.freed > time))


def find_allocations(t: Tables) -> Allocations | None:
    """Return the blocks of the busiest device, of the host where there is none; None where they were not recorded."""
    events = t.trace.events
    rows = rows_of(t.trace, Kind.MEMORY)
    rows = rows[(events.device[rows] == max(t.device_id, -1)) & (events.sequence[rows] >= 0)]  # -1: the host
    if not len(rows):
        return None
    size, address = events.size[rows], events.correlation[rows]
    order = np.lexsort((np.arange(len(rows)), address))
    same = np.append(address[order][1:] == address[order][:-1], False)
    back = np.append(size[order][1:] < 0, False)
    freed = np.full(len(rows), NEVER, np.int64)
    next_one = np.append(events.start[rows][order][1:], NEVER)
    freed[order] = np.where(same & back, next_one, NEVER)
    taken = np.flatnonzero(size > 0)
    return Allocations(
        row=rows[taken],
        taken=events.start[rows[taken]],
        freed=freed[taken],
        size=size[taken],
        time=events.start[rows],
        allocated=events.sequence[rows],
        reserved=events.awaits[rows],
    )

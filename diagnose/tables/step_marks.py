"""Steps of a file without `ProfilerStep#n` marks: the most regular mark that repeats over the recording.

Three kinds of marks stand for steps: the ends of the optimizer's steps and the begins of the loader's fetches, of both
the fewer, since a step may take several batches or update several models; else the begins of the outermost annotation
of the program's own. A mark counts where it repeats at least three times over most of the recorded activity; an
annotation at regular intervals. Without any the kernels themselves part steps, where they repeat in one order
(`step_kernels`). Otherwise no step is claimed.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind, Trace
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import among, distinct
from diagnose.tables.names import LOADER_NEXT, OPTIMIZER_STEP, matching, rows_of
from diagnose.tables.step_kernels import repeated_kernels
from diagnose.text.patterns import lazy_pattern

__all__ = ["RepeatedMarks", "repeated_marks"]

MIN_STEPS = 3
MIN_REGULAR = 0.7  # of the intervals between annotations are within a factor of two of the median one
MIN_APART = 0.7  # of the intervals between other marks last a tenth of the mean: updates layer by layer do not
MIN_COVERED = 0.6  # of the recorded activity of the host, and of the launches, lies within the steps
COLD_RATIO = 3.0  # an early repetition that is so many times longer than the median of the later ones is cold
MAX_COLD = 0.5  # of the repetitions: with more, the recording is of a cold start; so it is beyond the next share
MAX_COLD_TIME = 2 / 3  # of the recorded time
MAX_NAME = 60  # characters of a kernel's
MIN_WORK = 0.5  # of the median repetition's launches: with fewer, the last one was cut off
# Annotations that PyTorch itself makes: several belong to one step, how many depends on the model.
_OF_LIBRARIES = lazy_pattern(
    r"^(Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction|Optimizer\.|enumerate\(DataLoader\)|nccl:|gloo:"
    r"|c10d::|record_param_comms|DistributedDataParallel|FSDP|FullyShardedDataParallel|autograd::|PyTorch Profiler"
    r"|ProfilerStep)"
)


class RepeatedMarks(NamedTuple):
    """Steps that touch each other, host time in ns."""

    start: Ints
    end: Ints
    thread: int  # row of Trace.threads that the marks are on
    found_by: str  # optimizer, dataloader, annotation or kernels
    name: str  # of the mark
    num_cold: int  # early repetitions that were left out


def repeated_marks(trace: Trace, activity: tuple[int, int]) -> RepeatedMarks | None:
    """Return the steps by the first kind of mark that is regular, None where none is.

    ``activity``: begin and end of what was recorded of the device, or of the host where there is none.
    """
    marks = (Kind.ANNOTATION, Kind.OP)
    recorded = (*activity, _queued(trace))
    updates = _steps_by(trace, matching(trace, marks, OPTIMIZER_STEP), recorded, "optimizer")
    fetches = _steps_by(trace, matching(trace, marks, LOADER_NEXT), recorded, "dataloader")
    found = min(filter(None, (updates, fetches)), key=lambda steps: len(steps.start), default=None)
    return (
        found
        or _steps_by(trace, _own_annotations(trace), recorded, "annotation")
        or _steps_by_kernels(trace, repeated_kernels(trace), recorded)
    )


def _steps_by_kernels(trace: Trace, kernels: Rows, recorded: tuple[int, int, Ints]) -> RepeatedMarks | None:
    """Return the steps that begin as these kernels are launched, None where most work lies outside of them."""
    begin, finish, queued = recorded
    if not len(kernels):
        return None
    calls = trace.events.cause[kernels]
    start, end = _up_to_next(trace.events.start[calls], min(finish, int(queued.max()) + 1), queued)
    cold = _num_cold(end - start)
    start, end = start[cold:], end[cold:]
    if len(start) < MIN_STEPS or end[-1] - start[0] < MIN_COVERED * (finish - begin):
        return None
    if not _hold_the_work(start, end, queued):
        return None
    name = trace.names[int(trace.events.name[kernels[0]])][:MAX_NAME]
    return RepeatedMarks(start, end, int(trace.events.thread[calls[0]]), "kernels", name, cold)


def _own_annotations(trace: Trace) -> Rows:
    """Return the outermost annotations of the program's own, in time order."""
    rows = rows_of(trace, Kind.ANNOTATION)
    events = trace.events
    names = {n for n in distinct(events.name[rows]).tolist() if not _OF_LIBRARIES.search(trace.names[n])}
    rows = rows[among(events.name[rows], list(names))]
    outer = np.zeros(len(rows), bool)
    for thread in distinct(events.thread[rows]).tolist():
        mine = np.flatnonzero(events.thread[rows] == thread)
        before = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, events.end[rows[mine]]))[:-1]
        outer[mine] = events.start[rows[mine]] >= before
    return rows[outer]


def _steps_by(trace: Trace, marks: Rows, recorded: tuple[int, int, Ints], found_by: str) -> RepeatedMarks | None:
    """Return the steps by the most regular name among the marks, None where none parts steps.

    ``recorded``: begin and end of the activity, and when the device tasks were launched.
    """
    begin, finish, queued = recorded
    events = trace.events
    names = sorted({(int(events.name[row]), int(events.thread[row])) for row in marks.tolist()})
    if len(queued):  # the device may work on long after the last launch
        finish = min(finish, max(int(queued.max()), begin) + 1)
    found: list[tuple[float, RepeatedMarks]] = []
    for name, thread in names:
        rows = marks[(events.name[marks] == name) & (events.thread[marks] == thread)]
        start, end = (
            _parted(events.end[rows], begin)
            if found_by == "optimizer"
            else _up_to_next(events.start[rows], finish, queued)
        )
        cold = _num_cold(end - start)
        if start[cold] - start[0] > MAX_COLD_TIME * (finish - begin):
            continue
        start, end = start[cold:], end[cold:]
        if len(start) < MIN_STEPS or end[-1] - start[0] < MIN_COVERED * (finish - start[0]):
            continue
        if len(queued) and not _hold_the_work(start, end, queued):
            continue
        length = np.maximum(end - start, 1)
        off = np.abs(np.log2(length / np.median(length)))
        apart = length > length.mean() / 10
        regular = (off <= 1).mean() >= MIN_REGULAR if found_by == "annotation" else apart.mean() >= MIN_APART
        if regular or (found_by != "annotation" and _launch_alike(start, end, queued)):
            found.append((float(off.mean()), RepeatedMarks(start, end, thread, found_by, trace.names[name], cold)))
    return min(found, key=lambda each: each[0])[1] if found else None


def _hold_the_work(start: Ints, end: Ints, queued: Ints) -> bool:
    """Return whether most launches lie in the steps, and most steps have one."""
    step = np.searchsorted(start, queued, side="right") - 1
    inside = step[(step >= 0) & (queued < end[-1])]
    return (
        len(inside) >= MIN_COVERED * (queued >= start[0]).sum()
        and len(inside) >= (1 - MAX_COLD) * len(queued)
        and len(distinct(inside)) >= MIN_REGULAR * len(start)
    )


def _queued(trace: Trace) -> Ints:
    """Return when the device tasks were launched; those without a launch in the file, when they began."""
    events = trace.events
    tasks = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    cause = events.cause[tasks]
    return np.where(cause >= 0, events.start[np.maximum(cause, 0)], events.start[tasks])


def _parted(ends: Ints, begin: int) -> tuple[Ints, Ints]:
    """Return the steps that end at these marks; the first one begins with the recorded activity."""
    return np.append(min(begin, int(ends[0]) - 1), ends[:-1]), ends


def _launch_alike(start: Ints, end: Ints, queued: Ints) -> bool:
    """Return whether most steps launch about as much as the median one, however far apart they lie."""
    if not len(queued):
        return False
    launched = np.diff(np.searchsorted(np.sort(queued, kind="stable"), np.append(start, end[-1])))
    usual = float(np.median(launched))
    return usual > 0 and bool((np.abs(np.log2(np.maximum(launched, 1) / usual)) <= 1).mean() >= MIN_REGULAR)


def _up_to_next(starts: Ints, finish: int, queued: Ints) -> tuple[Ints, Ints]:
    """Return the steps that begin at these marks; the last one ends with the activity, if it was not cut off.

    It was where it holds far less work than the others, or where nothing was launched at all, if it is far shorter.
    """
    ends = np.append(starts[1:], max(finish, int(starts[-1]) + 1))
    if len(starts) < 2:
        return starts, ends
    measured = (
        np.diff(np.searchsorted(np.sort(queued, kind="stable"), np.append(starts, ends[-1])))
        if len(queued)
        else ends - starts
    )
    is_cut = measured[-1] < MIN_WORK * float(np.median(measured[:-1]))
    return (starts[:-1], ends[:-1]) if is_cut else (starts, ends)


def _num_cold(length: Ints) -> int:
    """Return how many of the first repetitions are many times longer than the later ones."""
    cold = 0
    while cold < MAX_COLD * len(length) and len(length) - cold > MIN_STEPS:
        if length[cold] < COLD_RATIO * np.median(length[cold + 1 :]):
            break
        cold += 1
    return cold

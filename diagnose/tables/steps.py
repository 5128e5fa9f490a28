"""Which part of the trace counts: the steady steps, and the window they span.

With step marks a step runs from its `ProfilerStep#n` mark to the next one, and the window reaches to the end of
the last step or of the last device task that it launched, whichever is later: the device runs behind the host, and
what it still has to do belongs to the step. By the same token it begins, where the device was behind the host from
the start, when the device was done with what came before. Where it was not behind yet, because the recording began with
an empty device, the first step only leads in, and the others count. Without these marks another one that repeats at
regular intervals parts the steps (`step_marks`); where there is none the window runs from the first launch or device
task to the end of the last one, and counts as one step.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind, Note, Trace, step_number
from diagnose.model.intervals import among, covered, distinct, grouped, union
from diagnose.model.limits import CALL_NS, FEW, LONG_NS, MAJORITY, MIN_RECURRENCES, NEARLY_ALL, PREVAILS
from diagnose.tables.host import captured, outermost_of_threads
from diagnose.tables.names import (
    GRAPH_LAUNCH,
    KERNEL_LAUNCH,
    LOADER_NEXT,
    MODULE_LOAD,
    OPTIMIZER_STEP,
    STEP_MARK,
    matching,
    rows_of,
)

# How much of the last marked steps a recording holds: its end may cut them off, or lie within the last mark.

MIN_CROPPED = 10  # launches at the end without a task; a few are lost in whole files too


def num_whole(trace: Trace, start: Ints, end: Ints) -> int:
    """Return how many of the steps lie before the end of the device's records, all where none does.

    A file may be cropped: the host then launches on, and no task of these launches is there. What the device did
    meanwhile is not known, and no idle time. Launches of graphs do not count: their nodes may be missing anywhere.
    """
    events = trace.events
    launches = matching(trace, (Kind.RUNTIME,), KERNEL_LAUNCH)
    launches = launches[(events.start[launches] >= start[0]) & (events.start[launches] < end[-1])]
    launches = launches[~captured(trace, launches) & ~among(launches, matching(trace, (Kind.RUNTIME,), GRAPH_LAUNCH))]
    tasks = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    has_task = np.flatnonzero(among(launches, distinct(events.cause[tasks])))
    if not len(has_task) or len(launches) - has_task[-1] - 1 < MIN_CROPPED:
        return len(start)
    whole = int(np.searchsorted(end, events.start[launches[has_task[-1] + 1]], side="right"))
    return whole or len(start)


def end_without_stop(trace: Trace, start: Ints, end: Ints) -> int:
    """Return when the last step ends: as long after its last event on the host as any other step at most.

    Its mark may stay open while the loop shuts its workers down and the profiler stops, which no step does.
    """
    events = trace.events
    rows = rows_of(trace, Kind.OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME, Kind.GC)
    rows = rows[~among(rows, matching(trace, (Kind.ANNOTATION, Kind.OP), STEP_MARK))]
    ended = np.sort(events.end[rows], kind="stable")
    at = np.searchsorted(ended, end, side="right") - 1
    if at[0] < 0 or (ended[at] <= start).any():
        return int(end[-1])
    rest = end - ended[at]
    return int(end[-1] - max(rest[-1] - rest[:-1].max(), 0))


# Steps of a file without `ProfilerStep#n` marks: the most regular mark that repeats over the recording.
#
# Three kinds of marks stand for steps: the ends of the optimizer's steps and the begins of the loader's fetches, of
# both the fewer, since a step may take several batches or update several models; else the begins of the outermost
# annotation of the program's own. A mark counts where it repeats at least three times over most of the recorded
# activity; an annotation at regular intervals. Without any the kernels themselves part steps, where they repeat in one
# order. Otherwise no step is claimed.

# Of the intervals between annotations are within a factor of two of the median one, of those between other marks last a
# tenth of the mean: updates layer by layer do not.
MIN_COVERED = 0.6  # of the recorded activity of the host, and of the launches, lies within the steps
MIN_COLD_REPETITION = 3.0  # of the median of the later ones: an early repetition that takes as long is cold
MAX_COLD_TIME = 2 / 3  # of the recorded time
# Annotations that PyTorch itself makes: several belong to one step, how many depends on the model.
_OF_LIBRARIES = (
    r"^(Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction|Optimizer\.|enumerate\(DataLoader\)|nccl:|gloo:"
    r"|c10d::|record_param_comms|DistributedDataParallel|FSDP|FullyShardedDataParallel|autograd::|PyTorch Profiler"
    r"|ProfilerStep)"
)


_LAST_NUMBER = re.compile(r"\d{1,18}(?=\D*$)", re.ASCII)


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
    # When the device tasks were launched; those without a launch in the file, when they began.
    events = trace.events
    tasks = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    cause = events.cause[tasks]
    queued = np.where(cause >= 0, events.start[np.maximum(cause, 0)], events.start[tasks])
    recorded = (*activity, queued)
    updates = _steps_by(trace, matching(trace, marks, OPTIMIZER_STEP), recorded, "optimizer")
    fetches = _steps_by(trace, matching(trace, marks, LOADER_NEXT), recorded, "dataloader")
    if found := min(filter(None, (updates, fetches)), key=lambda steps: len(steps.start), default=None):
        return found
    rows = rows_of(trace, Kind.ANNOTATION)
    own = {n for n in distinct(events.name[rows]).tolist() if not re.search(_OF_LIBRARIES, trace.names[n])}
    outer = outermost_of_threads(trace, rows[among(events.name[rows], list(own))])
    return _steps_by(trace, outer, recorded, "annotation") or _steps_by_kernels(trace, recorded)


def _steps_by_kernels(trace: Trace, recorded: tuple[int, int, Ints]) -> RepeatedMarks | None:
    """Return the steps that begin as a kernel is launched, None where none repeats or most work lies outside."""
    begin, finish, queued = recorded
    kernels = repeated_kernels(trace)
    if not len(kernels):
        return None
    calls = trace.events.cause[kernels]
    start, end = _up_to_next(trace.events.start[calls], min(finish, int(queued.max()) + 1), queued)
    cold = _num_cold(end - start)
    start, end = start[cold:], end[cold:]
    if len(start) < MIN_RECURRENCES or end[-1] - start[0] < MIN_COVERED * (finish - begin):
        return None
    if not _hold_the_work(start, end, queued):
        return None
    name = trace.names[int(trace.events.name[kernels[0]])][:60]
    return RepeatedMarks(start, end, int(trace.events.thread[calls[0]]), "kernels", name, cold)


def _steps_by(trace: Trace, marks: Rows, recorded: tuple[int, int, Ints], found_by: str) -> RepeatedMarks | None:
    """Return the steps by the most regular name among the marks, None where none parts steps.

    ``recorded``: begin and end of the activity, and when the device tasks were launched.
    """
    begin, finish, queued = recorded
    events = trace.events
    named = _counted(trace, marks) if found_by == "annotation" else events.name[marks]
    names = sorted(set(zip(named.tolist(), events.thread[marks].tolist(), strict=True)))
    if len(queued):  # the device may work on long after the last launch
        finish = min(finish, max(int(queued.max()), begin) + 1)
    found: list[tuple[float, RepeatedMarks]] = []
    for name, thread in names:
        rows = marks[(named == name) & (events.thread[marks] == thread)]
        if found_by == "optimizer":  # its end is the step's; the first step begins with the recorded activity
            end = events.end[rows]
            start = np.append(min(begin, int(end[0]) - 1), end[:-1])
        else:
            start, end = _up_to_next(events.start[rows], finish, queued)
        cold = _num_cold(end - start)
        if start[cold] - start[0] > MAX_COLD_TIME * (finish - begin):
            continue
        start, end = start[cold:], end[cold:]
        if len(start) < MIN_RECURRENCES or end[-1] - start[0] < MIN_COVERED * (finish - start[0]):
            continue
        if len(queued) and not _hold_the_work(start, end, queued):
            continue
        length = np.maximum(end - start, 1)
        off = np.abs(np.log2(length / np.median(length)))
        apart = length > length.mean() / 10
        regular = (off <= 1).mean() >= PREVAILS if found_by == "annotation" else apart.mean() >= PREVAILS
        if not regular and found_by != "annotation" and len(queued):
            # However far apart they lie, most launch about as much as the median one.
            launched = _launched(start, end, queued)
            usual = float(np.median(launched))
            near = np.abs(np.log2(np.maximum(launched, 1) / max(usual, 0.5))) <= 1
            regular = usual > 0 and near.mean() >= PREVAILS
        if regular:
            found.append((float(off.mean()), RepeatedMarks(start, end, thread, found_by, trace.names[name], cold)))
    return min(found, key=lambda each: each[0])[1] if found else None


def _counted(trace: Trace, marks: Rows) -> npt.NDArray[np.int32]:
    """Return the names of the marks, one for those of a thread that count up: iteration 5, iteration 6.

    What counts up again and again, as the layers of each step do, keeps its names.
    """
    names: npt.NDArray[np.int32] = trace.events.name[marks].copy()
    thread = trace.events.thread[marks].tolist()
    counting: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for i, name in enumerate(names.tolist()):
        if found := _LAST_NUMBER.search(trace.names[name]):
            stem = trace.names[name][: found.start()]
            counting.setdefault((stem, thread[i]), []).append((i, int(found.group())))
    for same in counting.values():
        if all(one < other for (_, one), (_, other) in pairwise(same)):
            names[[i for i, _ in same]] = names[same[0][0]]
    return names


def _hold_the_work(start: Ints, end: Ints, queued: Ints) -> bool:
    """Return whether most launches lie in the steps, and most steps have one."""
    step = np.searchsorted(start, queued, side="right") - 1
    inside = step[(step >= 0) & (queued < end[-1])]
    return (
        len(inside) >= MIN_COVERED * (queued >= start[0]).sum()
        and len(inside) >= (1 - MAJORITY) * len(queued)
        and len(distinct(inside)) >= PREVAILS * len(start)
    )


def _up_to_next(starts: Ints, finish: int, queued: Ints) -> tuple[Ints, Ints]:
    """Return the steps that begin at these marks; the last one ends with the activity, if it was not cut off.

    It was where it holds far less work than the others, or where nothing was launched at all, if it is far shorter.
    """
    ends = np.append(starts[1:], max(finish, int(starts[-1]) + 1))
    if len(starts) < 2:
        return starts, ends
    measured = _launched(starts, ends, queued) if len(queued) else ends - starts
    is_cut = measured[-1] < MAJORITY * float(np.median(measured[:-1]))
    return (starts[:-1], ends[:-1]) if is_cut else (starts, ends)


def _launched(start: Ints, end: Ints, queued: Ints) -> Ints:
    """Return how much each of the steps launches."""
    found: Ints = np.diff(np.searchsorted(np.sort(queued, kind="stable"), np.append(start, end[-1])))
    return found


def _num_cold(length: Ints) -> int:
    """Return how many of the first repetitions are many times longer than the later ones."""
    cold = 0
    while cold < MAJORITY * len(length) and len(length) - cold > MIN_RECURRENCES:
        if length[cold] < MIN_COLD_REPETITION * np.median(length[cold + 1 :]):
            break
        cold += 1
    return cold


# A first step this much longer than the median of the others, with device code being loaded in it, is a cold one.
# What blocking copies take, as a checkpoint's do, is no loading and does not count.
COLD_RATIO = 1.5
MANY_TIMES = 2.0  # of the longest of the others: then nothing else has to show it
SAME_LENGTH = 0.01  # of the median length: steps that differ by less count as equal
CROPPED_SHARE = 0.01  # of the device's work: what ran before the recording's first wait is an incomplete rest


class Steps(NamedTuple):
    """The steady steps; ``marked`` is false where no mark repeats and the window stands for one step."""

    start: Ints  # host time at which each step begins, ns
    end: Ints  # host time at which it ends; consecutive steps touch
    number: Ints  # n of ProfilerStep#n
    window_start: int  # begin of the first step; of its first task where the device still ran what came before
    window_end: int  # end of the last step or of the last device task it launched
    thread: int  # row of Trace.threads that the marks are on, -1 without marks
    marked: bool
    found_by: str = ""  # profiler marks, optimizer, dataloader, annotation or kernels; "" where no step was found
    notes: tuple[Note, ...] = ()

    @property
    def window(self) -> tuple[int, int]:
        """Return the first and last instant of the window, ns."""
        return self.window_start, self.window_end

    @property
    def num(self) -> int:
        """Return how many steps there are."""
        return len(self.start)

    @property
    def median_step(self) -> int:
        """Return the representative step: of those of median length, to a hundredth, the one in the middle."""
        length = self.end - self.start
        off = np.abs(length - np.median(length))
        alike = np.flatnonzero(off <= max(float(off.min()), SAME_LENGTH * float(np.median(length))))
        return int(alike[len(alike) // 2])

    @property
    def step_ns(self) -> float:
        """Return the length of a step: the window over the number of steps."""
        return (self.window_end - self.window_start) / self.num


def find_steps(trace: Trace, *, exact: bool = False) -> Steps:
    """Return the steady steps of a trace; a trace without marks gives one step over its whole activity.

    ``exact``: the last mark ends where its step does, as in recordings of ``diagnose trace``.
    """
    marks = matching(trace, (Kind.ANNOTATION, Kind.OP), STEP_MARK)
    marks = marks[trace.events.end[marks] > trace.events.start[marks]]
    if not len(marks):
        return _unmarked(trace)
    threads = trace.events.thread[marks]
    thread = int(np.bincount(threads[threads >= 0]).argmax()) if (threads >= 0).any() else -1
    marks = marks[threads == thread]
    number = np.array([step_number(trace.names[n]) for n in trace.events.name[marks]], np.int64)
    # A number left out parts one profiling cycle from the next, of which the last counts. A pause does not.
    breaks = np.flatnonzero(np.diff(number) != 1)
    marks = marks[int(breaks[-1]) + 1 :] if len(breaks) else marks
    number = number[-len(marks) :]
    start, end = trace.events.start[marks], trace.events.end[marks]
    end[:-1] = start[1:]
    notes = []
    if why := _why_cold(trace, start, end):
        start, end, number = start[1:], end[1:], number[1:]
        notes.append(Note(f"The first step was left out: {why}.", "warm-up"))
    if (whole := num_whole(trace, start, end)) < len(start):
        left = "last step was" if len(start) - whole == 1 else f"last {len(start) - whole} steps were"
        start, end, number = start[:whole], end[:whole], number[:whole]
        notes.append(Note(f"The {left} left out: the recording of the device ends before.", "lost-records"))
    if not exact and len(start) >= 3:
        end[-1] = end_without_stop(trace, start, end)
    window = _window(trace, int(start[0]), int(end[-1]))
    if _leads_in(trace, start, end, window):
        start, end, number = start[1:], end[1:], number[1:]
        notes.append(Note("The first step was left out: the device had no work yet as it began, as later steps do."))
        window = _window(trace, int(start[0]), int(end[-1]), led_in=True)
    return Steps(start, end, number, *window, thread, marked=True, found_by="profiler marks", notes=tuple(notes))


def _why_cold(trace: Trace, start: Ints, end: Ints) -> str:
    """Return why the first step is cold, "" if it is not: it takes longer than the others because code is loaded in it.

    A call that takes very long shows that, or that the calls of this step together take longer than those of the
    others, by at least half of what the step does.
    """
    if len(start) < 3:
        return ""
    # Without what calls waited for copies that had begun.
    events = trace.events
    copies = rows_of(trace, Kind.MEMCPY)
    copied_by = events.cause[copies]
    waited = (copied_by >= 0) & (events.end[copied_by] >= events.end[copies])
    copying = union((events.start[copies[waited]], events.end[copied_by[waited]]))
    length = end - start - covered(copying, start, end)
    if length[0] < COLD_RATIO * np.median(length[1:]):
        return ""
    launches = matching(trace, (Kind.RUNTIME,), KERNEL_LAUNCH)
    calls = distinct(launches, matching(trace, (Kind.RUNTIME,), MODULE_LOAD))
    # A launch that takes longer than this loaded code: a warm one takes 3 to 20 µs.
    slow = calls[(events.end[calls] - events.start[calls]) > LONG_NS]
    calls = launches[(events.start[launches] >= start[0]) & (events.start[launches] < end[-1])]
    step = np.searchsorted(start, events.start[calls], side="right") - 1
    in_calls = np.bincount(step, events.end[calls] - events.start[calls], minlength=len(start))
    is_loading = ((events.start[slow] >= start[0]) & (events.start[slow] < end[0])).any()
    is_loading |= in_calls[0] - np.median(in_calls[1:]) >= MAJORITY * (length[0] - np.median(length[1:]))
    if is_loading:
        return "device code was still being loaded in it"
    return "it took at least twice as long as each of the others" if length[0] >= MANY_TIMES * length[1:].max() else ""


def _leads_in(trace: Trace, start: Ints, end: Ints, window: tuple[int, int]) -> bool:
    """Return whether the first step only fills the queue, and the device ends as much later than the host.

    The device then idles in the first step for what it is behind in the others, and works that off after the last one:
    the window would hold both, as if each step took a part of it.
    """
    drain = window[1] - int(end[-1])
    # Less than a few per cent of the window move no share by as much as lies between two verdicts.
    if len(start) < 3 or window[0] != start[0] or drain <= FEW * (window[1] - window[0]):
        return False
    events = trace.events
    tasks = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    idle = (end - start) - covered(union((events.start[tasks], events.end[tasks])), start, end)
    lead = min(int(idle[0] - np.median(idle[1:])), drain)
    return lead > FEW * (window[1] - window[0])


def _window(trace: Trace, start: int, end: int, *, led_in: bool = False) -> tuple[int, int]:
    """Stretch the steps' host time to the end of the last device task that was launched in them.

    Where the first task had to wait long after its launch although the file shows nothing running, the device was
    still at work that was queued before the recording: the window then begins with that task.
    """
    events = trace.events
    tasks = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    launched = events.cause[tasks]
    began = np.where(launched >= 0, events.start[launched], events.start[tasks])
    mine = tasks[(began >= start) & (began < end)]
    if not len(mine):
        return start, end
    stop = max(end, int(events.end[mine].max()))
    begin = _after_cropped_work(trace, tasks[events.end[tasks] > start], (start, end))
    if begin is None:
        begin = _after_earlier_work(trace, tasks, mine, start, stop - end if led_in else 0)
        # Until the first task of the file the device did what the file does not hold, if that was queued by the start.
        # Without a record of its launch it was queued before the recording, if the launches of most tasks are recorded.
        first, launch = int(tasks[0]), int(launched[0])
        if events.end[launch] <= start if launch >= 0 else (launched >= 0).mean() >= MAJORITY:
            begin = max(begin, int(events.start[first]))
    return (begin if begin < stop else start), stop


def _after_earlier_work(trace: Trace, tasks: Rows, mine: Rows, start: int, drain: int) -> int:
    """Return when the device was done with what had been queued before the steps.

    Queued before are tasks with an earlier launch, and those without a record of it that ran on their stream before any
    of the steps: the recording of launches began later. So far the device ran behind the host as the steps began; at
    their end it does too, and that part of the window would count twice. Behind a step
    that led in, as much of it is left out as the device works on after the steps, also where nothing of the steps
    waited for it: ``drain``, ns.
    """
    events = trace.events
    linked = events.cause[tasks] >= 0
    launched = np.where(linked, events.start[events.cause[tasks]], 0)
    streams, _, stream = grouped(events.stream[tasks])
    own = among(tasks, mine) & linked
    first = np.full(len(streams), -1, np.int64)  # of each stream: when the first task of the steps began
    first[stream[own][::-1]] = events.start[tasks[own]][::-1]
    earlier = np.where(linked, launched < start, events.start[tasks] < first[stream])
    done = np.full(len(streams), start, np.int64)
    np.maximum.at(done, stream[earlier], events.end[tasks[earlier]])
    begin = int(done.max())
    if not (launched[own] < done[stream[own]]).any():
        begin = min(begin, start + drain)
    return max(start, min(begin, int(events.start[tasks[~earlier]].min())))


def _after_cropped_work(trace: Trace, tasks: Rows, window: tuple[int, int]) -> int | None:
    """Return when the first task began that waited for work from before the recording, None where none did.

    It is the first of its stream, was launched in the window, and waited although the file shows nothing running on any
    stream. Nearly nothing ran before it.
    """
    events = trace.events
    start, end, launch = events.start[tasks], events.end[tasks], events.cause[tasks]
    firsts = np.sort(grouped(events.stream[tasks]).first, kind="stable")
    work = np.cumsum(end - start)
    begin = None
    for i in firsts.tolist():
        if i and work[i - 1] > CROPPED_SHARE * work[-1]:
            break
        is_mine = launch[i] >= 0 and window[0] <= events.start[launch[i]] < window[1]
        ready = max(int(events.end[launch[i]]), int(end[:i].max(initial=events.end[launch[i]])))
        # Ten times the usual launch latency on an empty queue.
        if is_mine and start[i] - ready > 10 * CALL_NS:
            begin = int(start[i])
    return begin


def _unmarked(trace: Trace) -> Steps:
    """Return the steps by a mark that repeats, or the whole recording as one."""
    start, end = _recorded(trace)
    found = repeated_marks(trace, (start, end))
    if found is None:
        note = Note("The trace has no step marks: the whole recording is taken as one step.")
        one = np.ones(1, np.int64)
        return Steps(start * one, end * one, 0 * one, start, end, -1, marked=False, notes=(note,))
    notes = [
        Note(f"The trace has no step marks of the profiler: its steps are parted by {len(found.start)} × {found.name}.")
    ]
    if found.num_cold:
        left = "first step was" if found.num_cold == 1 else f"first {found.num_cold} steps were"
        notes.append(Note(f"The {left} left out: many times longer than the later ones.", "warm-up"))
    first = int(found.start[0])
    if found.found_by != "dataloader":  # what comes before the first launch is no step, unless it is a fetch
        first = max(first, min(start, int(found.end[0]) - 1))
    found.start[0] = first
    window = _window(trace, first, int(found.end[-1]))
    number = np.arange(found.num_cold, found.num_cold + len(found.start), dtype=np.int64)
    return Steps(
        found.start, found.end, number, *window, found.thread, marked=True, found_by=found.found_by, notes=tuple(notes)
    )


def _recorded(trace: Trace) -> tuple[int, int]:
    """Return the interval with activity: device tasks and their launches, or host events where there are none.

    Work that was queued long before it started waited for something that the file does not hold, so it
    begins with the first task then, not with its launch. Of the first launch counts what a launch usually takes: the
    first call of a recording takes longer.
    """
    events = trace.events
    tasks = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    if not len(tasks):
        rows = rows_of(trace, Kind.OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.PYTHON)
        rows = rows if len(rows) else np.arange(len(events))
        start, end = int(events.start[rows].min()), int(events.end[rows].max())
        return start, max(end, start + 1)
    first = int(tasks[0])
    start, end = int(events.start[first]), int(events.end[tasks].max())
    launch = int(events.cause[first])
    if launch >= 0:
        calls = trace.events.cause[tasks]
        calls = calls[calls >= 0]
        usual_call_ns = int(np.median(trace.events.end[calls] - trace.events.start[calls]))
        start = min(start, max(int(events.start[launch]), int(events.end[launch]) - usual_call_ns))
    begin = _after_cropped_work(trace, tasks, (start if launch < 0 else int(events.start[launch]), end))
    start = start if begin is None else begin
    return start, max(end, start + 1)


# Steps of a file without any marks: the device's kernels repeat in one and the same order.
#
# Layers repeat too, within a step. What parts steps comes in all that runs: nearly every kernel of the recording runs
# at least as often as there are steps, and from one begin to the next the same kernels follow each other.

MIN_KERNELS = 10  # of a step: fewer are a measurement of single operators
MIN_KERNELS_ALIKE = 0.95  # of the kernels of a step, at the same place as in another one
MIN_STEPS_ALIKE = 0.8  # of the steps


def repeated_kernels(trace: Trace) -> Rows:
    """Return the kernels that begin the steps, in time order; empty where nothing repeats so."""
    events = trace.events
    tasks = rows_of(trace, Kind.KERNEL)
    linked = tasks[events.cause[tasks] >= 0]
    none = tasks[:0]
    if len(linked) < max(MIN_RECURRENCES * MIN_KERNELS, NEARLY_ALL * len(tasks)):
        return none
    _, _, device = grouped(events.device[linked])  # of which some may be unknown
    linked = linked[device == np.bincount(device).argmax()]
    linked = linked[np.lexsort((events.start[linked], events.start[events.cause[linked]]))]
    _, _, name = grouped(events.name[linked])
    count = np.bincount(name)
    # The largest number of times that nearly all kernels run at least, and some exactly; 0 for none.
    # Of the kernels, by name, that run less often than steps: of single layers a third is rarer.
    rare = np.sort(count)[int(FEW * len(count))]
    num = int(rare) if (count == rare).any() else 0
    if num < MIN_RECURRENCES:
        return none
    for anchor in np.flatnonzero(count == num).tolist():
        at = np.flatnonzero(name == anchor)
        begun = events.start[events.cause[linked[at]]]
        length = np.diff(at)
        usual = int(np.median(length))
        first = at[:-1][length == usual]
        if not (np.diff(begun) > 0).all() or usual < MIN_KERNELS or len(first) < MIN_RECURRENCES - 1:
            continue
        alike = [(name[a : a + usual] == name[first[0] : first[0] + usual]).mean() for a in first.tolist()]
        if (np.array(alike) >= MIN_KERNELS_ALIKE).sum() >= MIN_STEPS_ALIKE * len(length):
            found: Rows = linked[at]
            return found
    return none

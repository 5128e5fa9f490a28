"""Limitations of a recording: what it does not show, and why, one sentence each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from diagnose.analyzers import lost_records, unexplained_device, warm_up
from diagnose.answer.gates import MAX_ESTIMATE
from diagnose.answer.ranking import HOST_FLOOR
from diagnose.model.accelerators import accelerator_of
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind, Note
from diagnose.model.intervals import distinct, total
from diagnose.pipeline.overhead import PROFILER, estimate_note, estimated_share, variation_note
from diagnose.pipeline.unseen import has_shapes
from diagnose.tables import Tables
from diagnose.tables.host_gaps import ready_share
from diagnose.tables.lost import (
    MAX_CROSSING_SHARE,
    MAX_OVERLAP_IN_STREAM,
    MIN_LOST_SHARE,
    MIN_OVERLAP_SHARE,
    crossing,
    graphs_left_no_task,
    lost_share,
    num_captured,
    only_collectives,
    overlap_share,
)
from diagnose.tables.names import BLOCKING, matching, rows_of
from diagnose.text.numbers import percent, plural

__all__ = ["is_incomplete", "is_scanty", "lacks_device", "trust_notes", "why_unusable"]

LOST: Final = lost_records.META.id
UNEXPLAINED: Final = unexplained_device.META.id
COLD: Final = warm_up.META.id
MIN_TASKS = 10  # the smallest recordings of a real step in the calibration traces hold this many
MIN_QUEUED_SHARE = 0.5  # of the tasks: whose launches are in the file, if that is to show why the device was idle
MAX_COLD_SHARE = 1 / 3  # of the recording, in work that comes once: what is left is no steady step
MAX_LOST_SHARE = 0.1  # of the launches, or of the step: with more missing no saving is stated
MAX_UNSCHEDULED_SHARE = 0.05
MAX_FAULTY_SHARE = 0.01
DEVICE_COLLECTIVE = re.compile(r"^nccl:")  # a library for collectives between GPUs
_TRAINS = re.compile(r"\bbn_fw_tr|batch_norm_collect_statistics|fused_dropout_kernel")
EARLY_NS = 1_000  # in no trace at hand does a task begin before its launch; a microsecond is what files round to


def is_scanty(t: Tables) -> bool:
    """Return whether the recording holds too little device work for any claim of its own."""
    return t.device_id >= 0 and len(t.tasks.start) < MIN_TASKS and not _is_whole(t)


def _is_whole(t: Tables) -> bool:
    """Return whether several marked steps hold all that they launch, however little: a task for each launch."""
    if not t.steps.marked or t.steps.num < 2 or (t.tasks.launch < 0).any() or len(t.launches_without_task):
        return False
    step = np.searchsorted(t.steps.start, t.trace.events.start[t.tasks.launch], side="right") - 1
    return len(distinct(step[step >= 0])) == t.steps.num


def lacks_device(t: Tables) -> bool:
    """Return whether a device worked and nothing of it is in the file: work was queued, or waited for."""
    if t.device_id >= 0 or accelerator_of(t.trace.names):
        return False
    info, (start, end) = t.capture.info, t.steps.window
    if len(t.launches_without_task) or (info is not None and _is_on_gpu(info.optimizer.devices)):
        return True
    if len(matching(t.trace, (Kind.OP, Kind.ANNOTATION), DEVICE_COLLECTIVE)):
        return True
    return total(t.covering(t.calls(BLOCKING))) >= HOST_FLOOR * (end - start) > 0


def _is_on_gpu(devices: Iterable[str]) -> bool:
    return any(device.partition(":")[0] == "cuda" for device in devices)


def is_incomplete(t: Tables) -> bool:
    """Return whether so much device work is missing that the recording cannot show what a change saves."""
    if t.device_id < 0:
        return False
    missing = t.causes.totals().get(LOST, 0) / (t.steps.window[1] - t.steps.window[0])
    return is_scanty(t) or graphs_left_no_task(t) or max(lost_share(t), missing) > MAX_LOST_SHARE


def why_unusable(t: Tables) -> str:
    """Return why the file cannot carry an answer, however much it holds; "" where it may."""
    if t.trace.cut:
        return "The file is cut off: copy or record it again."
    if lacks_device(t):
        return "The device's records are missing: the GPU worked, and none of its tasks is in the file."
    if why := _why_impossible(t):
        return why
    start, end = t.steps.window
    if t.causes.totals().get(COLD, 0) > MAX_COLD_SHARE * (end - start):
        return "The recording is of a cold start"
    if only_collectives(t):
        return "Only collectives are in this recording: what the devices compute is missing"
    return "Only a few device tasks are in this recording" if is_scanty(t) else ""


def why_outweighed(t: Tables, answer: Finding | None, step_ns: float) -> str:
    """Return that more time has no cause in the file than the answer is worth, "" where the answer is worth more.

    Tasks that were queued and did not run while nothing else did, or that nothing queued, point at records that the
    file lacks. Nor does a file carry an answer that is worth less than what recording may take of most of the step.
    """
    if answer is None or t.device_id < 0 or answer.share is not None:
        return ""
    window = t.steps.window[1] - t.steps.window[0]
    unexplained = t.causes.totals().get(UNEXPLAINED, 0) / window
    if unexplained * step_ns > answer.worth_ns:
        return "Too much of the idle time cannot be explained from this trace"
    queued_by = t.tasks.launch >= 0
    has_cpu = queued_by.any()
    if has_cpu and queued_by.mean() < MIN_QUEUED_SHARE and t.partition.idle * step_ns > answer.worth_ns:
        return "Most launches of the device's tasks are missing"
    recording = estimated_share(t)
    if recording >= MAX_ESTIMATE and answer.worth_ns < min(recording, t.partition.idle) * step_ns:
        return "The profiler took more time than the largest cost found"
    return ""


def _why_impossible(t: Tables) -> str:
    if t.device_id >= 0 and overlap_share(t) > MAX_OVERLAP_IN_STREAM:
        return "The times of this file cannot be true: tasks of one stream overlap."
    crosses = crossing(t).share > MAX_CROSSING_SHARE
    return "The times of this file cannot be true: calls of one thread cross each other." if crosses else ""


def trust_notes(t: Tables) -> Iterator[Note]:
    """State what the reader noticed, then what the tables show to be missing."""
    yield from t.trace.trust
    yield from t.steps.notes
    info = t.capture.info
    yield from (Note(text) for text in (info.notes if info else ()))
    if varies := variation_note(t):
        yield Note(varies)
    if estimate := estimate_note(t):
        yield Note(estimate, PROFILER)
    if (share := ready_share(t)) > MAX_UNSCHEDULED_SHARE:
        yield Note(
            f"The training thread was runnable but not scheduled for {percent(share, 0)} of the time: the CPU is "
            "oversubscribed, by other processes or by more threads than cores. Measure on an idle machine, or with "
            "fewer threads."
        )
    if num := crossing(t).num:
        yield Note(
            f"Calls of one thread cross each other ({plural(num, 'pair')}), which no run does: the clock was set back, "
            "or parts of several recordings are in this file."
        )
    if t.runs_no_python:
        yield Note(
            "Nothing in this recording shows Python, and its marks have names of C++: what ran between its operators "
            "is not known. A profiler of native code names it: perf record -g -p PID."
        )
    if t.device_id < 0:
        yield from _without_device(t)
    else:
        yield from _of_device(t)


def _of_device(t: Tables) -> Iterator[Note]:
    tasks = rows_of(t.trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    others = sorted(set(distinct(t.trace.events.device[tasks]).tolist()) - {t.device_id})
    if others:
        listed = ", ".join(map(str, others))
        yield Note(f"Device {listed} ran tasks too; this diagnosis is of device {t.device_id}, the busiest.")
    if is_scanty(t):
        yield Note(
            f"The recording holds only {plural(len(t.tasks.start), 'device task')}: too few to analyse of steady "
            "steps. Record a few whole steps."
        )
    if into_graph := num_captured(t):
        launches = "1 launch" if into_graph == 1 else f"{into_graph} launches"
        yield Note(
            f"The recording holds the capture of a graph: {launches} went into it and did not run, so what the device "
            "did meanwhile is not part of a steady step.",
            COLD,
        )
    share = lost_share(t)
    if share > MIN_LOST_SHARE:
        num = len(t.launches_without_task)
        yield Note(
            f"{num} launches ({percent(share)}) have no device task in the file: some device work is missing.",
            LOST,
        )
    coarse = bool((t.trace.events.start % 1000 == 0).all())  # whole microseconds: a shorter task reads as zero
    zero = 0 if coarse else int((t.tasks.end <= t.tasks.start).sum())
    if zero > MAX_FAULTY_SHARE * len(t.tasks.start):
        yield Note(f"{zero} of {len(t.tasks.start)} device tasks have no duration.", LOST)
    unknown = int((t.tasks.launch < 0).sum())
    if unknown > MAX_FAULTY_SHARE * len(t.tasks.start):
        yield Note(
            f"{unknown} of {len(t.tasks.start)} device tasks have no launch in the file: who queued them is not known."
        )
    if graphs_left_no_task(t):
        yield Note(
            "No graph that was launched left a device task in the file: what the device did is not known, and no "
            "verdict is given.",
            LOST,
        )
    yield from _of_clocks(t)
    yield from _of_mode(t)
    if not has_shapes(t):
        yield Note(
            "No operator's shapes were recorded: how near the kernels come to what the device can do is not known. "
            "Profile with record_shapes=True."
        )
    if not (t.trace.events.kind == Kind.PYTHON).any() and t.capture.attribution is None and t.capture.samples is None:
        yield Note("Neither Python frames nor samples were recorded: findings name operators, not lines of the script.")


def _of_mode(t: Tables) -> Iterator[Note]:
    if t.program.trains is False and len(matching(t.trace, (Kind.KERNEL,), _TRAINS)):
        yield Note(
            "Batch normalisation or dropout ran as in training although no backward was recorded: for inference call "
            "model.eval() first, or the outputs depend on the batch and on chance."
        )


def _of_clocks(t: Tables) -> Iterator[Note]:
    share = overlap_share(t)
    if share > MIN_OVERLAP_SHARE:
        yield Note(
            f"Tasks of one stream overlap for {percent(share)} of their time, and a stream runs one after the other: "
            "start or length of some is wrong in this file."
        )
    launch = t.tasks.launch
    ahead = (t.trace.events.start[launch] - t.tasks.start)[launch >= 0]
    early = int((ahead > EARLY_NS).sum())
    if early > MAX_FAULTY_SHARE * len(launch):
        yield Note(
            f"{early} of {len(launch)} device tasks begin before they are launched, by up to {ahead.max() / 1e3:.0f} "
            "µs: the clocks of host and device disagree, so what the device waited for may be read wrongly."
        )
    if late := t.late_by:
        yield Note(
            f"Calls return up to {late / 1e3:.0f} µs before the device tasks that they wait for end: the clock of the "
            "device is late by as much, which counts as launch latency here."
        )


def _without_device(t: Tables) -> Iterator[Note]:
    accelerator = accelerator_of(t.trace.names)
    if accelerator:
        yield Note(
            f"The operators ran on {accelerator}, whose tasks are not in this file: only the host can be diagnosed, "
            "and waits for the device count as the host's time. Device tasks of CUDA, ROCm and XPU are read."
        )
        return
    listed = f" although the file lists {t.trace.devices[0].name or 'a device'}" if t.trace.devices else ""
    calls = len(t.in_window(rows_of(t.trace, Kind.RUNTIME)))
    if calls and lacks_device(t):
        yield Note(
            f"The file has {plural(calls, 'call')} of the GPU's runtime but no device task{listed}: ProfilerActivity."
            "CUDA was on, and the device's records were lost. Close other profilers of this GPU, such as Nsight or "
            "DCGM, and in a container allow CUPTI (--cap-add=SYS_ADMIN).",
            LOST,
        )
    elif lacks_device(t) or t.trace.devices:
        yield Note(f"The file has no device task{listed}. If the GPU was used, profile with ProfilerActivity.CUDA.")
    else:
        yield Note("The file has no device task: only the host can be diagnosed.")

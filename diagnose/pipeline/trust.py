"""Limitations of a recording: what it does not show, and why, one sentence each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from diagnose.analyzers import META, lost_records, unexplained_device, warm_up
from diagnose.answer import FLOOR, HOST_FLOOR
from diagnose.answer.screen import MAX_ESTIMATE
from diagnose.model.accelerators import accelerator_of
from diagnose.model.capture import CaptureInfo
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind, Note, Trace
from diagnose.model.intervals import distinct, total
from diagnose.model.limits import MAJORITY, MAX_READY_SHARE
from diagnose.model.records import as_facts
from diagnose.model.rules import OF_PAUSES, OF_WORK, OUTSIDE, WORK, Records, RuleMeta
from diagnose.pipeline.true_step import PROFILER, estimate_note, estimated_share, variation_note
from diagnose.tables import Tables
from diagnose.tables.calls import can_recur
from diagnose.tables.host_gaps import ready_share
from diagnose.tables.lost import (
    MAX_OVERLAP_IN_STREAM,
    MIN_LOST_SHARE,
    MIN_OVERLAP_SHARE,
    ROUNDING_NS,
    graphs_left_no_task,
    lost_share,
    num_captured,
    only_collectives,
    overlap_share,
)
from diagnose.tables.names import BLOCKING, matching, rows_of
from diagnose.tables.roofline import gpu_spec
from diagnose.text.numbers import percent, plural

# What the recording does not hold: which rules could not look, and whether that may hide an answer.


def missing_records(t: Tables, *, alone: bool = True) -> frozenset[Records]:
    """Return what the recording does not hold, and rules would need; ``alone``: no other rank's trace is at hand."""
    info, samples = t.capture.info or CaptureInfo(), t.capture.samples
    held: dict[Records, bool] = {
        "shapes": has_shapes(t),
        "peak rates of the device": gpu_spec(t) is not None,
        "data flow": t.capture.dataflow is not None,
        "garbage collections": samples is not None or bool((t.trace.events.kind == Kind.GC).any()),
        "memory events": bool((t.trace.events.kind == Kind.MEMORY).any()),
        "NVML samples": bool(as_facts(info.nvml)),
        "samples of the threads": samples is not None,
        "steps of the whole run": t.capture.run is not None,
        "a second step": can_recur(t),
        "all ranks": t.trace.world_size <= 1 or not alone,
    }
    return frozenset(name for name, there in held.items() if not there)


def has_shapes(t: Tables) -> bool:
    """Return whether the inputs' shapes of operators were recorded, in either window."""
    return any(bool((trace.events.shapes >= 0).any()) for trace in _windows(t))


def names_lines(t: Tables) -> bool:
    """Return whether Python frames or samples of the threads were recorded."""
    return t.capture.samples is not None or any(bool((w.events.kind == Kind.PYTHON).any()) for w in _windows(t))


def _windows(t: Tables) -> tuple[Trace, ...]:
    return (t.trace,) if t.capture.attribution is None else (t.trace, t.capture.attribution)


def not_looked(
    rules: Iterable[RuleMeta], missing: Collection[Records], *, lacks_device: bool
) -> dict[str, tuple[Records, ...]]:
    """Return the rules that lack something, and what; ``lacks_device``: the device ran, and its records are missing."""
    found: dict[str, tuple[Records, ...]] = {
        rule.id: tuple(record for record in rule.needs if record in missing) for rule in rules
    }
    for rule in META.values() if lacks_device else ():
        if rule.kind in ("idle", "kernel", "state"):
            found.setdefault(rule.id, ("device records",))
    return {name: lacking for name, lacking in found.items() if lacking}


def unseen(
    t: Tables, left_out: Mapping[str, tuple[Records, ...]], shares: Mapping[str, float], computing: float
) -> dict[str, int]:
    """Return the records without which an answer may be hidden, with the number of rules that need each.

    Records that show superfluous work hide no more than what computes, those that show pauses no more than the time
    between operators that no rule explains. ``left_out`` are the rules that lack something, and what, ``shares`` of the
    step by cause, ``computing`` the share in which the device computes, or without a device the host's operators.
    """
    floor = FLOOR if t.device_id >= 0 else HOST_FLOOR
    causes = {name for name, rule in META.items() if not rule.explains} - {WORK} | {OUTSIDE}
    unknown = sum(share for name, share in shares.items() if name in causes)
    large = {"device records", *(OF_WORK if computing >= floor else ()), *(OF_PAUSES if unknown >= floor else ())}
    answering = {m.id for m in META.values() if m.kind in ("idle", "kernel", "run") and m.is_avoidable and m.explains}
    found = Counter(
        record
        for rule, lacking in left_out.items()
        for record in lacking
        if record in large and (rule in answering or record == "device records")
    )
    return dict(found.most_common())


LOST: Final = lost_records.META.id
UNEXPLAINED: Final = unexplained_device.META.id
COLD: Final = warm_up.META.id
MAX_COLD_SHARE = 1 / 3  # of the recording, in work that comes once: what is left is no steady step
MAX_LOST_SHARE = 0.1  # of the launches, or of the step: with more missing no saving is stated
MAX_FAULTY_SHARE = 0.01
DEVICE_COLLECTIVE = re.compile(r"^nccl:")  # a library for collectives between GPUs
_TRAINS = re.compile(r"\bbn_fw_tr|batch_norm_collect_statistics|fused_dropout_kernel")


MIN_TASKS = 10  # the smallest recordings of a real step in the calibration traces hold this many


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
    info, (start, end) = t.capture.info or CaptureInfo(), t.steps.window
    is_on_gpu = any(device.partition(":")[0] == "cuda" for device in info.optimizer.devices)
    worked = (*t.launches_without_task, *matching(t.trace, (Kind.OP, Kind.ANNOTATION), DEVICE_COLLECTIVE))
    return is_on_gpu or bool(worked) or total(t.covering(t.calls(BLOCKING))) >= HOST_FLOOR * (end - start) > 0


def is_incomplete(t: Tables) -> bool:
    """Return whether so much device work is missing that the recording cannot show what a change saves."""
    if t.device_id < 0:
        return False
    return is_scanty(t) or graphs_left_no_task(t) or max(lost_share(t), _share(t, LOST)) > MAX_LOST_SHARE


def _share(t: Tables, rule: str) -> float:
    return t.causes.totals().get(rule, 0) / (t.steps.window[1] - t.steps.window[0])


def why_unusable(t: Tables) -> str:
    """Return why the file cannot carry an answer, however much it holds; "" where it may."""
    has_device = t.device_id >= 0
    reasons: dict[str, bool] = {
        "The file is cut off: copy or record it again.": t.trace.cut,
        "The device's records are missing: the GPU worked, and none of its tasks is in the file.": lacks_device(t),
        "The times of this file cannot be true: tasks of one stream overlap.": (
            has_device and overlap_share(t) > MAX_OVERLAP_IN_STREAM
        ),
        "The recording is of a cold start": _share(t, COLD) > MAX_COLD_SHARE,
        "Only collectives are in this recording: what the devices compute is missing": only_collectives(t),
        "Only a few device tasks are in this recording": is_scanty(t),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def why_outweighed(t: Tables, answer: Finding | None, step_ns: float) -> str:
    """Return that more time has no cause in the file than the answer is worth, "" where the answer is worth more.

    Tasks that were queued and did not run while nothing else did, or that nothing queued, point at records that the
    file lacks. Nor does a file carry an answer that is worth less than what recording may take of most of the step.
    """
    if answer is None or t.device_id < 0 or answer.share is not None:
        return ""
    queued, recording, idle = t.tasks.launch >= 0, estimated_share(t), t.partition.idle
    shares = {
        "Too much of the idle time cannot be explained from this trace": _share(t, UNEXPLAINED),
        "Most launches of the device's tasks are missing": idle if 0 < queued.mean() < MAJORITY else 0.0,
        "The profiler took more time than the largest cost found": (
            min(recording, idle) if recording >= MAX_ESTIMATE else 0.0
        ),
    }
    return next((why for why, share in shares.items() if share * step_ns > answer.worth_ns), "")


def trust_notes(t: Tables) -> Iterator[Note]:
    """State what the reader noticed, then what the tables show to be missing."""
    yield from t.trace.trust
    yield from t.steps.notes
    info, ready = t.capture.info or CaptureInfo(), ready_share(t)
    yield from map(Note, info.notes)
    yield from _those_that_hold(
        (variation := variation_note(t), variation, None),
        (estimate := estimate_note(t), estimate, PROFILER),
        (
            ready > MAX_READY_SHARE,
            f"The training thread was runnable but not scheduled for {percent(ready, 0)} of the time: the CPU is "
            "oversubscribed, by other processes or by more threads than cores. Measure on an idle machine, or with "
            "fewer threads.",
            None,
        ),
        (
            t.runs_no_python,
            "Nothing in this recording shows Python, and its marks have names of C++: what ran between its operators "
            "is not known. A profiler of native code names it: perf record -g -p PID.",
            None,
        ),
    )
    yield from _of_device(t) if t.device_id >= 0 else _without_device(t)


def _those_that_hold(*notes: tuple[object, str, str | None]) -> Iterator[Note]:
    """Yield the notes of which the first entry holds; the others are the text and what it is about."""
    yield from (Note(text, rule) for holds, text, rule in notes if holds)


def _of_device(t: Tables) -> Iterator[Note]:
    events, tasks, num = t.trace.events, t.tasks, len(t.tasks.start)
    rows = rows_of(t.trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    others = sorted(set(distinct(events.device[rows]).tolist()) - {t.device_id})
    into_graph, share, overlap, late = num_captured(t), lost_share(t), overlap_share(t), t.late_by
    launches = "1 launch" if into_graph == 1 else f"{into_graph} launches"
    coarse = bool((events.start % 1000 == 0).all())  # whole microseconds: a shorter task reads as zero
    zero = int((tasks.end <= tasks.start).sum()) * (not coarse)
    unknown = int((tasks.launch < 0).sum())
    ahead = (events.start[tasks.launch] - tasks.start)[tasks.launch >= 0]
    early = int((ahead > ROUNDING_NS).sum())
    faulty = MAX_FAULTY_SHARE * num
    yield from _those_that_hold(
        (
            others,
            f"Device {', '.join(map(str, others))} ran tasks too; this diagnosis is of device {t.device_id}, the "
            "busiest.",
            None,
        ),
        (
            is_scanty(t),
            f"The recording holds only {plural(num, 'device task')}: too few to analyse of steady steps. Record a few "
            "whole steps.",
            None,
        ),
        (
            into_graph,
            f"The recording holds the capture of a graph: {launches} went into it and did not run, so what the device "
            "did meanwhile is not part of a steady step.",
            COLD,
        ),
        (
            share > MIN_LOST_SHARE,
            f"{len(t.launches_without_task)} launches ({percent(share)}) have no device task in the file: some device "
            "work is missing.",
            LOST,
        ),
        (zero > faulty, f"{zero} of {num} device tasks have no duration.", LOST),
        (
            unknown > faulty,
            f"{unknown} of {num} device tasks have no launch in the file: who queued them is not known.",
            None,
        ),
        (
            graphs_left_no_task(t),
            "No graph that was launched left a device task in the file: what the device did is not known, and no "
            "verdict is given.",
            LOST,
        ),
        (
            overlap > MIN_OVERLAP_SHARE,
            f"Tasks of one stream overlap for {percent(overlap)} of their time, and a stream runs one after the other: "
            "start or length of some is wrong in this file.",
            None,
        ),
        (
            early > faulty,
            f"{early} of {num} device tasks begin before they are launched, by up to {ahead.max(initial=0) / 1e3:.0f} "
            "µs: the clocks of host and device disagree, so what the device waited for may be read wrongly.",
            None,
        ),
        (
            late,
            f"Calls return up to {late / 1e3:.0f} µs before the device tasks that they wait for end: the clock of the "
            "device is late by as much, which counts as launch latency here.",
            None,
        ),
        (
            t.program.trains is False and len(matching(t.trace, (Kind.KERNEL,), _TRAINS)),
            "Batch normalisation or dropout ran as in training although no backward was recorded: for inference call "
            "model.eval() first, or the outputs depend on the batch and on chance.",
            None,
        ),
        (
            not has_shapes(t),
            "No operator's shapes were recorded: how near the kernels come to what the device can do is not known. "
            "Profile with record_shapes=True.",
            None,
        ),
        (
            not names_lines(t),
            "Neither Python frames nor samples were recorded: findings name operators, not lines of the script.",
            None,
        ),
    )


def _without_device(t: Tables) -> Iterator[Note]:
    if accelerator := accelerator_of(t.trace.names):
        yield Note(
            f"The operators ran on {accelerator}, whose tasks are not in this file: only the host can be diagnosed, "
            "and waits for the device count as the host's time. Device tasks of CUDA, ROCm and XPU are read."
        )
        return
    listed = "".join(f" although the file lists {device.name or 'a device'}" for device in t.trace.devices[:1])
    calls, lacks = len(t.in_window(rows_of(t.trace, Kind.RUNTIME))), lacks_device(t)
    if calls and lacks:
        yield Note(
            f"The file has {plural(calls, 'call')} of the GPU's runtime but no device task{listed}: ProfilerActivity."
            "CUDA was on, and the device's records were lost. Close other profilers of this GPU, such as Nsight or "
            "DCGM, and in a container allow CUPTI (--cap-add=SYS_ADMIN).",
            LOST,
        )
    elif lacks or listed:
        yield Note(f"The file has no device task{listed}. If the GPU was used, profile with ProfilerActivity.CUDA.")
    else:
        yield Note("The file has no device task: only the host can be diagnosed.")

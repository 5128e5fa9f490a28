"""The figures of Holistic Trace Analysis (HTA) beside ours, and what of each difference is a matter of definition.

Each figure is given three times: as the diagnosis has it, as HTA has it, and computed from our events by HTA's
definition. What is left between the last two is no matter of definition, and stated as such.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diagnose.errors import missing_extra
from diagnose.model.arrays import Ints, Mask
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import CrossCheck
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, intersect, total, union
from diagnose.pipeline.find import build_tables
from diagnose.tables import Tables
from diagnose.tables.names import COLLECTIVE, STEP_MARK, matching, rows_of

US = 1000  # HTA begins a task at the next whole microsecond and ends it at the last one
MAX_QUEUE_ERROR = 0.02  # within one of its microseconds a launch and the begin of a task change places
KERNEL_WAIT_US = (
    30  # a shorter pause is a kernel's: HTA's default, which its documentation gives in ns and its code in µs
)
SUFFIXES = (".json", ".json.gz")
WINDOW = (
    "HTA measures from the first task to the last of all devices together, of the steps but the last, drops tasks "
    "without a recorded launch and counts whole microseconds; ours is the window of the steady steps on the busiest "
    "device."
)
SPLIT = (
    "Shares of the idle time. HTA's is the sum of the pauses between tasks of one stream, here the busiest, even if "
    "another stream works meanwhile: of the host if the next task was launched after the last had ended, else of "
    f"the kernel below {KERNEL_WAIT_US} µs, else other. Ours is the device's: the part of a gap until the next task is "
    "queued is the host's; the rest is a kernel's if it is below 1.5 launch latencies, at least 10 µs, else other."
)
DEFINITIONS = {
    "idle": WINDOW,
    "compute": f"{WINDOW} HTA counts kernels only; ours adds fills and copies within the device.",
    "other": f"{WINDOW} HTA's is all that runs while no kernel computes: communication, copies and fills together.",
    "overlap": f"{WINDOW} Both are the share of the time of communication during which kernels compute.",
    "queue": (
        "HTA counts, for each stream, launches whose task has not started, and averages over the changes; ours counts "
        "launches that have not finished on all streams, as the median over time. Shown is the busiest stream's."
    ),
    **dict.fromkeys(("host wait", "kernel wait", "other wait"), SPLIT),
}


WAITS = {"host_wait": "host wait", "kernel_wait": "kernel wait", "other": "other wait"}
"""HTA's categories of idle time, and what they are called here."""


class _Tasks(NamedTuple):
    """Device tasks by one definition or the other; columns are parallel."""

    start: Ints
    end: Ints
    computes: Mask
    communicates: Mask


def cross_check_hta(capture: Capture) -> tuple[CrossCheck, ...]:
    """Return HTA's figures of a rank's trace beside ours; one entry with the reason where HTA cannot read it.

    Raises:
        InputError: HTA is not installed.
    """
    try:
        from hta.trace_analysis import TraceAnalysis
    except ImportError:
        raise missing_extra("The figures are to be compared with HTA's", "hta") from None
    path = capture.trace.path
    if not Path(path).is_file() or not path.endswith(SUFFIXES):
        return (CrossCheck("HTA", None, None, None, "Not compared: HTA reads local files of .json and .json.gz only."),)
    t = build_tables(capture, capture.trace)
    if t.device_id < 0:
        return (
            CrossCheck("HTA", None, None, None, "Not compared: the trace has no device, and HTA's figures are its."),
        )
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        theirs = _figures_of(TraceAnalysis(trace_files={0: str(Path(path).absolute())}))
    except Exception as error:  # whatever a package that is not ours raises for a file that it was not made for
        reason = f"Not compared: HTA cannot analyse this file ({type(error).__name__}: {error})."
        return (CrossCheck("HTA", None, None, None, reason),)
    finally:
        logging.disable(before)
    events, tasks, parts = t.trace.events, t.tasks, t.partition
    found = {"idle": parts.idle, "compute": parts.compute, "other": parts.exposed_communication + parts.exposed_copy}
    kernels = events.kind[tasks.row] == Kind.KERNEL
    overlap = _overlap(_Tasks(tasks.start, tasks.end, kernels & ~tasks.is_collective, tasks.is_collective))
    if overlap is not None:
        found["overlap"] = overlap
    found["queue"] = t.queue.depth_p50
    our_figures = found | _our_split(t)
    ours, by_definition = our_figures, _by_definition(t)
    return tuple(_row(name, ours.get(name), by_definition.get(name), theirs.get(name)) for name in DEFINITIONS)


def _figures_of(analysis: Any) -> dict[str, float]:
    breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    found = {
        "idle": float(breakdown["idle_time_pctg"]) / 100,
        "compute": float(breakdown["compute_time_pctg"]) / 100,
        "other": float(breakdown["non_compute_time_pctg"]) / 100,
    }
    with np.errstate(invalid="ignore"):  # without communication it divides by nothing
        overlap = float(analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]) / 100
    if np.isfinite(overlap):
        found["overlap"] = overlap
    queue = analysis.get_queue_length_summary()
    if queue is not None and len(queue):
        lengths = queue["queue_length"]
        found["queue"] = float(lengths.loc[lengths["count"].idxmax()]["mean"])
        # The stream with most tasks, as HTA has them.
        events = analysis.t.get_trace(0)
        on_device = events[(events["stream"] != -1) & (events["index_correlation"] > 0)]
        busiest_stream = int(on_device["stream"].value_counts().idxmax())
        split, _ = analysis.get_idle_time_breakdown(visualize=False, streams=[busiest_stream])
        pauses = split.set_index("idle_category")["idle_time"]
        if pauses.sum() > 0:
            found |= {name: float(pauses.get(key, 0.0) / pauses.sum()) for key, name in WAITS.items()}
    return found


def _our_split(t: Tables) -> dict[str, float]:
    """Return the parts of the device's idle time: the host's, short ones of the device, and the rest."""
    gaps = t.gaps
    idle = float((gaps.end - gaps.start).sum())
    if not idle:
        return {}
    on_device = gaps.end - gaps.queued_at
    short = float(on_device[on_device < gaps.latency_ns].sum())
    host = float((gaps.queued_at - gaps.start).sum())
    return {"host wait": host / idle, "kernel wait": short / idle, "other wait": (idle - host - short) / idle}


def _by_definition(t: Tables) -> dict[str, float]:
    """Return the figures of our events by HTA's definitions."""
    trace, events = t.trace, t.trace.events
    rows = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    # The begin of the last marked step, which HTA leaves out; None for fewer than two: it keeps all.
    marks = matching(trace, (Kind.ANNOTATION, Kind.OP), STEP_MARK)
    starts = trace.events.start[marks]
    last = int(starts.max()) if len(marks) > 1 else None
    if last is not None:
        rows = rows[(events.cause[rows] >= 0) & (events.start[events.cause[rows]] < last)]
    if not len(rows):
        return {}
    collective = np.zeros(len(events), bool)
    collective[matching(trace, (Kind.KERNEL,), COLLECTIVE)] = True
    kernels = events.kind[rows] == Kind.KERNEL
    start, end = -(-events.start[rows] // US) * US, events.end[rows] // US * US
    tasks = _Tasks(start, np.maximum(start, end), kernels & ~collective[rows], collective[rows])
    busy = union((tasks.start, tasks.end))
    length = int(busy.end[-1] - busy.start[0])
    if not length:
        return {}
    computing = total(union((tasks.start[tasks.computes], tasks.end[tasks.computes])))
    found = {
        "idle": 1 - total(busy) / length,
        "compute": computing / length,
        "other": (total(busy) - computing) / length,
    }
    overlap = _overlap(tasks)
    if overlap is not None:
        found["overlap"] = overlap
    linked = events.cause[rows] >= 0
    launched = -(-events.start[events.cause[rows][linked]] // US) * US
    found["queue"] = _queue_length(launched, tasks.start[linked], events.stream[rows][linked])
    launch = np.where(linked, -(-events.start[events.cause[rows]] // US) * US, np.iinfo(np.int64).min)
    return found | _split(tasks, launch, events.stream[rows])


def _split(tasks: _Tasks, launch: Ints, stream: Any) -> dict[str, float]:
    """Return the parts of the pauses between the tasks of the stream with most of them, as HTA splits them."""
    streams, counts = np.unique(stream, return_counts=True)
    mine = np.flatnonzero(stream == streams[counts.argmax()])
    mine = mine[np.argsort(tasks.start[mine], kind="stable")]
    ended, next_launch = tasks.end[mine][:-1], launch[mine][1:]
    pause = tasks.start[mine][1:] - ended
    if not pause.sum() > 0:
        return {}
    host = next_launch > ended
    kernel = ~host & (pause < KERNEL_WAIT_US * US)
    parts = {"host wait": pause[host].sum(), "kernel wait": pause[kernel].sum()}
    parts["other wait"] = pause.sum() - sum(parts.values())
    return {name: float(part / pause.sum()) for name, part in parts.items()}


def _overlap(tasks: _Tasks) -> float | None:
    communication = _cover(tasks, tasks.communicates)
    if not total(communication):
        return None
    return total(intersect(communication, _cover(tasks, tasks.computes))) / total(communication)


def _cover(tasks: _Tasks, mask: Mask) -> Intervals:
    return union((tasks.start[mask], tasks.end[mask]))


def _queue_length(launched: Ints, started: Ints, stream: Any) -> float:
    """Return the mean over the changes of one stream's queue, as HTA counts it, of the stream with most tasks."""
    if not len(started):
        return 0.0
    streams, counts = np.unique(stream, return_counts=True)
    mine = stream == streams[counts.argmax()]
    time = np.concatenate([launched[mine], started[mine]])
    change = np.concatenate([np.ones(mine.sum()), -np.ones(mine.sum())])
    order = np.argsort(time, kind="stable")
    return float(np.cumsum(change[order]).mean())


def _row(name: str, ours: float | None, by_definition: float | None, theirs: float | None) -> CrossCheck:
    definition = DEFINITIONS[name]
    if theirs is None:
        return CrossCheck(name, ours, by_definition, None, "HTA has no such figure of this trace.")
    if by_definition is None:
        return CrossCheck(name, ours, None, theirs, f"{definition} No task of ours is left by HTA's definition.")
    # HTA rounds percentages to hundredths and times to microseconds; which part a pause belongs to turns on one of
    # these.
    split = 0.02 if name in WAITS.values() else 0.005
    bound = MAX_QUEUE_ERROR * max(1.0, abs(theirs)) if name == "queue" else split
    if abs(by_definition - theirs) <= bound:
        same = ours is not None and abs(ours - theirs) <= bound
        return CrossCheck(name, ours, by_definition, theirs, "The figures agree." if same else definition)
    rest = f"{by_definition - theirs:+.3f} is left by HTA's own definition and not explained by it."
    return CrossCheck(name, ours, by_definition, theirs, f"{definition} {rest}", explained=False)

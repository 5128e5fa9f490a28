"""A log folder for TensorBoard: a copy of each rank's steady steps that its profiler plugin reads right, and scalars.

torch-tb-profiler knows the categories of 2021: it takes launches of today's traces (`cuda_runtime`) for nothing, and
steps twice where `gpu_user_annotation` repeats them. The copy has the steps that the diagnosis rests on, each marked
once, and categories, ids and times as the plugin expects them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.errors import OutputError, missing_extra
from diagnose.model.arrays import Rows
from diagnose.model.capture import Capture
from diagnose.model.events import Kind
from diagnose.model.files import cannot_write, check_folder, printable, write_bytes
from diagnose.model.intervals import among, covered
from diagnose.pipeline.find import build_tables
from diagnose.tables import Tables
from diagnose.tables.names import STEP_MARK
from diagnose.text.plain_text import is_utf8

BEFORE = "diagnose: the device ends what was queued before these steps"
MARK_NS = 1
HOST_PID = 1_000_000  # the process of all threads; devices are called by their numbers, as the plugin expects
CATEGORY = {
    Kind.OP: "cpu_op",
    Kind.ANNOTATION: "user_annotation",
    Kind.RUNTIME: "Runtime",
    Kind.KERNEL: "Kernel",
    Kind.MEMCPY: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset",
}


def check_log(folder: Path, *, force: bool) -> None:
    """Make sure that TensorBoard's packages are there and that nothing in the folder is lost or mixed with another's.

    Raises:
        InputError: a package is missing.
        OutputError: the folder holds something and ``force`` is off, or it is none.
    """
    if find_spec("tensorboard") is None:
        raise missing_extra("A log folder of TensorBoard is to be written", "tensorboard")
    if not is_utf8(str(folder)):
        raise OutputError(f"The path {printable(folder)} is not UTF-8, which TensorBoard cannot write; name another.")
    check_folder(folder, force=force)


def write_log(folder: Path, captures: Sequence[Capture], shown: Capture, *, force: bool) -> None:
    """Write the copies of all ranks, and the scalars of the one that is shown.

    Raises:
        OutputError: a file cannot be written.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for capture in captures:
            write_bytes(folder / f"rank{capture.trace.rank}.pt.trace.json.gz", _normalised_trace(capture), force=force)
        writer = EventFileWriter(str(folder))
        for tag, series in step_scalars(shown).items():
            for step, value in series:
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(Event(wall_time=shown.trace.epoch_ns / 1e9, step=step, summary=summary))
        writer.close()
    except OSError as error:
        raise cannot_write(folder, error) from error


def _normalised_trace(capture: Capture) -> bytes:
    """Return the steady steps of a rank as a compressed Kineto file."""
    t = build_tables(capture, capture.trace)
    trace = t.trace
    data = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": trace.rank, "world_size": trace.world_size, "backend": "nccl"},
        "deviceProperties": [
            {
                "id": device.id,
                "name": device.name,
                "totalGlobalMem": device.memory_bytes,
                "numSms": device.num_sms,
                "computeMajor": device.compute_capability[0],
                "computeMinor": device.compute_capability[1],
            }
            for device in trace.devices
        ],
        "traceEvents": [*_metadata(t), *_steps(t), *_host(t), *_tasks(t)],
    }
    return gzip.compress(json.dumps(data).encode(), compresslevel=6, mtime=0)


def step_scalars(capture: Capture) -> dict[str, list[tuple[int, float]]]:
    """Return series by name: at each step's number its time, its idle time, and that of each cause, ms."""
    t = build_tables(capture, capture.trace)
    start, end = t.steps.start.copy(), t.steps.end.copy()
    start[0], end[-1] = t.steps.window  # as the diagnosis counts them
    numbers = t.steps.number.tolist()
    series = {"diagnose/step_ms": (end - start) / 1e6}
    if t.device_id >= 0:
        series["diagnose/idle_ms"] = covered(t.occupancy.idle, start, end) / 1e6
    kind = "idle" if t.device_id >= 0 else "host"
    for rule in t.causes.totals():
        series[f"diagnose/{kind}_by_cause_ms/{rule}"] = covered(t.causes.pieces(rule), start, end) / 1e6
    return {name: list(zip(numbers, values.tolist(), strict=True)) for name, values in series.items()}


def _metadata(t: Tables) -> Iterator[dict[str, object]]:
    yield {"ph": "M", "name": "process_name", "pid": HOST_PID, "tid": 0, "args": {"name": "python"}}
    for number, thread in enumerate(t.trace.threads):
        name = {"name": f"thread {thread.tid} {thread.name}".strip()}
        yield {"ph": "M", "name": "thread_name", "pid": HOST_PID, "tid": number, "args": name}
    for device in sorted(set(t.trace.events.device[t.tasks.row].tolist())):
        yield {"ph": "M", "name": "process_name", "pid": device, "tid": 0, "args": {"name": f"GPU {device}"}}


def _event(t: Tables, row: int, pid: int, tid: int, args: dict[str, object]) -> dict[str, Any]:
    events = t.trace.events
    start, end = int(events.start[row]), int(events.end[row])
    return {
        "ph": "X",
        "cat": CATEGORY[Kind(int(events.kind[row]))],
        "name": t.name(row),
        "pid": pid,
        "tid": tid,
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "args": args,
    }


def _steps(t: Tables) -> Iterator[dict[str, object]]:
    """Mark each steady step once, whatever the steps were found by."""
    steps = t.steps
    thread = max(t.main, 0)
    for start, end, number in zip(steps.start.tolist(), steps.end.tolist(), steps.number.tolist(), strict=True):
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{max(number, 0)}", "pid": HOST_PID}
        yield {**mark, "tid": thread, "ts": start / 1e3, "dur": (end - start) / 1e3, "args": {"External id": 0}}


def _host_rows(t: Tables) -> Rows:
    events = t.trace.events
    wanted = among(events.kind, (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)) & (events.thread >= 0)
    inside = (events.start >= t.steps.start[0]) & (events.start < t.steps.window_end)
    return np.flatnonzero(wanted & inside)


def _launched_by(t: Tables) -> dict[int, int]:
    """Return the operator of each launch, as far as both are in the window."""
    first = t.steps.start[0]
    ops, launches = t.operators, t.tasks.launch
    known = (ops >= 0) & (launches >= 0)
    pairs = zip(launches[known].tolist(), ops[known].tolist(), strict=True)
    return {launch: op for launch, op in pairs if t.trace.events.start[op] >= first}


def _host(t: Tables) -> Iterator[dict[str, object]]:
    events, of_launch = t.trace.events, _launched_by(t)
    for row in _host_rows(t).tolist():
        name = t.name(row)
        if STEP_MARK.match(name):
            continue
        if events.kind[row] == Kind.RUNTIME:
            args: dict[str, object] = {"External id": of_launch.get(row, -1) + 1, "correlation": row + 1}
        else:
            args = {"External id": row + 1}
            if events.shapes[row] >= 0:
                args["Input Dims"] = _list(t.trace.names[events.shapes[row]])
                args["Input type"] = _list(t.trace.names[events.types[row]]) if events.types[row] >= 0 else []
            if events.detail[row] >= 0 and events.kind[row] == Kind.OP:
                args["Call stack"] = t.trace.names[events.detail[row]]
        yield _event(t, row, HOST_PID, int(events.thread[row]), args)


def _tasks(t: Tables) -> Iterator[dict[str, object]]:
    """Write the device's tasks in the window."""
    events, of_launch = t.trace.events, _launched_by(t)
    sms = {device.id: device.num_sms for device in t.trace.devices}
    if t.device_id >= 0 and t.steps.window_start > t.steps.start[0]:
        yield _before(t)
    columns = (t.tasks.row.tolist(), t.tasks.start.tolist(), t.tasks.end.tolist(), t.tasks.launch.tolist())
    for row, start, end, launch in zip(*columns, strict=True):
        args: dict[str, object] = {
            "External id": of_launch.get(launch, -1) + 1,
            "device": t.device_id,
            "stream": int(events.stream[row]),
            "correlation": (launch if launch >= 0 else row) + 1,
        }
        if events.kind[row] == Kind.KERNEL and events.grid[row] > 0 and sms.get(t.device_id):
            args["blocks per SM"] = int(events.grid[row]) / sms[t.device_id]
        if events.kind[row] != Kind.KERNEL and events.size[row] >= 0:
            args["bytes"] = int(events.size[row])
        made = _event(t, row, t.device_id, int(events.stream[row]), args)
        made["ts"], made["dur"] = start / 1e3, (end - start) / 1e3
        yield made


def _before(t: Tables) -> dict[str, object]:
    """Mark until when the device was busy with what came before the steps, which may not have been recorded.

    The plugin lets the first step begin at the end of such a task, but not where it ends as the step's first begins.
    """
    at = t.steps.window_start - 2 * MARK_NS
    args = {"External id": 0, "device": t.device_id, "stream": 0, "correlation": 0, "bytes": 0}
    mark = {"ph": "X", "cat": CATEGORY[Kind.MEMSET], "name": BEFORE, "pid": t.device_id, "tid": 0, "args": args}
    return {**mark, "ts": at / 1e3, "dur": MARK_NS / 1e3}


def _list(text: str) -> object:
    """Return what the text of a list holds, the text itself where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text

"""A run as a Kineto file: one for each rank."""

from __future__ import annotations

import gzip
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from simulation.dialects import Dialect
from simulation.kineto_names import (
    CBID,
    device_properties,
    is_driver_call,
    runtime_name,
    stream_id,
    task_fields,
    task_name,
)
from simulation.machine import Machine
from simulation.timeline import Call, HostEvent, RankLog, Run

__all__ = ["trace_of", "write_run"]

Event = dict[str, Any]
PID = 25738
AUTOGRAD_TID = PID + 34
EPOCH_US = 1_712_195_495_519_689
BASE_NS = 1_712_188_800_000_000_000
LEAD_US = 60.0  # from the profiler's start to the first step
_OLD = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}


def write_run(run: Run, dialect: Dialect, folder: Path) -> list[Path]:
    """Write a file for each rank and return them."""
    paths = []
    for rank in range(len(run.ranks)):
        text = msgspec.json.encode(trace_of(run, dialect, rank))
        if dialect.pretty:
            text = msgspec.json.format(text, indent=1)
        path = folder / f"host_{PID}.{rank}.pt.trace.json{'.gz' if dialect.compressed else ''}"
        path.write_bytes(gzip.compress(text, 1, mtime=0) if dialect.compressed else text)
        paths.append(path)
    return paths


def trace_of(run: Run, dialect: Dialect, rank: int) -> dict[str, Any]:
    """Return the document of a rank."""
    num_ranks = len(run.ranks)
    document: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": device_properties(run.machine.gpu, num_ranks)}
    if num_ranks > 1:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": num_ranks}
        if dialect.communication:
            group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": num_ranks}
            document["distributedInfo"] |= {"pg_count": 1, "pg_config": [{**group, "ranks": list(range(num_ranks))}]}
    for flag, wanted in (("record_shapes", dialect.shapes), ("with_stack", dialect.stacks != "none")):
        if wanted and not dialect.old_categories:
            document[flag] = 1
    document["traceEvents"] = list(_Writer(run, dialect, rank).events())
    document["traceName"] = f"./log/host_{PID}.{rank}.pt.trace.json"
    if dialect.display:
        document["displayTimeUnit"] = dialect.display
    if dialect.time == "relative":
        document["baseTimeNanoseconds"] = BASE_NS
    return document


class _Writer:
    """Writes the events of one rank."""

    def __init__(self, run: Run, dialect: Dialect, rank: int) -> None:
        self.dialect, self.rank = dialect, rank
        self.log: RankLog = run.ranks[rank]
        self.machine: Machine = run.machine
        self.num_ranks = len(run.ranks)
        self.zero = self.log.begin

    def events(self) -> Iterator[Event]:
        """Yield every event, the host's first, as exporters do."""
        yield from self._host_events()
        yield from self._calls()
        yield from self._tasks()
        if self.dialect.device_annotations:
            yield from self._device_annotations()
        yield from self._metadata()

    def _ts(self, ns: float) -> float:
        relative = (ns - self.zero) / 1000.0 + LEAD_US
        if self.dialect.time == "relative":
            return round(EPOCH_US - BASE_NS // 1000 + relative, 3)
        return int(EPOCH_US + relative) if self.dialect.time == "int" else EPOCH_US + relative

    def _span(self, start: float, end: float) -> dict[str, float]:
        ts = self._ts(start)
        if self.dialect.time == "int":
            return {"ts": ts, "dur": int(self._ts(end) - ts)}
        return {"ts": ts, "dur": round((end - start) / 1000.0, 3)}

    def _category(self, category: str) -> str:
        return _OLD.get(category, category) if self.dialect.old_categories else category

    def _thread(self, name: str) -> int | str:
        tid = PID if name == "main" else AUTOGRAD_TID
        return str(tid) if self.dialect.string_ids else tid

    def _device(self, stream: int) -> dict[str, Any]:
        number = stream_id(stream, self.dialect)
        return {"pid": self.rank, "tid": f"stream {number}" if self.dialect.string_ids else number}

    def _ids(self, number: int, index: int) -> dict[str, Any]:
        kind = self.dialect.ids
        if kind == "trace-name":
            trace = {"Trace name": "PyTorch Profiler", "Trace iteration": 0}
            return {"Device": PID, "External id": number, **trace}
        if kind == "profiler-index":
            trace = {"Trace name": "PyTorch Profiler", "Trace iteration": 0}
            return {**trace, "External id": number, "Profiler Event Index": index}
        ids = {"External id": number}
        return ids | ({"Record function id": 0} if kind == "record-function" else {}) | {"Ev Idx": index}

    def _host_events(self) -> Iterator[Event]:
        dialect, step = self.dialect, 0
        open_frames: list[HostEvent] = []
        forward: dict[int, float] = {}
        for index, event in enumerate(sorted(self.log.events, key=lambda e: (e.start, -e.end, e.number))):
            name = event.name
            if event.category == "python_function":
                while open_frames and open_frames[-1].end <= event.start:
                    open_frames.pop()
                parent = open_frames[-1].number if open_frames else None
                open_frames.append(event)
                if dialect.stacks == "frames":
                    args: dict[str, Any] = {"Python parent id": parent, "Python id": event.number, "Ev Idx": index}
                    if name.startswith("nn.Module"):
                        args["Python module id"] = event.number
                    yield self._host(event, name, args)
                continue
            if name == "ProfilerStep#":
                step += 1
                name = f"ProfilerStep#{step}"
                if not dialect.marks:
                    continue
            args = self._ids(event.number, index) | self._op_args(event, open_frames)
            yield self._host(event, name, args)
            yield from self._forward_backward(event, forward)

    def _host(self, event: HostEvent, name: str, args: dict[str, Any]) -> Event:
        place = {"pid": PID, "tid": self._thread(event.thread)}
        category = self._category(event.category)
        return {"ph": "X", "cat": category, "name": name, **place, **self._span(event.start, event.end), "args": args}

    def _op_args(self, event: HostEvent, frames: list[HostEvent]) -> dict[str, Any]:
        args: dict[str, Any] = {}
        dims = event.args.get("dims")
        if self.dialect.shapes and event.category == "cpu_op":
            args["Input Dims"] = [list(dim) for dim in dims] if dims else []
            if not self.dialect.old_categories:
                args["Input type"] = ["float" if dim else "Scalar" for dim in dims or ()]
        if "sequence" in event.args:
            args["Sequence number"] = event.args["sequence"]
            args["Fwd thread id"] = int("backward" in event.args)
        if self.dialect.stacks == "text":
            stack = [
                frame.name for frame in reversed(frames) if frame.end > event.start and frame.thread == event.thread
            ]
            args["Call stack"] = ";".join(stack)
        if self.dialect.communication and event.name == "record_param_comms":
            args |= {"Collective name": "allreduce", "dtype": "Float", "Group size": self.num_ranks}
        return args

    def _forward_backward(self, event: HostEvent, forward: dict[int, float]) -> Iterator[Event]:
        number = event.args.get("sequence")
        if not self.dialect.forward_backward or number is None:
            return
        key = hash((number, event.thread, round(event.start)))
        if "backward" not in event.args:
            forward[number] = event.start
        elif number in forward and event.name.startswith("autograd::engine"):
            arrow = {"id": abs(key) % 10**6, "cat": "fwdbwd", "name": "fwdbwd"}
            yield {"ph": "s", **arrow, "pid": PID, "tid": self._thread("main"), "ts": self._ts(forward.pop(number))}
            yield {
                "ph": "f",
                "bp": "e",
                **arrow,
                "pid": PID,
                "tid": self._thread("autograd"),
                "ts": self._ts(event.start),
            }

    def _calls(self) -> Iterator[Event]:
        launched = {task.correlation: task.device_class for task in self.log.tasks}
        calls = list(_merged(self.log.calls)) if self.dialect.vendor == "amd" else self.log.calls
        for call in calls:
            if call.api == "record" and not self.dialect.event_records:
                continue
            name = runtime_name(call, self.dialect, launched.get(call.correlation, ""))
            driver = is_driver_call(name)
            args: dict[str, Any] = {"correlation": call.correlation}
            external = call.correlation if self.dialect.external_is_correlation else call.parent
            if self.dialect.old_categories:
                args |= {"external id": external, "external ts": int(self._ts(call.start))}
            elif external:
                args["External id"] = external
            args |= {"cid" if self.dialect.vendor == "amd" else "cbid": CBID.get(call.api, 211)}
            if not self.dialect.correlated:
                del args["correlation"]
            category = "cuda_driver" if driver else self._category("cuda_runtime")
            place = {"pid": PID, "tid": self._thread(call.thread)}
            yield {"ph": "X", "cat": category, "name": name, **place, **self._span(call.start, call.end), "args": args}
            if self.dialect.flow and call.correlation in launched:
                flow = {"id": call.correlation, "cat": self.dialect.flow[0], "name": self.dialect.flow[1]}
                yield {"ph": "s", **flow, **place, "ts": self._ts(call.start)}
            if self.dialect.sync_events:
                yield from self._sync_event(call)

    def _sync_event(self, call: Call) -> Iterator[Event]:
        kinds = {"stream_sync": "Stream Sync", "device_sync": "Context Sync", "wait": "Stream Wait Event"}
        if call.api in kinds:
            stream = stream_id(call.stream, self.dialect) if call.api != "device_sync" else -1
            args = {"cuda_sync_kind": kinds[call.api], "stream": stream, "correlation": call.correlation}
            args |= {"device": self.rank, "context": 1}
            span = self._span(call.start, call.end)
            yield {
                "ph": "X",
                "cat": "cuda_sync",
                "name": kinds[call.api],
                "pid": self.rank,
                "tid": stream,
                **span,
                "args": args,
            }

    def _tasks(self) -> Iterator[Event]:
        for task in self.log.tasks:
            category, args = task_fields(task, self.dialect, self.machine, self.rank, self.num_ranks)
            name = task_name(task, self.dialect)
            place = self._device(task.stream)
            span = self._span(task.start, task.end)
            yield {"ph": "X", "cat": self._category(category), "name": name, **place, **span, "args": args}
            if self.dialect.flow:
                flow = {"id": task.correlation, "cat": self.dialect.flow[0], "name": self.dialect.flow[1]}
                yield {"ph": "f", "bp": "e", **flow, **place, "ts": span["ts"]}

    def _device_annotations(self) -> Iterator[Event]:
        """Repeat each annotation on the device, from its first task to its last."""
        issued = {call.correlation: (call.start, call.thread) for call in self.log.calls}
        timed = sorted((*issued[task.correlation], task) for task in self.log.tasks if task.correlation in issued)
        starts = [at for at, *_ in timed]
        for event in self.log.events:
            if event.category != "user_annotation" or event.name == "ProfilerStep#":
                continue
            issued_inside = timed[bisect_left(starts, event.start) : bisect_left(starts, event.end)]
            inside = [task for _, thread, task in issued_inside if thread == event.thread]
            for stream in sorted({task.stream for task in inside}):
                tasks = [task for task in inside if task.stream == stream]
                span = self._span(tasks[0].start, max(task.end for task in tasks))
                place = self._device(stream)
                args = {"External id": event.number}
                yield {"ph": "X", "cat": "gpu_user_annotation", "name": event.name, **place, **span, "args": args}

    def _metadata(self) -> Iterator[Event]:
        begin = self._ts(self.zero) - LEAD_US
        for pid, name, labels in ((PID, "python", "CPU"), *((n, "python", f"GPU {n}") for n in range(8))):
            common = {"ph": "M", "ts": begin, "pid": pid, "tid": 0}
            yield {"name": "process_name", **common, "args": {"name": name}}
            yield {"name": "process_labels", **common, "args": {"labels": labels}}
        for thread in ("main", "autograd"):
            tid = self._thread(thread)
            yield {
                "name": "thread_name",
                "ph": "M",
                "ts": begin,
                "pid": PID,
                "tid": tid,
                "args": {"name": f"thread {tid} (python)"},
            }
        end = max(
            [*(event.end for event in self.log.events), *(call.end for call in self.log.calls)], default=self.zero
        )
        spans = "Traces" if self.dialect.old_categories else "Spans"
        length = self._span(self.zero - LEAD_US * 1000, end + 20_000)
        about = {"name": "PyTorch Profiler (0)", "args": {"Op count": 0}}
        yield {"ph": "X", "cat": "Trace", **length, "pid": spans, "tid": "PyTorch Profiler", **about}
        if self.dialect.overhead:
            span = self._span(self.log.step_ends[-1] + 5_000, self.log.step_ends[-1] + 30_000)
            yield {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "pid": -1, "tid": 0, **span}


def _merged(calls: list[Call]) -> Iterator[Call]:
    """Yield the calls as HIP makes them: a copy that is waited for is one call."""
    held: Call | None = None
    for call in calls:
        if held and call.api == "stream_sync" and call.parent == held.parent:
            yield held._replace(api="memcpy_with_stream", end=call.end)
            held = None
            continue
        if held:
            yield held
        held = call if call.api == "memcpy" else None
        if held is None:
            yield call
    if held:
        yield held

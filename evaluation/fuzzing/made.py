"""Small traces, well formed, of every kind of exporter: a few steps with some of everything that rules look at."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

__all__ = ["EPOCH_NS", "FLAVOURS", "trace"]

Event = dict[str, Any]
EPOCH_NS = 1_700_000_000_000_000_000
FLAVOURS = ("gpu", "stalled", "cpu", "rank", "old", "hip", "no-steps", "attribution")
STEP_US = 1000.0
KERNELS = (
    "volta_sgemm_128x64_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int, float)",
    "void at::native::(anonymous namespace)::softmax_warp_forward<float, float, 8, false>(float*)",
    "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>>(long)",
    "void cudnn::ops::nchwToNhwcKernel<float, float>(float)",
    "indexing_backward_kernel",
    "sgemm_largek_lds64",
)
OPS = ("aten::addmm", "aten::add", "aten::softmax", "aten::_foreach_add_", "aten::conv2d", "aten::index", "aten::mm")
STACK = "train.py(31): forward;train.py(12): main;<built-in function exec>"


def trace(flavour: str, rng: random.Random, *, rank: int = 0, shift_us: float = 0.0) -> dict[str, Any]:
    """Return a trace as torch.profiler would export it; ``old`` ones are nearly only their events."""
    steps = rng.randint(3, 5)
    events = [event for number in range(steps) for event in _step(flavour, rng, number, number * STEP_US + shift_us)]
    if flavour == "no-steps":
        events = [event for event in events if not event["name"].startswith("ProfilerStep")]
    events += _metadata(flavour)
    if flavour == "old":
        return {"traceEvents": [_aged(event) for event in events]}
    document: dict[str, Any] = {"schemaVersion": 1}
    if flavour != "cpu":
        document["deviceProperties"] = [_device(flavour)]
    if flavour == "rank":
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return {
        **document,
        "with_stack": int(flavour == "attribution"),
        "record_shapes": 1,
        "baseTimeNanoseconds": EPOCH_NS,
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "traceName": "trace.json",
    }


def _device(flavour: str) -> dict[str, Any]:
    name = "AMD Instinct MI300X" if flavour == "hip" else "NVIDIA A100-SXM4-40GB"
    return {"id": 0, "name": name, "totalGlobalMem": 40 << 30, "computeMajor": 8, "computeMinor": 0, "numSms": 108}


def _metadata(flavour: str) -> list[Event]:
    names = [("process_name", 1, 0, "python"), ("thread_name", 1, 1, "thread 1 (python)")]
    names += [] if flavour == "cpu" else [("process_labels", 0, 0, "GPU 0")]
    return [{"ph": "M", "name": n, "pid": pid, "tid": tid, "ts": 0.0, "args": {"name": v}} for n, pid, tid, v in names]


def _step(flavour: str, rng: random.Random, number: int, at: float) -> Iterator[Event]:
    host = {"ph": "X", "pid": 1, "tid": 1}
    yield {**host, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": STEP_US, "args": {}}
    loading = 300.0 if flavour in ("stalled", "attribution") else 20.0
    load = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    yield {**host, "cat": "user_annotation", "name": load, "ts": at + 5, "dur": loading, "args": {"External id": 1}}
    if flavour == "attribution":
        frame = {**host, "cat": "python_function", "args": {"Python id": number + 1}}
        yield {**frame, "name": "train.py(12): main", "ts": at + 1, "dur": STEP_US - 2}
        yield {**frame, "name": "dataset.py(7): __getitem__", "ts": at + 8, "dur": loading - 10}
    begin = at + loading + 10
    count = rng.randint(3, 8)
    each = (at + STEP_US - 150 - begin) / count
    free = begin
    for i in range(count):
        yield from _operator(flavour, rng, number * 64 + i + 1, begin + i * each, each)
        free = max(free, begin + i * each + 6) + each * 0.7
    yield from _ending(flavour, number, at + STEP_US - 130, free)


def _operator(flavour: str, rng: random.Random, number: int, at: float, length: float) -> Iterator[Event]:
    which = rng.randrange(len(OPS))
    host = {"ph": "X", "pid": 1, "tid": 1 if number % 7 else 2}
    args: dict[str, Any] = {"External id": number, "Sequence number": number, "Ev Idx": number}
    if flavour in ("attribution", "cpu", "gpu"):
        args |= {"Input Dims": [[64, 128], [128, 33], []], "Input type": ["float", "float", "Scalar"]}
        args |= {"Concrete Inputs": ["", "", "1"]}
    if flavour == "attribution":
        args["Call stack"] = STACK
    yield {**host, "cat": "cpu_op", "name": OPS[which], "ts": at, "dur": length * 0.8, "args": args}
    if flavour == "cpu":
        return
    hip = flavour == "hip"
    call = "hipLaunchKernel" if hip else "cudaLaunchKernel"
    link = {"correlation": str(number) if hip else number, "External id": number}
    yield {**host, "cat": "cuda_runtime", "name": call, "ts": at + 2, "dur": 3.0, "args": {"cbid": 211, **link}}
    where = {"device": 0, "stream": 7, "context": 1, **link, "grid": [20, 1, 1], "block": [128, 1, 1]}
    task = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": at + 6, "dur": length * 0.7}
    yield {**task, "name": KERNELS[which], "args": {**where, "registers per thread": 32, "queued": 0}}
    arrow = {"cat": "ac2g", "name": "ac2g", "id": number}
    yield {**arrow, "ph": "s", "pid": 1, "tid": 1, "ts": at + 2}
    yield {**arrow, "ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": at + 6}


def _ending(flavour: str, number: int, at: float, free: float) -> Iterator[Event]:
    """Yield what stands at the end of a step: a copy that is waited for, a collective, the optimizer, memory."""
    host = {"ph": "X", "pid": 1, "tid": 1}
    memory = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    totals = {"Total Reserved": 4 << 20, "Total Allocated": 1 << 20, "Addr": 4096 + number}
    for i, size in enumerate((1 << 20, -(1 << 20))):
        place = {"Device Type": 0 if flavour == "cpu" else 1, "Device Id": 0, "Bytes": size}
        yield {**memory, "ts": at + i, "args": {**totals, **place}}
    step = {**host, "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "ts": at + 90, "dur": 30.0}
    yield {**step, "args": {}}
    yield {**host, "cat": "python_function", "name": "Python GC", "ts": at + 122, "dur": 4.0, "args": {}}
    if flavour == "cpu":
        return
    if flavour == "rank":
        yield from _collective(number, at + 40, max(free, at + 44))
    link = {"correlation": 10_000 + number}
    yield {**host, "cat": "cpu_op", "name": "aten::item", "ts": at, "dur": 80.0, "args": {"External id": 9}}
    copy = {"device": 0, "stream": 7, "bytes": 4, "memory bandwidth (GB/s)": 0.01, **link}
    call = {**host, "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": at + 2, "dur": 5.0}
    yield {**call, "args": link}
    name = "Memcpy DtoH (Device -> Pageable)"
    start = max(free, at + 8)
    yield {"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": 2.0, "args": copy}
    wait = {**host, "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": at + 8, "dur": start - at - 4}
    yield {**wait, "args": {"correlation": 20_000 + number}}
    sync = {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7, "ts": at + 8, "dur": 60.0}
    waits = {"stream": 7, "device": 0, "correlation": 20_000 + number, "wait_on_cuda_event_record_corr_id": -1}
    yield {**sync, "args": waits}


def _collective(number: int, at: float, start: float) -> Iterator[Event]:
    link = {"correlation": 30_000 + number}
    host = {"ph": "X", "pid": 1, "tid": 1}
    info = {"Collective name": "allreduce", "In msg nelems": 4096, "Group size": 2, "dtype": "Float"}
    yield {**host, "cat": "cpu_op", "name": "nccl:all_reduce", "ts": at, "dur": 10.0, "args": {}}
    yield {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": at + 2, "dur": 4.0, "args": link}
    task = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "pid": 0, "tid": 20}
    yield {**task, "ts": start, "dur": 40.0, "args": {"device": 0, "stream": 20, **link, **info}}


_OLD = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}


def _aged(event: Event) -> Event:
    """Return the event as exporters of 2021 wrote it."""
    args = {key.replace("External id", "external id"): value for key, value in event.get("args", {}).items()}
    cat = event.get("cat")
    return {**event, "args": args, **({"cat": _OLD.get(cat, cat)} if cat else {})}

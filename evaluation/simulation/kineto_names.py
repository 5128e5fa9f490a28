"""Names and fields of calls, tasks and devices, as exporters write them."""

from __future__ import annotations

from typing import Any

from simulation.dialects import Dialect
from simulation.machine import Gpu, Machine
from simulation.timeline import Call, Task

__all__ = [
    "CBID",
    "RUNTIME",
    "device_properties",
    "is_driver_call",
    "runtime_name",
    "stream_id",
    "task_fields",
    "task_name",
]

RUNTIME = {
    "nvidia": {
        "launch": "cudaLaunchKernel",
        "graph": "cudaGraphLaunch",
        "memcpy": "cudaMemcpyAsync",
        "memcpy_with_stream": "cudaMemcpyAsync",
        "memset": "cudaMemsetAsync",
        "stream_sync": "cudaStreamSynchronize",
        "device_sync": "cudaDeviceSynchronize",
        "record": "cudaEventRecord",
        "wait": "cudaStreamWaitEvent",
        "malloc": "cudaMalloc",
        "free": "cudaFree",
        "collective": "cudaLaunchKernelExC",
    },
    "amd": {
        "launch": "hipLaunchKernel",
        "graph": "hipGraphLaunch",
        "memcpy": "hipMemcpyAsync",
        "memcpy_with_stream": "hipMemcpyWithStream",
        "memset": "hipMemsetAsync",
        "stream_sync": "hipStreamSynchronize",
        "device_sync": "hipDeviceSynchronize",
        "record": "hipEventRecord",
        "wait": "hipStreamWaitEvent",
        "malloc": "hipMalloc",
        "free": "hipFree",
        "collective": "hipExtLaunchKernel",
    },
}
CBID = {
    "launch": 211,
    "graph": 311,
    "memcpy": 41,
    "memset": 51,
    "stream_sync": 131,
    "device_sync": 165,
    "record": 135,
    "wait": 147,
    "malloc": 20,
    "free": 22,
    "collective": 430,
}
STREAMS = {"nvidia": (7, 21, 20, 24), "amd": (0, 5, 4, 6)}
MEMORY = {
    "HtoD pinned": ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Host -> Device)"),
    "HtoD pageable": ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Host -> Device)"),
    "DtoH pageable": ("Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Host)"),
    "DtoD pinned": ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
}


def runtime_name(call: Call, dialect: Dialect, device_class: str) -> str:
    """Return what a runtime call is named."""
    if dialect.vendor == "amd" and call.api == "launch" and device_class == "matmul":
        return "hipExtModuleLaunchKernel"
    if dialect.driver and call.api == "launch" and device_class == "matmul":
        return "cuLaunchKernelEx"
    if call.api == "collective" and dialect.vendor == "nvidia" and dialect.time == "int":
        return "cudaLaunchKernel"
    return RUNTIME[dialect.vendor][call.api]


def is_driver_call(name: str) -> bool:
    """Return whether a call is one of CUDA's driver API."""
    return name.startswith("cu") and not name.startswith("cuda")


def stream_id(stream: int, dialect: Dialect) -> int:
    """Return what a stream is numbered."""
    return STREAMS[dialect.vendor][stream]


def task_name(task: Task, dialect: Dialect) -> str:
    """Return what a device task is named."""
    amd = dialect.vendor == "amd"
    if task.kind == "copy":
        return MEMORY[task.name][amd]
    if task.kind == "memset":
        return "Memset (Device)"
    if task.kind == "collective":
        if amd:
            return "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
        operation = {"allreduce": ("AllReduce", "float", "f32"), "broadcast": ("Broadcast", "int8_t", "i8")}
        title, old, new = operation[task.name]
        if dialect.time == "int":
            return f"ncclKernel_{title}_RING_LL_Sum_{old}(ncclDevComm*, unsigned long, ncclWork*)"
        return f"ncclDevKernel_{title}_Sum_{new}_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    return task.name


def task_fields(
    task: Task, dialect: Dialect, machine: Machine, rank: int, num_ranks: int
) -> tuple[str, dict[str, Any]]:
    """Return the category and the arguments of a device task."""
    amd = dialect.vendor == "amd"
    args: dict[str, Any] = {"device": rank, "stream": stream_id(task.stream, dialect), "correlation": task.correlation}
    external = task.correlation if dialect.external_is_correlation else task.parent
    if external and not (amd and not dialect.grids):
        args["external id" if dialect.old_categories else "External id"] = external
    if not amd:
        args["context"] = 1
    if not dialect.correlated:
        del args["correlation"]
    if task.kind == "copy":
        args["bytes"] = task.num_bytes
        args["memory bandwidth (GB/s)"] = task.num_bytes / max(task.end - task.start, 1.0)
        return "gpu_memcpy", args | ({"kind": task.name.split()[0]} if amd else {})
    if task.kind == "memset":
        return "gpu_memset", args | {"bytes": 512}
    if amd:
        args["kind"] = "Dispatch Kernel"
    if dialect.grids:
        args |= _grid(task, machine, amd=amd)
    if task.kind == "collective" and dialect.communication:
        elements = task.num_bytes // 4
        args |= {"Collective name": task.name, "In msg nelems": elements, "Out msg nelems": elements}
        args |= {"Group size": num_ranks, "dtype": "Float", "In split size": "[]", "Out split size": "[]"}
        args |= {"Process Group Name": "0", "Process Group Description": "default_pg"}
        args["Process Group Ranks"] = str(list(range(num_ranks)))
    return "kernel", args


def _grid(task: Task, machine: Machine, *, amd: bool) -> dict[str, Any]:
    """Return a grid that fills the GPU but for the smallest kernels, and NCCL's few blocks."""
    sms = machine.gpu.num_sms
    blocks = 8 if task.kind == "collective" else max(sms // 4, 1) if task.end - task.start < 3_000 else sms * 8
    shape = {"grid": [blocks, 1, 1], "block": [512 if task.kind == "collective" else 256, 1, 1]}
    if amd:
        return shape
    occupancy = {"blocks per SM": blocks / sms, "warps per SM": blocks * 8 / sms, "est. achieved occupancy %": 50}
    return {"queued": 0, "registers per thread": 32, "shared memory": 0, **shape, **occupancy}


def device_properties(gpu: Gpu, count: int) -> list[dict[str, Any]]:
    """Return the GPUs of the node."""
    major, minor = gpu.capability
    limits = {"maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536}
    size = {"warpSize": 64 if gpu.vendor == "amd" else 32, "sharedMemPerBlock": 65536 if gpu.vendor == "amd" else 49152}
    common = {"name": gpu.name, "totalGlobalMem": gpu.memory_bytes, "computeMajor": major, "computeMinor": minor}
    return [{"id": n, **common, **limits, **size, "numSms": gpu.num_sms} for n in range(count)]

"""What is read of a Kineto event: its fields, and what each category means in any exporter's release.

Only fields are listed here that end up in a column. Types are decoded leniently, so that numbers written as
text ("616", as ROCm exporters do) are numbers. What fits no type sends its block to ``diagnose.trace_reader.lenient``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Raw, Struct

from diagnose.model.events import Kind

__all__ = [
    "CATEGORIES",
    "DEVICE_KINDS",
    "GC_NAME",
    "INSTANTS",
    "LEFT_OUT",
    "MEMORY_NAME",
    "NO_TEXT",
    "NO_TIME",
    "Args",
    "Event",
    "ExactEvent",
    "is_annotation",
    "is_launch",
    "texts_of",
]

GC_NAME = "Python GC"
MEMORY_NAME = "[memory]"
DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)

CATEGORIES = {
    "cpu_op": Kind.OP,
    "Operator": Kind.OP,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "Runtime": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "overhead": Kind.OVERHEAD,
}

# Allocations and marks; early exporters gave them no category, as they do to metadata.
INSTANTS = frozenset({"", "cpu_instant_event"})

# Known and not wanted: copies of annotations on the device's rows, spans over everything, arrows.
LEFT_OUT = INSTANTS | frozenset({"gpu_user_annotation", "Trace", "ac2g", "async_cpu_to_gpu", "async", "fwdbwd"})

# Before `user_annotation` existed, record_function wrote these as operators.
_ANNOTATIONS = (
    "ProfilerStep#",
    "ProfilerStep*",
    "enumerate(DataLoader)#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
    "DistributedDataParallel.forward",
    "nccl:",
    "gloo:",
    "mpi:",
    "ucc:",
)

_LAUNCH_NAMES = ("launch", "memcpy", "memset")


def is_annotation(name: str) -> bool:
    """Return whether an operator of this name is a record_function of PyTorch itself."""
    return name.startswith(_ANNOTATIONS)


def is_launch(name: str) -> bool:
    """Return whether a runtime call of this name puts work on a device."""
    lowered = name.lower()
    return any(word in lowered for word in _LAUNCH_NAMES)


NO_TEXT = Raw(b"")
NO_TIME = -math.inf  # what is missing or no number; JSON has no such number, and the largest of several ignores it


def texts_of(raws: Sequence[Raw]) -> list[bytes]:
    """Return the text of each; to join and split them takes a fifth of the time of ``bytes`` for each."""
    texts = b"\0".join(raws).split(b"\0")
    return texts if len(texts) == len(raws) else list(map(bytes, raws))  # one of them holds a null byte


_FIELD_NAMES = {
    "input_dims": "Input Dims",
    "input_types": "Input type",
    "input_values": "Concrete Inputs",
    "external": "External id",
    "sequence": "Sequence number",
    "stack": "Call stack",
    "allocated": "Bytes",
    "total_allocated": "Total Allocated",
    "total_reserved": "Total Reserved",
    "address": "Addr",
    "device_type": "Device Type",
    "device_id": "Device Id",
    "awaits": "wait_on_cuda_event_record_corr_id",
    "collective": "Collective name",
    "group_size": "Group size",
    "num_elements": "In msg nelems",
    "num_out": "Out msg nelems",
    "group": "Process Group Name",
    "group_use": "Process Group Description",
    "members": "Process Group Ranks",
    "sequence_in_group": "Seq",
    "source": "Src Rank",
    "target": "Dst Rank",
}


class Args(Struct, frozen=True, gc=False, rename=_FIELD_NAMES):
    """``args`` of an event; ``_FIELD_NAMES`` has the names in the file where they differ.

    Fields stand in the order in which exporters write them: the decoder looks for each key behind the one before.
    """

    external: int = -1
    input_values: Raw = NO_TEXT
    input_dims: Raw = NO_TEXT
    input_types: Raw = NO_TEXT
    sequence: int = -1
    device: int | str = -1
    stream: int | str = ""  # a runtime call of HIP writes "0x0" here, cuda_sync writes 4294967295 for none
    correlation: int = -1
    grid: Raw = NO_TEXT  # a list for kernels, text such as "grid(4096,)" for Triton operators
    bytes: int = -1
    stack: str = ""
    allocated: int = 0
    total_allocated: int = -1
    total_reserved: int = -1
    address: int = -1
    device_type: int = 0
    device_id: int = -1
    awaits: int = -1
    collective: str = ""
    dtype: str = ""
    group_size: int = -1
    num_elements: int = -1
    num_out: int = -1
    group: int | str = ""
    group_use: str = ""
    members: Raw = NO_TEXT  # the text of a list, or a list
    sequence_in_group: int = -1
    source: int = -1
    target: int = -1
    name: str = ""


_NO_ARGS = Args()


class Event(Struct, gc=False):
    """One event; ``ts`` and ``dur`` in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = ""
    ts: float = NO_TIME
    dur: float = 0.0
    args: Args = _NO_ARGS


class ExactEvent(Struct, gc=False):
    """The same with the digits of ``ts``: a float holds an epoch time in microseconds to 0.25 µs only."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = ""
    ts: Raw = NO_TEXT
    dur: float = 0.0
    args: Args = _NO_ARGS

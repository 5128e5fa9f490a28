"""The part of a Kineto event that is read; everything else is skipped while it is parsed.

Only names are listed here that end up in a column. Types are decoded leniently, so that numbers written as
text ("616", as ROCm exporters do) are numbers. What fits no type sends its block to ``diagnose.trace_reader.lenient``.
"""

from __future__ import annotations

import math

from msgspec import Raw, Struct

__all__ = ["NO_TEXT", "NO_TIME", "Args", "Event", "ExactEvent"]

NO_TEXT = Raw(b"")
NO_TIME = -math.inf  # what is missing or no number; JSON has no such number, and the largest of several ignores it

_NAMES = {
    "input_dims": "Input Dims",
    "input_types": "Input type",
    "input_values": "Concrete Inputs",
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
}


class Args(Struct, frozen=True, gc=False, rename=_NAMES):
    """``args`` of an event; the names in the file stand in ``_NAMES`` where they differ."""

    correlation: int = -1
    device: int | str = -1
    stream: int | str = ""  # a runtime call of HIP writes "0x0" here, cuda_sync writes 4294967295 for none
    bytes: int = -1
    grid: Raw = NO_TEXT  # a list for kernels, text such as "grid(4096,)" for Triton operators
    input_dims: Raw = NO_TEXT
    input_types: Raw = NO_TEXT
    input_values: Raw = NO_TEXT
    sequence: int = -1
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

"""What is read of a Kineto event: its fields, and what each category means in any exporter's release.

Only fields are listed here that end up in a column. Types are decoded leniently, so that numbers written as
text ("616", as ROCm exporters do) are numbers. What fits no type sends its block to ``diagnose.trace_reader.lenient``.

A block of text in which every event is of a known category is decoded into types that have the fields of their category
alone. It takes a fifth less time than by ``Event``: fields that the category has no use for are not made, and flows are
not looked into. All other blocks are left to that type.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from functools import cache
from typing import Any, Final, TypeAlias, Union

from msgspec import Raw, Struct, defstruct, field, json, structs

from diagnose.model.events import Kind

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
    "mlu_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "mlu_memcpy": Kind.MEMCPY,
    "mlu_memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "overhead": Kind.OVERHEAD,
}

# Allocations and marks; early exporters gave them no category, as they do to metadata.
INSTANTS = frozenset({"", "cpu_instant_event"})

# Known and not wanted: copies of annotations on the device's rows, spans over everything, arrows.
LEFT_OUT = INSTANTS | frozenset(
    {"gpu_user_annotation", "mlu_user_annotation", "Trace", "ac2g", "async_cpu_to_gpu", "async", "fwdbwd"}
)

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

_LAUNCH_NAMES = ("launch", "memcpy", "memset", "invokekernel")  # the last in Cambricon's driver


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


class ExactEvent(Event, gc=False):
    """The same with the digits of ``ts``: a float holds an epoch time in microseconds to 0.25 µs only."""

    ts: Raw = NO_TEXT  # type: ignore[assignment]  # a list has events of one of the two types only


_Decoder: TypeAlias = "json.Decoder[list[Any]]"
_Field: TypeAlias = "tuple[str, Any, Any]"

_TASK = frozenset({"external", "device", "stream", "correlation"})
_COLLECTIVE = frozenset(
    {
        "sequence",
        "stack",
        "collective",
        "dtype",
        "group_size",
        "num_elements",
        "num_out",
        "group",
        "group_use",
        "members",
        "sequence_in_group",
        "source",
        "target",
    }
)
_ARGUMENTS: Final[dict[Kind, frozenset[str]]] = {  # what ``fields.Fields`` reads of the arguments of each kind
    Kind.OP: _COLLECTIVE | {"input_values", "input_dims", "input_types"},
    Kind.ANNOTATION: frozenset({"input_dims", "input_types"}),
    Kind.PYTHON: frozenset(),
    Kind.RUNTIME: frozenset({"external", "correlation", "bytes"}),
    Kind.KERNEL: _TASK | _COLLECTIVE | {"grid"},
    Kind.MEMCPY: _TASK | {"bytes"},
    Kind.MEMSET: _TASK | {"bytes"},
    Kind.SYNC: _TASK | {"awaits"},
    Kind.OVERHEAD: frozenset(),
    Kind.MEMORY: frozenset(
        {"allocated", "total_allocated", "total_reserved", "address", "device_type", "device_id", "name"}
    ),
}


@cache
def decoder_of_any(*, exact: bool) -> _Decoder:
    """Return the decoder of a list of events of whatever categories; ``exact`` keeps the digits of their times."""
    return json.Decoder(list[_event(exact=exact)], strict=False)  # type: ignore[misc]  # one of two types


@cache
def decoder_of_known(*, exact: bool) -> _Decoder:
    """Return the decoder of a list in which every event is of a known category; any other makes it raise."""
    own = _fields_of(_event(exact=exact))
    arguments = {kind: _arguments(kind, names) for kind, names in _ARGUMENTS.items()}
    kinds = CATEGORIES | dict.fromkeys(INSTANTS - {""}, Kind.MEMORY)
    types = [_type_of(category, [*own, *arguments[kind]]) for category, kind in kinds.items()]
    types += [_type_of(category, []) for category in sorted(LEFT_OUT - INSTANTS)]
    return json.Decoder(list[Union[tuple(types)]], strict=False)  # type: ignore[misc]  # noqa: UP007  # made here


def _event(*, exact: bool) -> type[Struct]:
    return ExactEvent if exact else Event


def _type_of(category: str, fields: list[_Field]) -> type[Struct]:
    """Return the type of a category's events, which has the category as an attribute of its own."""
    return defstruct("KnownEvent", fields, gc=False, tag_field="cat", tag=category, namespace={"cat": category})


def _arguments(kind: Kind, names: Container[str]) -> list[_Field]:
    """Return the field for the arguments of a kind, none where nothing is read of them."""
    fields = [f for f in _fields_of(Args) if f[0] in names]
    if not fields:
        return []
    made = defstruct(f"{kind.name}Args", fields, frozen=True, gc=False)
    return [("args", made, made())]


def _fields_of(struct: type[Struct]) -> list[_Field]:
    """Return name, type and default of each field of an event or of its arguments, as far as they are known later."""
    return [
        (f.name, f.type, field(default=f.default, name=f.encode_name))
        for f in structs.fields(struct)
        if f.name not in ("cat", "args")
    ]

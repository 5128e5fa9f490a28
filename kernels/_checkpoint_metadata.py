"""Reads the ``.metadata`` of a distributed checkpoint, which is a pickle, without running anything that it names.

A pickle is a program: it may import any function and call it. Here a small interpreter executes the instructions that
``torch.distributed.checkpoint`` writes and no others, and the classes by exact module and name. None of them is
instantiated: each is a record of its arguments and its state, from which ``read_metadata`` builds torch's own classes
after it has checked every field.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["read_metadata"]

MAX_BYTES = 1 << 30
"""Of ``.metadata``: about 300 bytes describe a shard, so that this is enough for three million of them."""

TRUST = "if you trust its author with running code here, pass trusted=True"

_DCP = "torch.distributed.checkpoint.metadata"
_OLD = "torch.distributed._shard.sharded_tensor.metadata"  # home of two classes before torch 2.3
KINDS = frozenset(
    {
        (_DCP, "Metadata"),
        (_DCP, "TensorStorageMetadata"),
        (_DCP, "ChunkStorageMetadata"),
        (_DCP, "BytesStorageMetadata"),
        (_DCP, "TensorProperties"),
        (_DCP, "MetadataIndex"),
        (_DCP, "StorageMeta"),
        (_DCP, "_MEM_FORMAT_ENCODING"),
        (_OLD, "TensorProperties"),
        (_OLD, "MEM_FORMAT_ENCODING"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
    }
)
DTYPES = {("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


@dataclass(frozen=True, slots=True)
class _Kind:
    """An allowed class or function, by its name alone."""

    name: str


@dataclass(slots=True, eq=False)  # compared by identity: a record may be a key, and hashing must not descend into it
class _Record:
    """What the pickle gave to a class: the arguments, and the state that followed."""

    kind: str
    args: tuple[Any, ...]
    state: Any = None


class _Mark:
    """Where a group of values begins on the stack."""


def read_metadata(folder: Path, names: Iterable[str]) -> tuple[Any, set[str]]:
    """Return torch's ``Metadata`` of those ``names`` that the checkpoint holds, and the names of all it holds.

    Raises:
        ValueError: ``.metadata`` is damaged, names a class that describes no checkpoint, or places a tensor of
            ``names`` outside the folder, outside its file, or in a pickle.
    """
    file = folder / ".metadata"
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{file} has {file.stat().st_size} bytes, more than any checkpoint needs; fetch it again.")
    try:
        content = _unpickle(file.read_bytes(), file)
        tensors = _fields(content, "Metadata")["state_dict_metadata"]
        stored = _fields(content, "Metadata")["storage_data"]
        if not isinstance(tensors, dict) or not isinstance(stored, dict):
            raise TypeError("no dictionaries of tensors and their places")
        wanted = [name for name in names if name in tensors]
        return _metadata(folder, {name: tensors[name] for name in wanted}, stored), set(tensors)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, why: object) -> ValueError:
    return ValueError(f"{file} is not a description of a distributed checkpoint ({why}); fetch or save it again.")


def _unpickle(data: bytes, file: Path) -> Any:  # noqa: C901  # a tree of containers, numbers, texts and records
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    arg: Any  # its type follows from the instruction
    try:
        for opcode, arg, _ in pickletools.genops(data):
            name = opcode.name
            if name in PUSHED:
                stack.append(arg)
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in {"BINPUT", "LONG_BINPUT"}:
                memo[arg] = stack[-1]
            elif name in {"BINGET", "LONG_BINGET"}:
                stack.append(memo[arg])
            elif name == "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(_global(module, attribute, file))
            elif name == "GLOBAL":
                module, _, attribute = arg.partition(" ")
                stack.append(_global(module, attribute, file))
            elif name in EFFECTS:
                EFFECTS[name](stack)
            elif name == "STOP":
                return stack.pop()
            elif name not in {"PROTO", "FRAME"}:
                raise TypeError(f"the instruction {name}")
    except ValueError as error:
        if isinstance(error, _RefusedError):
            raise
        raise _damaged(file, error) from error  # cut off, or no pickle at all
    raise TypeError("it has no end")


class _RefusedError(ValueError):
    """A class that a checkpoint's description has no use for."""


def _global(module: object, name: object, file: Path) -> _Kind | torch.dtype:
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError("a class without a name")
    if (module, name) in KINDS:
        return _Kind(name)
    if (module, name) in DTYPES:
        return DTYPES[module, name]
    raise _RefusedError(f"{file} holds {module}.{name}, which describes no checkpoint and could run code; {TRUST}.")


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while not isinstance(stack[at], _Mark):  # raises IndexError below the first
        at -= 1
        if at < 0:
            raise IndexError("a group without a beginning")
    values = stack[at + 1 :]
    del stack[at:]
    return values


def _record(stack: list[Any]) -> None:
    args, kind = stack.pop(), stack.pop()
    if not isinstance(kind, _Kind) or not isinstance(args, tuple):
        raise TypeError("a call of something that is not a class")
    stack.append({} if kind.name == "OrderedDict" else _Record(kind.name, args))


def _build(stack: list[Any]) -> None:
    state = stack.pop()
    if not isinstance(stack[-1], _Record):
        raise TypeError("a state of something that is not an object")
    stack[-1].state = state


def _set_items(stack: list[Any], items: list[Any]) -> None:
    target = stack[-1]
    if not isinstance(target, dict) or len(items) % 2:
        raise TypeError("items of something that is not a dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, (str, int, _Record)):  # a nested tuple would be hashed to any depth
            raise TypeError(f"a {type(key).__name__} as a key")
        target[key] = value


def _extend(stack: list[Any], items: list[Any]) -> None:
    if not isinstance(stack[-1], list):
        raise TypeError("an element of something that is not a list")
    stack[-1].extend(items)


def _tuple(stack: list[Any], num: int) -> None:
    if num > len(stack):
        raise IndexError("a tuple of more than there is")
    stack[len(stack) - num :] = [tuple(stack[len(stack) - num :])]


PUSHED = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"}
)  # instructions whose argument is the value
EFFECTS: dict[str, Callable[[list[Any]], None]] = {
    "MARK": lambda stack: stack.append(_Mark()),
    "NONE": lambda stack: stack.append(None),
    "NEWTRUE": lambda stack: stack.append(True),
    "NEWFALSE": lambda stack: stack.append(False),
    "EMPTY_DICT": lambda stack: stack.append({}),
    "EMPTY_LIST": lambda stack: stack.append([]),
    "EMPTY_TUPLE": lambda stack: stack.append(()),
    "TUPLE1": lambda stack: _tuple(stack, 1),
    "TUPLE2": lambda stack: _tuple(stack, 2),
    "TUPLE3": lambda stack: _tuple(stack, 3),
    "TUPLE": lambda stack: stack.append(tuple(_since_mark(stack))),
    "REDUCE": _record,
    "NEWOBJ": _record,
    "BUILD": _build,
    "APPEND": lambda stack: _extend(stack, [stack.pop()]),
    "APPENDS": lambda stack: _extend(stack, _since_mark(stack)),
    "SETITEM": lambda stack: _set_items(stack, _pop_two(stack)),
    "SETITEMS": lambda stack: _set_items(stack, _since_mark(stack)),
}


def _pop_two(stack: list[Any]) -> list[Any]:
    value, key = stack.pop(), stack.pop()
    return [key, value]


def _fields(record: object, kind: str) -> dict[str, Any]:
    if not isinstance(record, _Record) or record.kind != kind:
        raise TypeError(f"no {kind} where one belongs")
    if not isinstance(record.state, dict):
        raise TypeError(f"a {kind} without fields")
    return record.state


def _size(record: object) -> torch.Size:
    if isinstance(record, _Record) and record.kind == "Size" and len(record.args) == 1:
        (sizes,) = record.args
        if isinstance(sizes, (tuple, list)) and all(_is_count(size) for size in sizes):
            return torch.Size(sizes)
    raise TypeError("not a shape")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 63


def _metadata(folder: Path, tensors: dict[str, Any], stored: dict[Any, Any]) -> Any:  # torch's Metadata
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

    places: dict[Any, Any] = {}
    sizes: dict[str, int] = {}  # of the files, each looked at once
    for index, info in stored.items():
        fields = _fields(index, "MetadataIndex")
        if not isinstance(fields["fqn"], str):  # a nested tuple would be hashed to any depth
            raise TypeError("a place of what has no name")
        if fields["fqn"] in tensors:
            offset = None if fields.get("offset") is None else _size(fields["offset"])
            places[MetadataIndex(fields["fqn"], offset)] = _place(folder, _fields(info, "_StorageInfo"), sizes)
    described = {name: _tensor(folder, name, record) for name, record in tensors.items()}
    return Metadata(state_dict_metadata=described, storage_data=places)


def _tensor(folder: Path, name: str, record: object) -> Any:  # torch's TensorStorageMetadata
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata

    if isinstance(record, _Record) and record.kind == "BytesStorageMetadata":
        raise ValueError(f"{folder} holds {name} as a pickled object, which could run code, not as a tensor; {TRUST}.")
    fields = _fields(record, "TensorStorageMetadata")
    chunks = [_fields(chunk, "ChunkStorageMetadata") for chunk in fields["chunks"]]
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=_dtype(fields["properties"])),
        size=_size(fields["size"]),
        chunks=[ChunkStorageMetadata(offsets=_size(c["offsets"]), sizes=_size(c["sizes"])) for c in chunks],
    )


def _dtype(record: object) -> torch.dtype:
    if isinstance(record, _Record) and record.kind == "TensorProperties":
        state = record.state
        found = state[0] if isinstance(state, tuple) else state["dtype"]
        if isinstance(found, torch.dtype):
            return found
    raise TypeError("a tensor without a dtype")


def _place(folder: Path, fields: dict[str, Any], sizes: dict[str, int]) -> Any:  # torch's _StorageInfo
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    path, offset, length = fields["relative_path"], fields["offset"], fields["length"]
    if not isinstance(path, str) or not _is_count(offset) or not _is_count(length):
        raise TypeError("not a place in a file")
    if fields.get("transform_descriptors"):
        raise ValueError(f"{folder} holds compressed tensors, whose size nothing limits; {TRUST}.")
    if path not in sizes:
        sizes[path] = _size_of_file(folder, path)
    if offset + length > sizes[path]:
        raise ValueError(
            f"{folder / '.metadata'} places a tensor at bytes {offset} to {offset + length} of {path}, which has "
            f"{sizes[path]}; fetch or save the checkpoint again."
        )
    return _StorageInfo(path, offset, length)


def _size_of_file(folder: Path, path: str) -> int:
    file = folder / path
    try:
        real, inside = file.resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a zero in the name
        raise TypeError(f"the path {path!r}") from error
    blobs = inside.parent.parent / "blobs" if inside.parent.name == "snapshots" else inside  # as hubs lay out downloads
    if (
        Path(path).is_absolute()
        or ".." in Path(path).parts
        or not (real.is_relative_to(inside) or real.is_relative_to(blobs))
    ):
        raise ValueError(f"{folder / '.metadata'} names {path!r}, which is outside of {folder}; {TRUST}.")
    if not real.is_file():
        raise ValueError(f"{folder / '.metadata'} names {path!r}, and there is no such file; fetch it.")
    return real.stat().st_size

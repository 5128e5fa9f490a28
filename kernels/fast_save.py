"""Saves weights as safetensors files that `fast_load` maps.

What it cures
    `python-stall` and `periodic-stall` of saving and loading weights: nothing is pickled, no second copy of the model
    is made in memory, and what is written can be mapped by `fast_load`, here and by other libraries.

When it does not help
    For optimizer states and other objects, which are no named tensors: use `BackgroundSaver.save`. For sharded models:
    `BackgroundSaver.save_sharded` lets each rank write its part. `BackgroundSaver.save_files` does this on a thread.

Cost
    Host memory for the largest tensor of a device at a time; a checksum of each file, at some GB/s.

Numerics
    The same bits. Tensors that are one memory in the same shape, such as tied weights, are written once; views that
    overlap otherwise become tensors of their own.

Example::

    from diagnose.kernels.fast_load import fast_load
    from diagnose.kernels.fast_save import save_files

    def build():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 16))

    saved = save_files(model.state_dict(), folder / "weights", max_bytes=2 << 30)
    log(saved)  # files, bytes, and how many an interrupted call had written
    model, report = fast_load(build, folder / "weights")
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from diagnose.kernels._atomic_write import atomic_write
from diagnose.kernels._checkpoint_files import INDEXES, SINGLE

__all__ = ["SavedFiles", "save_files"]

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""The names of the format."""

UNFINISHED = ".unfinished.json"
"""Which files of a folder are whole, with their checksums; it goes when the index is there."""

_PART = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")

CHUNK_BYTES = 64 << 20
"""Of a tensor that are written at once."""

Parts: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """What was written: the files in order, their bytes of tensors, and how many files were there already."""

    files: tuple[Path, ...]
    num_bytes: int
    resumed: int

    def __str__(self) -> str:
        """Return one line for a log."""
        found = f", {self.resumed} of them written before" if self.resumed else ""
        return f"{self.num_bytes / 1e6:.1f} MB in {len(self.files)} files{found}"


def save_files(
    state: Mapping[str, Tensor],
    folder: str | os.PathLike[str],
    *,
    max_bytes: int = 5 << 30,
    progress: Callable[[SavedFiles], object] | None = None,
) -> SavedFiles:
    """Write named tensors into ``folder`` as safetensors files of at most ``max_bytes``; return what was written.

    One file is ``model.safetensors``; several are numbered, and ``model.safetensors.index.json``, which is written
    last, names the file of each tensor. A tensor that is larger than ``max_bytes`` has a file of its own. Each file
    appears when it is whole; ``progress`` is called then. A call that was interrupted goes on when it is made again
    with the same tensors: files whose checksums are those of the tensors stay. Of several ranks that hold the same, one
    calls it.

    Raises:
        ValueError: ``max_bytes`` is less than one, there is no tensor, or an entry cannot be written; the message names
            it.
        FileExistsError: the folder holds a checkpoint already.
    """
    if max_bytes < 1:
        raise ValueError(f"save_files needs max_bytes >= 1, not {max_bytes}.")
    own, shared = _unshared(state)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    there = [name for name in (*INDEXES, *SINGLE, ".metadata") if (target / name).exists()]
    if there:
        raise FileExistsError(f"{target} holds a checkpoint already ({there[0]}); give each one its own folder.")
    parts = _parts(own, max_bytes)
    names = _names(len(parts))
    headers = [_header(part, {n: kept for n, kept in shared.items() if kept in part}) for part in parts]
    whole = _whole_files(target, names, headers)

    def note(whole: Mapping[str, int]) -> None:
        if len(parts) > 1:
            record = {"layout": _layout(names, headers), "files": names, "whole": whole}
            _write_json(target / UNFINISHED, record)

    note(whole)
    done: list[Path] = []
    size = resumed = 0
    for name, part, header in zip(names, parts, headers, strict=True):
        is_there = name in whole and (target / name).stat().st_size == len(header) + _size(part)
        if is_there and whole[name] == _checksum(part):
            resumed += 1
        else:
            whole[name] = _write(target / name, header, part)
            note(whole)
        done.append(target / name)
        size += _size(part)
        if progress is not None:
            progress(SavedFiles(tuple(done), size, resumed))
    if len(parts) > 1:
        places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        _write_json(target / INDEXES[0], {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))})
    (target / UNFINISHED).unlink(missing_ok=True)
    return SavedFiles(tuple(done), size, resumed)


def _unshared(state: Mapping[str, Tensor]) -> tuple[Parts, dict[str, str]]:
    """Return the tensors to write, and by the other names of one memory the name that it is written under."""
    own: Parts = {}
    shared: dict[str, str] = {}
    names: dict[object, str] = {}
    for name, value in state.items():
        _check(name, value)
        tensor = value.detach()
        place = (
            tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(),
            tensor.dtype, tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip
        kept = names.setdefault(place, name) if tensor.numel() else name
        if kept == name:
            own[name] = tensor
        else:
            shared[name] = kept
    if not own:
        raise ValueError("save_files got no tensors.")
    return own, shared


def _check(name: object, value: object) -> None:
    """Refuse what the format has no place for."""
    if not isinstance(name, str) or name == "__metadata__":
        raise ValueError(f"save_files writes tensors by their names, and {name!r} is not a name; rename it.")
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name!r} is a {type(value).__name__}, and safetensors files hold tensors only; leave it out, or save all "
            "with BackgroundSaver.save."
        )
    if type(value) not in (Tensor, nn.Parameter):
        raise ValueError(
            f"{name!r} is a {type(value).__name__}; save shards of a model with BackgroundSaver.save_sharded, and "
            "other classes of tensors with BackgroundSaver.save."
        )
    if value.device.type == "meta":
        raise ValueError(f"{name!r} is on the meta device and has no values; load the model first.")
    if value.layout is not torch.strided or value.dtype not in _DTYPES:
        kind = value.dtype if value.layout is torch.strided else value.layout
        raise ValueError(f"{name!r} is of {kind}, which safetensors files have no name for; convert it.")


def _parts(own: Parts, max_bytes: int) -> list[Parts]:
    """Return the tensors of each file, in their order."""
    parts: list[Parts] = [{}]
    size = 0
    for name, tensor in own.items():
        if parts[-1] and size + tensor.nbytes > max_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    return parts


def _size(part: Parts) -> int:
    return sum(tensor.nbytes for tensor in part.values())


def _names(num: int) -> list[str]:
    if num == 1:
        return [SINGLE[0]]
    return [f"model-{number:05}-of-{num:05}.safetensors" for number in range(1, num + 1)]


def _header(part: Parts, shared: Mapping[str, str]) -> bytes:
    """Return what stands before the tensors of a file: its own length, then where each of them lies."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **shared}}
    at = 0
    for name, tensor in part.items():
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes],
        }  # fmt: skip
        at += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # what is mapped begins at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def _layout(names: list[str], headers: list[bytes]) -> int:
    """Return a number of what lies where: only a call with the same files can go on."""
    return zlib.crc32(b"".join([*(name.encode() for name in names), *headers]))


def _whole_files(folder: Path, names: list[str], headers: list[bytes]) -> dict[str, int]:
    """Return the checksums of files that an interrupted call has written, and remove those of another layout.

    Raises:
        FileExistsError: files of the same names are there that no call of `save_files` left behind.
    """
    left = _unfinished(folder)
    whole = {name: value for name, value in left.get("whole", {}).items() if (folder / name).is_file()}
    if left.get("layout") != _layout(names, headers):
        whole = {}
        for name in filter(_PART.fullmatch, left.get("files", ())):
            (folder / name).unlink(missing_ok=True)
    others = sorted({path.name for path in folder.glob("*.safetensors")} - set(left.get("files", ())))
    if others:
        raise FileExistsError(f"{folder} holds {others[0]} already; give each checkpoint its own folder.")
    return whole


def _unfinished(folder: Path) -> dict[str, Any]:
    """Return what an interrupted call left behind, nothing where there is none or it cannot be read."""
    try:
        found = json.loads((folder / UNFINISHED).read_text(encoding="utf-8"))
        return {"layout": int(found["layout"]), "files": list(found["files"]), "whole": dict(found["whole"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _bytes(part: Parts) -> Iterator[memoryview]:
    """Yield the tensors' memory, in pieces, on the host."""
    for tensor in part.values():
        plain = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        if plain.numel():
            values: Any = plain.view(torch.uint8).numpy()
            whole = memoryview(values)
            yield from (whole[at : at + CHUNK_BYTES] for at in range(0, len(whole), CHUNK_BYTES))


def _checksum(part: Parts) -> int:
    value = 0
    for piece in _bytes(part):
        value = zlib.crc32(piece, value)
    return value


def _write(path: Path, header: bytes, part: Parts) -> int:
    """Write the file and return the checksum of its tensors."""
    value = 0
    with atomic_write(path) as file:
        file.write(header)
        for piece in _bytes(part):
            file.write(piece)
            value = zlib.crc32(piece, value)
    return value


def _write_json(path: Path, content: object) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(content, indent=1).encode())

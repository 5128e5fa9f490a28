"""Checkpoints on disk as names and tensors, mapped into memory where the format allows it."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diagnose.kernels._checkpoint_metadata import read_metadata

__all__ = ["INDEXES", "SINGLE", "files_of", "is_distributed", "read_distributed", "tensors_of"]

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE = ("model.safetensors", "pytorch_model.bin", "model.pt", "model.pth")
_PART = re.compile(r"-\d{5}-of-(\d{5})\.")


def is_distributed(source: Path) -> bool:
    """Return whether the folder is a checkpoint of torch.distributed.checkpoint."""
    return (source / ".metadata").is_file()


def files_of(source: Path) -> list[Path]:
    """Return the files that hold the tensors: the file itself, or what a folder or an index names.

    Raises:
        FileNotFoundError: there is no such file, a folder holds no checkpoint, or a shard of an index is missing.
    """
    if source.is_dir():
        source = _in_folder(source)
    if not source.is_file():
        raise FileNotFoundError(f"There is no checkpoint at {source}; check the path.")
    if source.suffix != ".json":
        return [source]
    shards = sorted({source.parent / name for name in _named_in(source)})
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise FileNotFoundError(f"{source.name} names {', '.join(missing)}, which {source.parent} lacks; fetch it.")
    return shards


def tensors_of(file: Path, *, key: str | None, mapped: bool) -> dict[str, Tensor]:
    """Return the file's tensors by name, ``key`` looked up first where the file holds more than a model.

    ``mapped``: pages are read when they are touched, and written ones become the process's own. A file in the
    format of torch before 1.6 cannot be mapped and is read whole.

    Raises:
        ValueError: the file is damaged, holds pickled objects, or holds something else than named tensors.
        ModuleNotFoundError: the file is a safetensors file and the package is not installed.
    """
    if file.suffix == ".safetensors":
        if key is not None:
            raise ValueError(f"{file.name} holds tensors only, nothing under {key!r}; leave key out.")
        return _safetensors(file, mapped=mapped)
    content = _torch_file(file, mapped=mapped)
    if key is not None:
        if not isinstance(content, dict) or key not in content:
            raise ValueError(f"{file} holds nothing under {key!r}; it holds {_described(content)}.")
        content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(
            f"{file} holds {_described(content)} instead of a state_dict; "
            "name the entry that is the model's, such as key='model'."
        )
    return content


def read_distributed(source: Path, into: dict[str, Any], *, prefix: str, trusted: bool) -> set[str]:
    """Fill the tensors of ``into`` from a distributed checkpoint; return the names that the checkpoint lacks.

    Each process reads only what its tensors need, whatever the number of processes that wrote them. Nothing that the
    checkpoint holds is run, unless it is ``trusted``.

    Raises:
        ValueError: a tensor has another shape, a part of the checkpoint cannot be read, or reading it could run code.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    class Described(FileSystemReader):
        def read_metadata(self, *_: Any, **kwargs: Any) -> Any:  # Metadata; torch looks for kwargs
            return metadata

    if trusted:
        reader = FileSystemReader(source)
        stored = set(reader.read_metadata().state_dict_metadata)
    else:
        metadata, stored = read_metadata(source, [prefix + name for name in into])
        reader = Described(source)
    wanted = {prefix + name: value for name, value in into.items() if prefix + name in stored}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)")  # one process is meant
            load(wanted, storage_reader=reader)
    except (CheckpointException, RuntimeError, ValueError) as error:
        raise ValueError(f"{source} does not fit the model: {error}") from error
    return {name for name in into if prefix + name not in stored}


def _named_in(index: Path) -> set[str]:
    """Return the names of the files that an index lists, all of them beside it."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        outside = sorted(n for n in names if Path(n).is_absolute() or ".." in Path(n).parts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} is not an index of a checkpoint ({error!r}); fetch it again.") from error
    if outside:
        raise ValueError(f"{index} names {outside[0]!r}, which is outside of {index.parent}; name that file instead.")
    return names


def _in_folder(folder: Path) -> Path:
    for name in (*INDEXES, *SINGLE):
        if (folder / name).is_file():
            return folder / name
    found = [file for pattern in ("*.safetensors", "*.pt", "*.pth", "*.bin") for file in folder.glob(pattern)]
    if len(found) != 1:
        raise FileNotFoundError(
            f"{folder} holds {_listed(found)} instead of one checkpoint; name the file or its index."
        )
    if (part := _PART.search(found[0].name)) and int(part[1]) > 1:
        raise FileNotFoundError(
            f"{found[0].name} is one of {int(part[1])} files, and {folder} lacks their index and the others: saving "
            "was interrupted, or not all was fetched."
        )
    return found[0]


def _safetensors(file: Path, *, mapped: bool) -> dict[str, Tensor]:
    if find_spec("safetensors") is None:
        raise ModuleNotFoundError(f"{file.name} needs the package safetensors; install it: pip install safetensors.")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
            shared = opened.metadata() or {}  # further names of tensors that are one memory
            tensors |= {name: tensors[kept] for name, kept in shared.items() if kept in tensors and name not in tensors}
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read as safetensors ({error}); fetch or save it again.") from error
    return tensors if mapped else {name: tensor.clone() for name, tensor in tensors.items()}


def _torch_file(file: Path, *, mapped: bool) -> Any:  # whatever was saved
    with file.open("rb") as opened:
        is_zip = opened.read(4) == b"PK\x03\x04"
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped and is_zip)
    except pickle.UnpicklingError as error:
        if not is_zip:
            raise _unreadable(file, error) from error
        raise ValueError(
            f"{file} holds pickled objects besides tensors, which are not run; save model.state_dict() instead, or "
            "allow the classes with torch.serialization.add_safe_globals."
        ) from error
    except Exception as error:  # a damaged file fails torch's reader in any way
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file} is not a checkpoint that torch can read ({error}); fetch or save it again.")


def _described(content: object) -> str:
    if isinstance(content, dict):
        return f"a dictionary of {_listed(content)}"
    return f"a {type(content).__name__}"


def _listed(things: Iterable[Any], most: int = 6) -> str:
    names = [str(thing) for thing in things]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing") + more

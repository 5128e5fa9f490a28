"""One value, one file: nested tensors and arrays written side by side, and mapped back into memory without a copy.

A file is the lengths of its parts, a pickle, and the buffers that the pickle refers to, each at a multiple of 64 bytes.
It appears whole or not at all, and deleting it does not disturb who has it mapped.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
import pickle
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["Ledger", "load", "pack", "store"]

ALIGNMENT = 64
HEAD = struct.Struct("<Q")
FIELDS = ("hits", "misses", "evicted", "refused", "held_bytes")
TOTALS = struct.Struct(f"<{len(FIELDS)}q")


class _Pickler(pickle.Pickler):
    """Pickles dense tensors of the host as buffers beside the pickle, as numpy's arrays do by themselves."""

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401  # pickle's protocol
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        if value.requires_grad or not value.numel() or value.is_quantized:
            return NotImplemented
        data = value.contiguous().view(-1)
        buffer = pickle.PickleBuffer(data.view(torch.uint8).numpy().data)
        return _tensor, (buffer, value.dtype, tuple(value.shape))


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:  # noqa: ANN401  # any buffer
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def pack(value: Any) -> list[bytes | memoryview]:  # noqa: ANN401  # whatever can be pickled
    """Return the chunks of the value's file."""
    buffers: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(value)
    views = [buffer.raw() for buffer in buffers]
    head = struct.pack(f"<{2 + len(views)}Q", len(views), out.tell(), *map(len, views))
    chunks: list[bytes | memoryview] = [head, out.getvalue()]
    at = len(head) + out.tell()
    for view in views:
        gap = -at % ALIGNMENT
        chunks += [bytes(gap), view]
        at += gap + len(view)
    return chunks


def store(path: Path, chunks: list[bytes | memoryview]) -> None:
    """Write the file under another name and move it into place.

    Raises:
        OSError: there is no room; nothing is left behind.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            file.writelines(chunks)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def load(path: Path) -> tuple[Any] | None:
    """Return the value, in a tuple, or None where it is not there. It is used from now on: the last to be removed."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)  # what the caller writes stays its own
        os.utime(descriptor)
    finally:
        os.close(descriptor)
    num, length = struct.unpack_from("<2Q", memory, 0)
    sizes = struct.unpack_from(f"<{num}Q", memory, 2 * HEAD.size)
    view = memoryview(memory)
    at = (2 + num) * HEAD.size
    body = view[at : at + length]
    at += length
    buffers = []
    for size in sizes:
        at += -at % ALIGNMENT
        buffers.append(view[at : at + size])
        at += size
    return (pickle.loads(body, buffers=buffers),)


class Ledger:
    """Totals in a file that all processes of the machine add to, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[int, int] | None = None  # (process, descriptor)
        self._lock = threading.Lock()

    def add(self, **counts: int) -> None:
        """Add to the totals."""
        with self.locked() as totals:
            for name, count in counts.items():
                totals[name] += count

    def read(self) -> dict[str, int]:
        """Return the totals."""
        with self.locked() as totals:
            return dict(totals)

    @contextmanager
    def locked(self) -> Iterator[dict[str, int]]:
        """Yield the totals, for changing; no other process or thread has them meanwhile."""
        descriptor = self._descriptor()
        with self._lock:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                raw = os.pread(descriptor, TOTALS.size, 0)
                totals = dict(zip(FIELDS, TOTALS.unpack(raw) if raw else (0,) * len(FIELDS), strict=True))
                before: Mapping[str, int] = dict(totals)
                yield totals
                if totals != before:
                    os.pwrite(descriptor, TOTALS.pack(*totals.values()), 0)
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _descriptor(self) -> int:
        """Open the file once for each process: a lock on an inherited descriptor would be the parent's too."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self._lock = threading.Lock()  # one that was held while forking would never be released
        return self._opened[1]

    def __del__(self) -> None:
        if self._opened is not None and self._opened[0] == os.getpid():
            os.close(self._opened[1])

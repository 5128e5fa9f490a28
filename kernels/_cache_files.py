"""One value, one file: nested tensors and arrays written side by side, and mapped back into memory without a copy.

A file is a mark of this format, two checksums, the lengths of its parts, a pickle, and the buffers that the pickle
refers to, each at a multiple of 64 bytes. The first checksum covers lengths and pickle, so that what is unpickled is
what was written; the second one covers the buffers, and is looked at on request, since that reads all of them. A file
appears whole or not at all, and deleting it does not disturb who has it mapped.
"""

from __future__ import annotations

import fcntl
import functools
import io
import mmap
import os
import pickle
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diagnose.kernels._atomic_write import NewFile
from diagnose.kernels._private_files import open_private

__all__ = ["Ledger", "load", "pack", "store"]

ALIGNMENT = 64
MARK = b"samples3"  # changes with the format
# Mark, checksum of what follows up to the buffers, that of the buffers, their number, length of pickle.
HEAD = struct.Struct("<8sQQQQ")
CHECKED = 16  # where the numbers begin that the first checksum covers
FIELDS = ("hits", "misses", "evicted", "refused", "held_bytes")
TOTALS = struct.Struct(f"<{len(FIELDS)}q")


class _Pickler(pickle.Pickler):
    """Pickles dense tensors of the host as buffers beside the pickle, as numpy's arrays do by themselves."""

    def reducer_override(self, value: Any) -> Any:  # pickle's protocol
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        if value.requires_grad or not value.numel() or value.is_quantized:
            return NotImplemented
        data = value.contiguous().view(-1)
        buffer = pickle.PickleBuffer(data.view(torch.uint8).numpy().data)
        return _tensor, (buffer, value.dtype, tuple(value.shape))


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:  # any buffer
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def pack(value: Any) -> list[bytes | memoryview]:  # whatever can be pickled
    """Return the chunks of the value's file."""
    buffers: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(value)
    views = [buffer.raw() for buffer in buffers]
    body: list[bytes | memoryview] = []
    at = HEAD.size + 8 * len(views) + out.tell()
    for view in views:
        gap = -at % ALIGNMENT
        body += [bytes(gap), view]
        at += gap + len(view)
    checksum = functools.reduce(lambda before, chunk: zlib.crc32(chunk, before), body, 0)
    lengths = struct.pack(f"<{3 + len(views)}Q", checksum, len(views), out.tell(), *map(len, views))
    head = MARK + struct.pack("<Q", zlib.crc32(out.getbuffer(), zlib.crc32(lengths))) + lengths
    return [head, out.getvalue(), *body]


def store(path: Path, chunks: list[bytes | memoryview]) -> None:
    """Write the file under another name and move it into place.

    Raises:
        OSError: there is no room; nothing is left behind.
    """
    with NewFile(path, private=True, durable=False) as new:
        new.file.writelines(chunks)
        new.publish(force=True)


def load(path: Path, *, all_of_it: bool = False) -> tuple[Any] | None:
    """Return the value, in a tuple, or None where it is not there. It is used from now on: the last to be removed.

    A file that was cut off, or that is none of a cache, is removed, so that its value is computed again; with
    ``all_of_it`` one with a damaged buffer, too.

    Raises:
        PermissionError: another user owns the file or can write it, or it is a link.
    """
    try:
        descriptor = open_private(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(descriptor).st_size < HEAD.size:
            path.unlink(missing_ok=True)
            return None
        memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)  # what the caller writes stays its own
        os.utime(descriptor)
    finally:
        os.close(descriptor)
    parts = _parts(memory, all_of_it=all_of_it)
    if parts is None:
        path.unlink(missing_ok=True)
        return None
    return (pickle.loads(parts[0], buffers=parts[1:]),)


def _parts(memory: mmap.mmap, *, all_of_it: bool) -> list[memoryview] | None:
    """Return the pickle and its buffers, or None where the file is not as ``pack`` made it."""
    mark, checksum, of_buffers, num, length = HEAD.unpack_from(memory, 0)
    at = HEAD.size + 8 * num
    if mark != MARK or at + length > len(memory):
        return None
    view = memoryview(memory)
    if zlib.crc32(view[CHECKED : at + length]) != checksum:
        return None
    if all_of_it and zlib.crc32(view[at + length :]) != of_buffers:
        return None
    parts = [view[at : at + length]]
    at += length
    for size in struct.unpack_from(f"<{num}Q", memory, HEAD.size):
        at += -at % ALIGNMENT
        parts.append(view[at : at + size])
        at += size
    return parts if at == len(memory) else None


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
                totals = dict(
                    zip(FIELDS, TOTALS.unpack(raw) if len(raw) == TOTALS.size else (0,) * len(FIELDS), strict=True)
                )
                before: Mapping[str, int] = dict(totals)
                yield totals
                if totals != before:
                    os.pwrite(descriptor, TOTALS.pack(*totals.values()), 0)
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _descriptor(self) -> int:
        """Open the file once for each process: a lock on an inherited descriptor would be the parent's too."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), open_private(self.path, os.O_RDWR | os.O_CREAT))
            self._lock = threading.Lock()  # one that was held while forking would never be released
        return self._opened[1]

    def __del__(self) -> None:
        if self._opened is not None and self._opened[0] == os.getpid():
            os.close(self._opened[1])

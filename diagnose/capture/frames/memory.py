"""Reads the memory of a process, its own included, by Linux' process_vm_readv: no signal, no stop, no attaching."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

__all__ = ["MAX_BYTES", "WORD", "Memory", "UnreadableError", "word_at", "words"]

WORD = struct.calcsize("P")
MAX_BYTES = 1 << 20  # of one read; longer tables of lines do not occur
MAX_PARTS = 64  # Linux allows 1024


class UnreadableError(Exception):
    """Memory that is not there or may not be read, or that holds something else than was expected."""


class Memory:
    """The memory of one process."""

    def __init__(self, pid: int) -> None:
        # PyDLL keeps the lock, of which this process has no other use: releasing it would cost as much as the call
        readv = ctypes.PyDLL(None, use_errno=True).process_vm_readv
        pointer, number = ctypes.c_void_p, ctypes.c_ulong
        readv.argtypes = [ctypes.c_int, pointer, number, pointer, number, number]
        readv.restype = ctypes.c_ssize_t
        self.call, self.pid = readv, pid
        self._buffer = bytearray(MAX_BYTES)
        self._local = bytearray(2 * WORD)
        self._remote = bytearray(2 * WORD * MAX_PARTS)
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._local_at = ctypes.addressof(ctypes.c_char.from_buffer(self._local))
        self._remote_at = ctypes.addressof(ctypes.c_char.from_buffer(self._remote))

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes.

        Raises:
            UnreadableError: not all of them can be read.
        """
        return self.read_parts(((address, size),), size)

    def read_parts(self, parts: Sequence[tuple[int, int]], least: int | None = None) -> bytes:
        """Return the bytes of several places by one call of the system, those of the first one first.

        ``least`` is how many of them must be readable, all of them by default; the rest may be missing at the end.

        Raises:
            UnreadableError: fewer can be read.
        """
        total = sum(size for _, size in parts)
        num = self.call(*self.arguments(parts, total))
        if num < (total if least is None else least):
            raise UnreadableError(os.strerror(ctypes.get_errno()) if num < 0 else "Not all of it is there.")
        return self.taken(num)

    def arguments(self, parts: Sequence[tuple[int, int]], total: int) -> tuple[int, ...]:
        """Return what ``call`` takes to read these parts, of ``total`` bytes."""
        if not 0 < total <= MAX_BYTES or not all(0 < address < 1 << 63 for address, _ in parts):
            raise UnreadableError("There is no such address.")
        struct.pack_into("PN", self._local, 0, self._at, total)
        struct.pack_into("PN" * len(parts), self._remote, 0, *(number for part in parts for number in part))
        return self.pid, self._local_at, 1, self._remote_at, len(parts), 0

    def taken(self, num: int) -> bytes:
        """Return the first bytes of what was read last."""
        return bytes(self._buffer[:num])


def words(data: bytes) -> tuple[int, ...]:
    """Return the pointers in aligned memory."""
    return struct.unpack(f"{len(data) // WORD}P", data[: len(data) // WORD * WORD])


def word_at(data: bytes, offset: int) -> int:
    """Return the pointer at an offset."""
    return int.from_bytes(data[offset : offset + WORD], "little")

"""Looks at the contents of values without an operator of torch, and turns what it has seen into statistics at the end.

On a CPU memory is read as it is: no version changes, nothing is recorded, no storage gets a view that would keep it
from being resized. On a device samples are taken there and fetched once.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from diagnose.capture.dataflow.bits import CODES, Bits, Code
from diagnose.capture.dataflow.positions import MAX_SAMPLE, extent, offsets
from diagnose.capture.dataflow.storages import UNSEEN, Base
from diagnose.capture.dataflow.structure import Kind, Structure, is_constant, structure

__all__ = ["UNKNOWN", "Content", "Contents"]

MAX_EXACT_BYTES = 1 << 20  # of a value in the host's memory whose fingerprint is of all elements: 0.1 ms
_READ_ONLY = 0x100  # PyBUF_READ

_memory: Any = ctypes.pythonapi.PyMemoryView_FromMemory
_memory.restype = ctypes.py_object
_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


class Content(NamedTuple):
    """What was seen of one value; the fields of the same names of ``Value``."""

    fingerprint: str = ""
    is_exact: bool = False
    zeros: float = -1.0
    padded: float = -1.0
    repeated_rows: float = -1.0
    kind: Kind = ""
    subnormal: float = 0.0
    is_finite: bool = True


UNKNOWN = Content()
_PLAIN, _CONSTANT = Structure(), Structure("constant")


class _Look(NamedTuple):
    """One content that was looked at."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    sample: bytes
    checksum: int  # of all elements, -1 if only the sample was read
    structure: Structure


class Contents:
    """The contents looked at so far, by number."""

    def __init__(self) -> None:
        from isal import isal_zlib

        self._checksum: Any = isal_zlib.crc32  # ten times as fast as that of Python's library
        self._looks: list[_Look] = []

    def look(self, tensor: torch.Tensor, base: Base, *, with_structure: bool) -> int:
        """Look at the content of a tensor's storage through ``base``; return its number, UNSEEN if there is none."""
        code = CODES.get(base.dtype)
        if code is None or not base.has_storage or base.device.type != "cpu" or 0 in base.shape:
            return UNSEEN
        storage = tensor.untyped_storage()
        size, address = base.dtype.itemsize, storage.data_ptr()
        num = math.prod(base.shape) if base.is_contiguous else extent(base.shape, base.stride)
        num_bytes = num * size
        if not address or base.offset * size + num_bytes > storage.nbytes():
            return UNSEEN
        memory = _memory(address + base.offset * size, num_bytes, _READ_ONLY)
        self._looks.append(self._read(memory, base, code, with_structure=with_structure))
        return len(self._looks) - 1

    def _read(self, memory: Any, base: Base, code: Code, *, with_structure: bool) -> _Look:
        shape, dtype = base.shape, base.dtype
        bits: Bits = np.frombuffer(memory, code.unsigned)
        num = math.prod(shape)
        is_dense = num == bits.size and base.is_contiguous
        if num <= MAX_SAMPLE and is_dense:
            sample, checksum = bytes(memory), 0
        else:
            sample = bits.take(offsets(shape, base.stride)).tobytes()
            is_whole = num <= MAX_SAMPLE
            exact = is_dense and len(memory) <= MAX_EXACT_BYTES
            checksum = 0 if is_whole else self._checksum(memory) if exact else -1
        if is_dense:
            whole = bits.reshape(shape)
        elif num <= MAX_SAMPLE:
            whole = np.frombuffer(sample, code.unsigned).reshape(shape)
        else:
            return _Look(dtype, shape, sample, checksum, _PLAIN)
        if num > 1 and is_constant(sample, whole):
            return _Look(dtype, shape, sample, checksum, _CONSTANT)
        found = structure(whole, code.one, is_integer=not code.infinite) if with_structure else _PLAIN
        return _Look(dtype, shape, sample, checksum, found)

    def finish(self) -> list[Content]:
        """Return what was seen, by number."""
        found = [UNKNOWN] * len(self._looks)
        groups: dict[tuple[torch.dtype, int], list[int]] = {}
        for number, look in enumerate(self._looks):
            groups.setdefault((look.dtype, len(look.sample)), []).append(number)
        for (dtype, _), numbers in groups.items():
            for number, content in zip(numbers, self._statistics(dtype, numbers), strict=True):
                found[number] = content
        return found

    def _statistics(self, dtype: torch.dtype, numbers: list[int]) -> list[Content]:
        """Return the contents of looks of one dtype and as many elements each."""
        code = CODES[dtype]
        looks = [self._looks[number] for number in numbers]
        bits = np.frombuffer(b"".join([look.sample for look in looks]), code.unsigned).reshape(len(looks), -1)
        size = bits & code.unsigned(code.magnitude)
        zeros = (size == 0).mean(1)
        subnormal = ((size > 0) & (size < code.normal)).mean(1) if code.normal else np.zeros(len(looks))
        finite = (size < code.infinite).all(1) if code.infinite else np.ones(len(looks), np.bool_)
        return [
            Content(
                fingerprint=_fingerprint(look),
                is_exact=look.checksum >= 0,
                zeros=float(zeros[i]),
                padded=look.structure.padded,
                repeated_rows=look.structure.repeated_rows,
                kind=look.structure.kind,
                subnormal=float(subnormal[i]),
                is_finite=bool(finite[i]),
            )
            for i, look in enumerate(looks)
        ]


def _fingerprint(look: _Look) -> str:
    what = f"{look.dtype} {look.shape} {look.checksum} ".encode()
    return hashlib.blake2b(what + look.sample, digest_size=8).hexdigest()

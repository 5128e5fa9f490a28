"""Looks at the contents of values without an operator of torch, and turns what it has seen into statistics at the end.

On a CPU memory is read as it is: no version changes, nothing is recorded, no storage gets a view that would keep it
from being resized. On a device samples are taken there and fetched once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from typing import Any, NamedTuple

import numpy as np
import torch
from isal.isal_zlib import crc32  # ten times as fast as that of Python's library

from diagnose.capture.dataflow.bits import CODES, Bits, Code
from diagnose.capture.dataflow.device_samples import DeviceSamples
from diagnose.capture.dataflow.positions import MAX_SAMPLE, offsets
from diagnose.capture.dataflow.storages import UNSEEN, Base
from diagnose.capture.dataflow.structure import Kind, Structure, structure
from diagnose.model.shapes import num_elements

__all__ = ["UNKNOWN", "Content", "Contents"]

# Of a value in the host's memory whose fingerprint is of all elements: 10 us, and 0.1 ms for one that no operator made,
# whose content alone tells it apart from others.
MAX_EXACT_BYTES, MAX_GIVEN_BYTES = 1 << 18, 1 << 20
MAX_PENDING = 4096  # looks of a kilobyte each that are judged together
_READ_ONLY = 0x100  # PyBUF_READ
_START, _END = 1 << 16, 1 << 48  # between them are the addresses that systems give out unless asked for others


class Content(NamedTuple):
    """What was seen of one value; the fields of the same names of ``Value``."""

    fingerprint: str = ""
    is_exact: bool = False
    zeros: float = -1.0
    padded: float = -1.0
    evenly_padded: float = -1.0
    zero_rows: float = -1.0
    padded_rows: float = -1.0
    kind: Kind = ""
    subnormal: float = 0.0
    is_finite: bool = True


UNKNOWN = Content()
_UNKNOWN = Structure()


def _memory() -> Bits:
    view: Any = ctypes.pythonapi.PyMemoryView_FromMemory
    view.restype, view.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    return np.frombuffer(view(_START, _END - _START, _READ_ONLY), np.uint8)


_BYTES = _memory()  # the memory of this process: a slice of it is all that a look has to make
_WORDS: dict[int, Bits] = {code.size: _BYTES.view(code.unsigned) for code in CODES.values()}
_row = tuple.__new__  # what the class of a named tuple calls


class _Look(NamedTuple):
    """One content that was looked at."""

    number: int
    base: Base
    sample: bytes
    checksum: int  # of all elements, -1 if only the sample was read
    structure: Structure | None  # None if the sample is all there is: then it is judged with the others
    with_kind: bool


class Contents:
    """The contents looked at so far, by number; with ``in_place`` false memory of the host is sampled as a device's.

    Fingerprints can be compared under one ``salt`` only, which is kept nowhere: contents cannot be guessed from them.
    """

    def __init__(self, *, in_place: bool = True, salt: bytes = b"") -> None:
        self._in_place, self._salt = in_place, salt or os.urandom(16)
        self._found: list[Content] = []
        self._pending: list[_Look] = []  # that are not judged yet
        self._devices = DeviceSamples()

    def look(self, tensor: torch.Tensor, base: Base, *, with_kind: bool, is_given: bool = True) -> int:
        """Look at the content of a tensor's storage through ``base``; return its number, UNSEEN if there is none.

        ``is_given`` says that no operator has made it.
        """
        code = base.code
        if code is None:
            return UNSEEN
        storage = tensor.untyped_storage()
        size, num = base.dtype.itemsize, base.extent
        if (base.offset + num) * size > storage.nbytes():  # it was resized
            return UNSEEN
        number = len(self._found)
        if base.device.type != "cpu" or not self._in_place:
            if not self._devices.take(number, tensor, base, num, with_kind=with_kind):
                return UNSEEN
        else:
            address = storage.data_ptr()
            if not _START <= address < _END:  # 0: it is empty
                return UNSEEN
            start = address + base.offset * size - _START
            if num <= MAX_SAMPLE and base.is_contiguous:
                sample = _BYTES[start : start + num * size].tobytes()
                self._pending.append(_row(_Look, (number, base, sample, 0, None, with_kind)))
            else:
                at, rest = divmod(start, size)
                bits = _unaligned(start, num, code) if rest else _WORDS[size][at : at + num]
                max_bytes = MAX_GIVEN_BYTES if is_given else MAX_EXACT_BYTES
                self._pending.append(_read(number, bits, base, max_bytes, with_kind=with_kind))
        self._found.append(UNKNOWN)
        if len(self._pending) >= MAX_PENDING:
            self._judge()
        return number

    def finish(self) -> list[Content]:
        """Fetch what is on devices and return what was seen, by number."""
        for number, base, sample, whole, with_kind in self._devices.fetch():
            self._pending.append(_fetched(number, base, sample, whole, with_kind=with_kind))
        self._judge()
        return self._found

    @property
    def devices(self) -> list[str]:
        """Return the devices of which samples were taken."""
        return self._devices.names

    def _judge(self) -> None:
        """Turn looks into statistics, those of one dtype and as many elements together."""
        groups: dict[tuple[torch.dtype, int], list[_Look]] = {}
        for look in self._pending:
            groups.setdefault((look.base.dtype, len(look.sample)), []).append(look)
        self._pending = []
        for (dtype, _), looks in groups.items():
            for look, content in zip(looks, _statistics(dtype, looks), strict=True):
                self._found[look.number] = content._replace(fingerprint=_fingerprint(look, self._salt))


def _unaligned(start: int, num: int, code: Code) -> Bits:
    return _BYTES[start : start + num * code.size].view(code.unsigned)


def _read(number: int, bits: Bits, base: Base, max_bytes: int, *, with_kind: bool) -> _Look:
    """Look at a content in the host's memory; of no more than so many bytes at all of it."""
    sample = bits.take(offsets(base.shape, base.stride))
    found = _structure(base, sample, bits if base.is_contiguous else None, with_kind=with_kind)
    checksum = -1
    if found is None:
        checksum = 0
    elif base.is_contiguous and bits.nbytes <= max_bytes:
        checksum = crc32(bits)
    return _row(_Look, (number, base, sample.tobytes(), checksum, found, with_kind))


def _fetched(number: int, base: Base, sample: bytes, whole: bytes, *, with_kind: bool) -> _Look:
    """Look at what was fetched from a device."""
    kind = CODES[base.dtype].unsigned
    bits: Bits | None = np.frombuffer(whole, kind) if whole else None
    found = _structure(base, np.frombuffer(sample, kind), bits, with_kind=with_kind)
    checksum = 0 if found is None else crc32(whole) if whole else -1
    return _Look(number, base, sample, checksum, found, with_kind)


def _structure(base: Base, sample: Bits, whole: Bits | None, *, with_kind: bool) -> Structure | None:
    """Return what a content is, None where the sample is all of it."""
    if num_elements(base.shape) <= MAX_SAMPLE:
        return None
    if whole is None:
        return _UNKNOWN
    return structure(sample, whole, base.shape, CODES[base.dtype], with_kind=with_kind)


def _statistics(dtype: torch.dtype, looks: list[_Look]) -> list[Content]:
    """Return the contents of looks of one dtype and as many elements each, without their fingerprints."""
    code = CODES[dtype]
    bits = np.frombuffer(b"".join([look.sample for look in looks]), code.unsigned).reshape(len(looks), -1)
    size = bits & code.unsigned(code.magnitude)
    zeros = (size == 0).mean(1).tolist()
    subnormal = ((size > 0) & (size < code.normal)).mean(1).tolist() if code.normal else [0.0] * len(looks)
    finite = (size < code.infinite).all(1).tolist() if code.infinite else [True] * len(looks)
    found = []
    for i, look in enumerate(looks):
        of = look.structure or structure(bits[i], bits[i], look.base.shape, code, with_kind=look.with_kind)
        shares = of.padded, of.evenly_padded, of.zero_rows, of.padded_rows
        found.append(Content("", look.checksum >= 0, zeros[i], *shares, of.kind, subnormal[i], finite[i]))
    return found


def _fingerprint(look: _Look, salt: bytes) -> str:
    what = f"{look.base.dtype} {look.base.shape} {look.checksum} ".encode()
    return hashlib.blake2b(what + look.sample, digest_size=8, key=salt).hexdigest()

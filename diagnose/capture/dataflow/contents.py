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

from diagnose.capture.dataflow.bits import CODES, Bits
from diagnose.capture.dataflow.device_samples import DeviceSamples
from diagnose.capture.dataflow.positions import MAX_SAMPLE, extent, offsets
from diagnose.capture.dataflow.storages import UNSEEN, Base
from diagnose.capture.dataflow.structure import Kind, Structure, structure
from diagnose.model.shapes import num_elements

__all__ = ["UNKNOWN", "Content", "Contents"]

# Of a value in the host's memory whose fingerprint is of all elements: 10 us, and 0.1 ms for one that no operator made,
# whose content alone tells it apart from others.
MAX_EXACT_BYTES, MAX_GIVEN_BYTES = 1 << 18, 1 << 20
MAX_PENDING = 4096  # looks of a kilobyte each that are judged together
_READ_ONLY = 0x100  # PyBUF_READ
_START, _END = 1 << 16, 1 << 48  # between them are all addresses of a process


class Content(NamedTuple):
    """What was seen of one value; the fields of the same names of ``Value``."""

    fingerprint: str = ""
    is_exact: bool = False
    zeros: float = -1.0
    padded: float = -1.0
    evenly_padded: float = -1.0
    zero_rows: float = -1.0
    kind: Kind = ""
    subnormal: float = 0.0
    is_finite: bool = True


UNKNOWN = Content()
_PLAIN = Structure()


def _memory() -> Bits:
    view: Any = ctypes.pythonapi.PyMemoryView_FromMemory
    view.restype, view.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    return np.frombuffer(view(_START, _END - _START, _READ_ONLY), np.uint8)


_BYTES = _memory()  # the whole memory of this process: one slice of it is all that a look has to make
_WORDS: dict[Any, Bits] = {kind: _BYTES.view(kind) for kind in {code.unsigned for code in CODES.values()}}


class _Look(NamedTuple):
    """One content that was looked at."""

    dtype: torch.dtype
    shape: tuple[int, ...]
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
        self._pending: list[tuple[int, _Look]] = []  # number and look of those that are not judged yet
        self._devices = DeviceSamples()

    def look(self, tensor: torch.Tensor, base: Base, *, with_kind: bool, is_given: bool = True) -> int:
        """Look at the content of a tensor's storage through ``base``; return its number, UNSEEN if there is none.

        ``is_given`` says that no operator has made it.
        """
        if base.dtype not in CODES or not base.has_storage or 0 in base.shape:
            return UNSEEN
        storage = tensor.untyped_storage()
        size = base.dtype.itemsize
        num = num_elements(base.shape) if base.is_contiguous else extent(base.shape, base.stride)
        if (base.offset + num) * size > storage.nbytes():  # it was resized
            return UNSEEN
        number = len(self._found)
        if base.device.type != "cpu" or not self._in_place:
            if not self._devices.take(number, tensor, base, num, with_kind=with_kind):
                return UNSEEN
        else:
            address = storage.data_ptr()
            if not address:
                return UNSEEN
            max_bytes = MAX_GIVEN_BYTES if is_given else MAX_EXACT_BYTES
            bits = _bits(address + base.offset * size, num, CODES[base.dtype].unsigned)
            self._pending.append((number, _read(bits, base, max_bytes, with_kind=with_kind)))
        self._found.append(UNKNOWN)
        if len(self._pending) >= MAX_PENDING:
            self._judge()
        return number

    def finish(self) -> list[Content]:
        """Fetch what is on devices and return what was seen, by number."""
        for number, base, sample, whole, with_kind in self._devices.fetch():
            self._pending.append((number, _fetched(base, sample, whole, with_kind=with_kind)))
        self._judge()
        return self._found

    @property
    def devices(self) -> list[str]:
        """Return the devices of which samples were taken."""
        return self._devices.names

    def _judge(self) -> None:
        """Turn looks into statistics, those of one dtype and as many elements together."""
        groups: dict[tuple[torch.dtype, int], list[tuple[int, _Look]]] = {}
        for number, look in self._pending:
            groups.setdefault((look.dtype, len(look.sample)), []).append((number, look))
        self._pending = []
        for (dtype, _), group in groups.items():
            looks = [look for _, look in group]
            for (number, look), content in zip(group, _statistics(dtype, looks), strict=True):
                self._found[number] = content._replace(fingerprint=_fingerprint(look, self._salt))


def _bits(address: int, num: int, kind: Any) -> Bits:
    """Return so many numbers in the host's memory."""
    start, rest = divmod(address - _START, kind().itemsize)
    if rest:
        return _BYTES[address - _START :][: num * kind().itemsize].view(kind)
    return _WORDS[kind][start : start + num]


def _read(bits: Bits, base: Base, max_bytes: int, *, with_kind: bool) -> _Look:
    """Look at a content in the host's memory; of no more than so many bytes at all of it."""
    num = num_elements(base.shape)
    is_dense = base.is_contiguous and num == bits.size
    if is_dense and num <= MAX_SAMPLE:
        return _Look(base.dtype, base.shape, bits.tobytes(), 0, None, with_kind)
    sample = bits.take(offsets(base.shape, base.stride))
    checksum = crc32(bits) if is_dense and bits.nbytes <= max_bytes else -1
    return _looked_at(base, sample, checksum, bits if is_dense else None, with_kind=with_kind)


def _fetched(base: Base, sample: bytes, whole: bytes, *, with_kind: bool) -> _Look:
    """Look at what was fetched from a device."""
    kind = CODES[base.dtype].unsigned
    bits: Bits | None = np.frombuffer(whole, kind) if whole else None
    return _looked_at(base, np.frombuffer(sample, kind), crc32(whole) if whole else -1, bits, with_kind=with_kind)


def _looked_at(base: Base, sample: Bits, checksum: int, whole: Bits | None, *, with_kind: bool) -> _Look:
    if num_elements(base.shape) <= MAX_SAMPLE:
        return _Look(base.dtype, base.shape, sample.tobytes(), 0, None, with_kind)
    found = _PLAIN if whole is None else _structure(base.dtype, sample, whole.reshape(base.shape), with_kind=with_kind)
    return _Look(base.dtype, base.shape, sample.tobytes(), checksum, found, with_kind)


def _structure(dtype: torch.dtype, sample: Bits, whole: Bits, *, with_kind: bool) -> Structure:
    code = CODES[dtype]
    is_number = bool(code.infinite) or dtype == torch.bool
    return structure(sample, whole, code.one, is_number=is_number, with_kind=with_kind)


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
        of = look.structure or _structure(dtype, bits[i], bits[i].reshape(look.shape), with_kind=look.with_kind)
        shares = of.padded, of.evenly_padded, of.zero_rows
        found.append(Content("", look.checksum >= 0, zeros[i], *shares, of.kind, subnormal[i], finite[i]))
    return found


def _fingerprint(look: _Look, salt: bytes) -> str:
    what = f"{look.dtype} {look.shape} {look.checksum} ".encode()
    return hashlib.blake2b(what + look.sample, digest_size=8, key=salt).hexdigest()

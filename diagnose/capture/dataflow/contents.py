"""Looks at the contents of values without an operator of torch, and turns what it has seen into statistics at the end.

On a CPU memory is read as it is: no version changes, nothing is recorded, no storage gets a view that would keep it
from being resized. On a device samples are taken there and fetched once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from isal.isal_zlib import crc32
from torch import from_numpy  # not what a window puts in its place
from torch.utils._python_dispatch import _disable_current_modes

from diagnose.capture.dataflow.storages import UNSEEN, Base
from diagnose.capture.dataflow.structure import (
    CODES,
    MAX_SAMPLE,
    Bits,
    Code,
    Kind,
    Structure,
    offsets,
    some_rows,
    structure,
)
from diagnose.model.shapes import num_elements

# Samples of contents on a device: they are taken and kept there, and fetched once after the steps.

MAX_WHOLE_BYTES = 1 << 16  # of a tensor of integers, or of a square one, that is copied whole: masks and indices
_UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # that all devices can index


ROUNDING_BITS = 16  # of a mantissa that have to be those of 1: sums of thousands of numbers do not change these


class Fetched(NamedTuple):
    """The content of one value."""

    number: int
    base: Base
    sample: bytes
    whole: bytes  # b"" where only the sample was taken
    with_kind: bool
    rows: bytes  # of some rows which hold more than zeros; b"" where none were looked at


class _Taken(NamedTuple):
    number: int
    base: Base
    sample: torch.Tensor
    whole: torch.Tensor | None
    with_kind: bool
    rows: torch.Tensor | None


class DeviceSamples:
    """The samples taken so far."""

    def __init__(self) -> None:
        self._taken: list[_Taken] = []
        self._positions: dict[tuple[Any, ...], torch.Tensor] = {}
        self._num_bytes = 0

    @property
    def names(self) -> list[str]:
        """Return the devices of which samples were taken."""
        return sorted({str(each.base.device) for each in self._taken})

    def take(self, number: int, tensor: torch.Tensor, base: Base, num: int, *, with_kind: bool) -> bool:
        """Take a sample of the ``num`` elements from a base's first to its last one; return whether that can be done.

        Nothing of it is recorded, neither here, nor by modes of the script, nor by autograd.
        """
        is_readable = tensor.dtype == base.dtype and not (tensor.is_conj() or tensor.is_neg())
        # All samples may take 64 MB.
        if not is_readable or self._num_bytes > 64 << 20 or base.device.type == "meta":
            return False
        if base.device.type == "cuda" and torch.cuda.is_current_stream_capturing():  # it becomes part of a graph
            return False
        try:
            with torch._C._AutoDispatchBelowAutograd(), _without_modes():
                flat = tensor.as_strided((num,), (1,), base.offset).view(_UNSIGNED[base.dtype.itemsize])
                sample = flat.index_select(0, self._of(base))
                whole = flat.clone() if num > MAX_SAMPLE and _is_wanted_whole(base, num) else None
                rows = None if with_kind or whole is not None else self._rows_with_numbers(tensor, base, num)
        except RuntimeError:  # a device without these operators
            return False
        self._num_bytes += sum(each.nbytes for each in (sample, whole, rows) if each is not None)
        self._taken.append(_Taken(number, base, sample, whole, with_kind, rows))
        return True

    def fetch(self) -> Iterator[Fetched]:
        """Yield what was taken; each device is waited for once."""
        devices = {each.base.device for each in self._taken}
        with _without_modes():
            for device in devices:
                if device.type != "cpu":
                    torch.get_device_module(device).synchronize(device)  # samples were taken on several streams
                yield from _device_samples_fetched([each for each in self._taken if each.base.device == device])
        self._taken = []

    def _rows_with_numbers(self, tensor: torch.Tensor, base: Base, num: int) -> torch.Tensor | None:
        """Return of some rows of a gradient which hold more than zeros, None if it has no rows."""
        width = base.shape[-1] if len(base.shape) > 1 and base.is_contiguous else 0
        if width < 2 or num <= MAX_SAMPLE or base.code is None or not base.code.normal or base.dtype.itemsize < 2:
            return None
        every = num // width
        key = every, width * base.dtype.itemsize, base.device
        some = self._positions.get(key)
        if some is None:
            some = self._positions[key] = from_numpy(some_rows(*key[:2]).copy()).to(base.device)
        rows = tensor.as_strided((every, width), (width, 1), base.offset)
        return rows.index_select(0, some).ne(0).any(1)

    def _of(self, base: Base) -> torch.Tensor:
        key = base.shape, base.stride, base.device
        found = self._positions.get(key)
        if found is None:
            found = from_numpy(offsets(base.shape, base.stride).copy()).to(base.device)
            self._positions[key] = found
        return found


def _is_wanted_whole(base: Base, num: int) -> bool:
    shape = base.shape
    is_integer = not (base.dtype.is_floating_point or base.dtype.is_complex)
    is_square = len(shape) > 1 and shape[-1] == shape[-2]
    return base.is_contiguous and (is_integer or is_square) and num * base.dtype.itemsize <= MAX_WHOLE_BYTES


def _without_modes() -> Any:
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def _device_samples_fetched(taken: list[_Taken]) -> Iterator[Fetched]:
    parts = [part for each in taken for part in (each.sample, each.whole, each.rows) if part is not None]
    data = torch.cat([part.view(torch.uint8) for part in parts]).cpu().numpy().tobytes()
    at = 0

    def read(part: torch.Tensor | None) -> bytes:
        nonlocal at
        begin, at = at, at + (part.nbytes if part is not None else 0)
        return data[begin:at]

    for each in taken:
        sample, whole, rows = read(each.sample), read(each.whole), read(each.rows)
        yield Fetched(each.number, each.base, sample, whole, each.with_kind, rows)


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
    is_one: bool = False


UNKNOWN = Content()
_UNKNOWN = Structure()


def _memory() -> Bits:
    view: Any = ctypes.pythonapi.PyMemoryView_FromMemory
    view.restype, view.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    return np.frombuffer(view(_START, _END - _START, 0x100), np.uint8)  # PyBUF_READ


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

    def __init__(self, *, in_place: bool = True, salt: bytes = b"", max_pending: int = 4096) -> None:
        """``max_pending`` looks, of a kilobyte each, are judged together."""
        self._max_pending = max_pending
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
                unaligned = _BYTES[start : start + num * size].view(code.unsigned) if rest else None
                bits = _WORDS[size][at : at + num] if unaligned is None else unaligned
                # The fingerprint of a value that no operator made, whose content alone tells it apart, may take 0.1 ms,
                # that of another one 10 us: larger ones have that of a sample.
                max_bytes = 1 << 20 if is_given else 1 << 18
                self._pending.append(_read(number, bits, base, max_bytes, with_kind=with_kind))
        self._found.append(UNKNOWN)
        if len(self._pending) >= self._max_pending:
            self._judge()
        return number

    def finish(self) -> list[Content]:
        """Fetch what is on devices and return what was seen, by number."""
        self._pending.extend(_fetched(each) for each in self._devices.fetch())
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
                salt = self._salt
                what = f"{look.base.dtype} {look.base.shape} {look.checksum} ".encode()
                fingerprint = hashlib.blake2b(what + look.sample, digest_size=8, key=salt).hexdigest()
                self._found[look.number] = content._replace(fingerprint=fingerprint)


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


def _fetched(each: Fetched) -> _Look:
    """Look at what was fetched from a device."""
    kind = CODES[each.base.dtype].unsigned
    bits: Bits | None = np.frombuffer(each.whole, kind) if each.whole else None
    found = _structure(each.base, np.frombuffer(each.sample, kind), bits, with_kind=each.with_kind)
    checksum = 0 if found is None else crc32(each.whole) if each.whole else -1
    if found is not None and each.rows:
        found = found._replace(zero_rows=each.rows.count(0) / len(each.rows))
    return _Look(each.number, each.base, each.sample, checksum, found, each.with_kind)


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
    ones = _are_one(bits, code).tolist()
    found = []
    for i, look in enumerate(looks):
        of = look.structure or structure(bits[i], bits[i], look.base.shape, code, with_kind=look.with_kind)
        shares = of.padded, of.evenly_padded, of.zero_rows, of.padded_rows
        found.append(Content("", look.checksum >= 0, zeros[i], *shares, of.kind, subnormal[i], ones[i]))
    return found


def _are_one(bits: Bits, code: Code) -> npt.NDArray[np.bool_]:
    """Return which rows hold nothing but 1: of a norm of normalized numbers some last bits differ."""
    if not code.normal:  # no floating-point numbers
        return np.zeros(len(bits), bool)
    one, near = code.unsigned(code.one), code.unsigned(max(code.normal >> ROUNDING_BITS, 1))
    found: npt.NDArray[np.bool_] = np.where(bits > one, bits - one, one - bits).max(1, initial=0) <= near
    return found

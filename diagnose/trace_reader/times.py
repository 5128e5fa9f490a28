"""From the file's microseconds to whole nanoseconds without losing any."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from diagnose.model.arrays import Floats, Ints

__all__ = ["UNKNOWN_NS", "durations_ns", "exact_ns", "floats_hold", "instants_ns", "packed", "starts_ns"]

# Up to here the nearest float lies within half a nanosecond of a time with three decimals (102 days).
_EXACT_BELOW_US = 2.0**43
UNKNOWN_NS = -(2**63)  # in the place of a start that is missing, no number, or out of range
# Clocks count from a machine's start or from 1970. A sum of any two of these fits into int64.
_EARLIEST_NS, _LATEST_NS = -(2**60), 2**62  # 36 years before zero, 2116
_MAX_DURATION_US = 2.0**50  # 35 years
# Lengths of times with three decimals, a separator behind them, whose nanoseconds fit into uint64.
_MIN_EXACT, _MAX_EXACT = len("0.000"), len("0000000000000000.000") + 1
_POWERS = 10 ** np.arange(18, -1, -1, dtype=np.uint64)
_MIN_POSITIVE_US = 5e-324  # the smallest number above zero


def floats_hold(starts_us: Sequence[float], durations_us: Sequence[float]) -> bool:
    """Return whether these starts, read as floats, still have their nanoseconds.

    Whole microseconds have none to lose: floats hold them up to the year 2255. A late start may have been
    rounded to a whole one, so durations are looked at too.
    """
    if max(starts_us) < _EXACT_BELOW_US:
        return True
    return all(map(float.is_integer, starts_us)) and all(map(float.is_integer, durations_us))


def packed(values: Sequence[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the values as an array, by way of ``struct``, which takes half the time of ``np.fromiter``.

    Raises:
        struct.error: a number is too large for this type.
    """
    return np.frombuffer(struct.pack(f"{len(values)}{np.dtype(dtype).char}", *values), dtype)


def starts_ns(us: Floats) -> Ints:
    """Convert times; the fraction is rounded on its own, where it is still exact. Unusable ones are UNKNOWN_NS."""
    earliest, latest = _EARLIEST_NS / 1000, _LATEST_NS / 1000
    if _within(us, earliest, latest):
        return _rounded(us)
    usable = (us > earliest) & (us < latest)
    starts = np.full(len(us), UNKNOWN_NS, np.int64)
    starts[usable] = _rounded(us[usable])
    return starts


def _within(us: Floats, low: float, high: float) -> bool:
    """Return whether all values lie between the two; what is no number lies nowhere."""
    return bool(np.minimum.reduce(us, initial=high) > low and np.maximum.reduce(us, initial=low) < high)


def _rounded(us: Floats) -> Ints:
    whole = us.astype(np.int64)
    return whole * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def instants_ns(ns: Sequence[int]) -> Ints:
    """Convert exact times to an array; those out of range are UNKNOWN_NS."""
    try:
        starts = np.fromiter(ns, np.int64, len(ns))
    except OverflowError:
        starts = np.array([n if _EARLIEST_NS < n < _LATEST_NS else UNKNOWN_NS for n in ns], np.int64)
    unusable = (starts <= _EARLIEST_NS) | (starts >= _LATEST_NS)
    if unusable.any():
        starts[unusable] = UNKNOWN_NS
    return starts


def durations_ns(us: Floats) -> tuple[Ints, int]:
    """Convert durations; those that are negative or no number count as zero, and are the number beside them."""
    count = 0
    if not _within(us, -_MIN_POSITIVE_US, _MAX_DURATION_US):
        unusable = ~((us >= 0.0) & (us < np.inf))
        count = int(np.count_nonzero(unusable))
        us = np.minimum(np.where(unusable, 0.0, us), _MAX_DURATION_US)
    return np.rint(us * 1000.0).astype(np.int64), count


def exact_ns(times: Sequence[Raw]) -> list[int]:
    """Convert times from their digits; what is no number is UNKNOWN_NS."""
    return _of_one_layout(times) or list(map(_digits_ns, map(bytes, times)))


def _of_one_layout(times: Sequence[Raw]) -> list[int]:
    """Convert times of as many digits each, three of them decimals, as exporters write them; none of other ones."""
    text = b"\0".join(times) + b"\0"
    length = text.index(b"\0") + 1
    if length * len(times) != len(text) or not _MIN_EXACT < length <= _MAX_EXACT:
        return []
    signs = np.frombuffer(text, np.uint8).reshape(-1, length)
    digits = np.delete(signs, (length - 5, length - 1), axis=1) - ord("0")  # what is no digit becomes a larger number
    if digits.max() > 9 or (signs[:, -5] != ord(".")).any() or signs[:, -1].any():
        return []
    return np.sum(digits * _POWERS[-digits.shape[1] :], axis=1, dtype=np.uint64).astype(np.int64).tolist()


def _digits_ns(text: bytes) -> int:
    text = text.strip(b'"')
    try:
        if text[-4:-3] == b".":
            return int(text.replace(b".", b""))
        whole, _, fraction = text.partition(b".")
        if not whole.lstrip(b"-").isdigit() or not (fraction or b"0").isdigit():
            return round(float(text) * 1000)
        return int(whole) * 1000 + int((fraction + b"000")[:3])
    except (ValueError, OverflowError):  # no number, an infinite one, or one of thousands of digits
        return UNKNOWN_NS

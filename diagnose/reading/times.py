"""From the file's microseconds to whole nanoseconds without losing any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from diagnose.trace import Ints

__all__ = ["durations_ns", "exact_ns", "floats_hold", "starts_ns"]

_Floats = npt.NDArray[np.float64]

# Up to here the nearest float lies within half a nanosecond of a time with three decimals (102 days).
_EXACT_BELOW_US = 2.0**43
_LONGEST_US = 2.0**52


def floats_hold(starts_us: Sequence[float], durations_us: Sequence[float]) -> bool:
    """Say whether these starts, read as floats, still have their nanoseconds.

    Whole microseconds have none to lose: floats hold them up to the year 2255. A late start may have been
    rounded to a whole one, so durations are looked at too.
    """
    if max(starts_us) < _EXACT_BELOW_US:
        return True
    return all(map(float.is_integer, starts_us)) and all(map(float.is_integer, durations_us))


def starts_ns(us: _Floats) -> Ints:
    """Convert times; the fraction is rounded on its own, where it is still exact."""
    whole = us.astype(np.int64)
    return whole * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def durations_ns(us: _Floats) -> Ints:
    """Convert durations; negative ones count as zero."""
    return np.rint(np.clip(us, 0.0, _LONGEST_US) * 1000.0).astype(np.int64)


def exact_ns(times: Sequence[Raw]) -> list[int]:
    """Convert times from their digits."""
    return list(map(_digits_ns, map(bytes, times)))


def _digits_ns(text: bytes) -> int:
    text = text.strip(b'"')
    if text[-4:-3] == b".":
        return int(text.replace(b".", b""))
    whole, _, fraction = text.partition(b".")
    if not whole.lstrip(b"-").isdigit() or not (fraction or b"0").isdigit():
        return round(float(text or b"0") * 1000)
    return int(whole) * 1000 + int((fraction + b"000")[:3])

"""What a file says about the machine and the rank that it was recorded on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from diagnose.model.events import Device
from diagnose.trace_reader.intern import printable

__all__ = ["devices", "epoch_ns", "rank_in_name", "rank_of", "small_values", "world_size_of"]

Keys = Mapping[str, object]

# worker0_step_12.pt.trace.json, rank-34.json, rank0.light.pt.trace.json, trace_8_rank_1.json, dlrm_r7.json
_RANK = re.compile(r"(?:rank|worker|(?<![a-z0-9])r)[-_]?(\d+)(?!\d)", re.IGNORECASE)
_MAX_RANK_DIGITS = 7  # digits
_MAX_VALUE_CHARS = 4096  # characters
_EPOCH_FROM_NS = 10**18  # 2001: no machine has been up for 31 years
_LATEST_EPOCH_NS = 2**62  # 2116: with the length of a recording added it fits into int64
_MAX_RANKS = 2**24  # a hundred times the largest machine
_MAX_WHOLE = 2**62


def rank_of(keys: Keys, path: str) -> int:
    """Return the rank that the file names, else the one in its name, else 0."""
    said = _whole(_mapping(keys.get("distributedInfo")).get("rank"), -1)
    if 0 <= said < _MAX_RANKS:
        return said
    named = rank_in_name(path)
    return 0 if named is None else named


def rank_in_name(path: str) -> int | None:
    """Return the rank that a file's name holds; the last one where it holds several."""
    found = [digits for digits in _RANK.findall(PurePath(path).name) if len(digits) <= _MAX_RANK_DIGITS]
    return int(found[-1]) if found else None


def world_size_of(keys: Keys) -> int:
    """Return the number of ranks of the run, 1 where the file does not say."""
    said = _whole(_mapping(keys.get("distributedInfo")).get("world_size"), 1)
    return said if 1 <= said <= _MAX_RANKS else 1


def epoch_ns(keys: Keys, first_ns: int) -> int:
    """Return the wall-clock time of ``first_ns`` on the file's clock, 0 where that clock is another one."""
    if first_ns >= _EPOCH_FROM_NS:
        return first_ns
    base = _whole(keys.get("baseTimeNanoseconds"), 0)
    return base + first_ns if 0 < base < _LATEST_EPOCH_NS and 0 <= base + first_ns < _LATEST_EPOCH_NS else 0


def devices(keys: Keys) -> tuple[Device, ...]:
    """Return the devices that are listed; events may come from fewer, or from none of them."""
    listed = keys.get("deviceProperties") or keys.get("computeProperties")
    if not isinstance(listed, list):
        return ()
    return tuple(_device(entry, position) for position, entry in enumerate(listed) if isinstance(entry, dict))


def _device(entry: Keys, position: int) -> Device:
    name = entry.get("name")
    capability = _whole(entry.get("computeMajor"), 0), _whole(entry.get("computeMinor"), 0)
    return Device(
        id=_whole(entry.get("id"), position),
        name=printable(name) if isinstance(name, str) else "",
        memory_bytes=max(_whole(entry.get("totalGlobalMem"), 0), 0),
        num_sms=max(_whole(entry.get("numSms"), 0), 0),
        compute_capability=capability,
    )


def small_values(keys: Keys) -> Mapping[str, object]:
    """Return the values worth keeping: flags, versions, ``distributedInfo``; no logs and no events."""
    left_out = {"traceEvents", "deviceProperties", "computeProperties"}
    return {
        name: value
        for name, value in keys.items()
        if name == "distributedInfo" or (name not in left_out and _is_small(value))
    }


def _is_small(value: object) -> bool:
    try:
        return len(str(value)) <= _MAX_VALUE_CHARS
    except RecursionError:
        return False


def _mapping(value: object) -> Keys:
    return value if isinstance(value, dict) else {}


def _whole(value: object, default: int) -> int:
    """Return a number as a whole one that fits into int64, ``default`` for anything else."""
    if isinstance(value, bool):
        return default
    try:
        number = int(value)  # type: ignore[call-overload]  # anything else is caught
    except (TypeError, ValueError, OverflowError):
        return default
    return number if -_MAX_WHOLE < number < _MAX_WHOLE else default

"""The keys before and after the list of events, and what they contain about the machine and the rank."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple, TypeAlias

import msgspec

from diagnose.errors import InputError, NotATraceError
from diagnose.model.events import Device
from diagnose.trace_reader.events import Window
from diagnose.trace_reader.fields import printable
from diagnose.trace_reader.source import Source

__all__ = [
    "MAX_TAIL_BYTES",
    "Envelope",
    "Keys",
    "devices",
    "epoch_ns",
    "rank_in_name",
    "rank_of",
    "read_head",
    "read_keys",
    "small_values",
    "world_size_of",
]

Keys: TypeAlias = Mapping[str, object]

_EVENTS_KEY = rb'"traceEvents"\s*:\s*\['
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDE_TEXT = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{", b"[\0", b"\0[")  # UTF-16 and UTF-32, with a mark or without
_MAX_HEAD_BYTES = 1 << 24  # bytes before the first event; profilers write a few kB, or a few MB of process groups
_PADDING = b" \t\r\n\0"  # a file that was being written when its machine stopped ends in null bytes
MAX_TAIL_BYTES = 1 << 24  # bytes behind the last event: the profiler's log, at most a few MB
_FIRST_OF_LIST = re.compile(rb"\s*(?:null\s*,\s*)*(?:\{|\]|$)")

# worker0_step_12.pt.trace.json, rank-34.json, rank0.light.pt.trace.json, trace_8_rank_1.json, dlrm_r7.json
_RANK = r"(?i)(?:rank|worker|(?<![a-z0-9])r)[-_]?(\d+)(?!\d)"
_MAX_RANK_DIGITS = 7
_MAX_VALUE_CHARS = 4096
_EPOCH_FROM_NS = 10**18  # 2001: no machine has been up for 31 years
_LATEST_EPOCH_NS = 2**62  # 2116: with the length of a recording added it fits into int64
_MAX_RANKS = 2**24  # a hundred times the largest machine
_MAX_WHOLE = 2**62


class Envelope(NamedTuple):
    """The keys around the list of events."""

    keys: Keys
    is_cut: bool  # the file ends too early
    is_unread: bool  # something follows the list that was not understood


class _Nothing(msgspec.Struct):
    """An object of which no key is wanted: decoding it only checks the text."""


_ANYTHING = msgspec.json.Decoder(_Nothing | list[msgspec.Raw])


def read_head(window: Window, source: Source, name: str) -> bytes:
    """Move the window behind the bracket that opens the list of events; return what stands before it.

    Raises:
        InputError: the file ends before that bracket.
        NotATraceError: it is not JSON, or JSON without such a list.
    """
    while window.fill():
        head = window.text()
        begin = _events_begin(head)
        if begin and _FIRST_OF_LIST.match(head, begin):
            window.replace(head[begin:])
            return head[:begin]
        if begin or not _looks_like_json(head) or len(head) > _MAX_HEAD_BYTES:
            break
    raise _headless(window.text(), source, name)


def _looks_like_json(head: bytes) -> bool:
    return head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"[", b"")


def _events_begin(head: bytes) -> int:
    if head.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"["):
        return head.index(b"[") + 1
    found = re.search(_EVENTS_KEY, head)
    return found.end() if found else 0


def _headless(head: bytes, source: Source, name: str) -> InputError:
    if not head.strip():
        why = source.fault or "it holds nothing but blanks"
        return InputError(f"{name} cannot be read: {why}. Copy or record the trace again.")
    if head.startswith(_WIDE_TEXT):
        return InputError(f"{name} is UTF-16 text, not UTF-8. Convert it first: iconv -f UTF-16 -t UTF-8.")
    if not _looks_like_json(head):
        return NotATraceError(f"{name} is not JSON, so it is not a trace. Name a file that torch.profiler exported.")
    text = head.removeprefix(_BYTE_ORDER_MARK)
    if len(head) <= _MAX_HEAD_BYTES and _fault(text):
        if source.fault or _runs_out(text):
            return InputError(f"{name} ends before its first event. Copy or record the trace again.")
        return NotATraceError(f"{name} is not valid JSON. Name a file that torch.profiler exported.")
    return NotATraceError(
        f"{name} is JSON, but not a trace of torch.profiler: it has no list 'traceEvents' of events. "
        "Name a file that torch.profiler exported."
    )


def read_keys(before: bytes, after: bytes) -> Envelope:
    """Read the keys before and after the list of events.

    ``before`` ends, and ``after`` begins, where the list stood. Keys behind the list that cannot be read are left out.
    """
    opening = before.removeprefix(_BYTE_ORDER_MARK).strip()
    after = after.strip(_PADDING)
    if opening == b"[":
        return Envelope({}, is_cut=False, is_unread=bool(after))
    opening = opening.removesuffix(b"[") + b"null"
    keys = _decode(opening + after) if len(after) <= MAX_TAIL_BYTES else None
    if keys is not None:
        return Envelope(keys, is_cut=False, is_unread=keys.get("traceEvents") is not None)
    is_cut = len(after) <= MAX_TAIL_BYTES and _runs_out(opening + after)
    return Envelope(_decode(opening + b"}") or {}, is_cut=is_cut, is_unread=not is_cut)


def _decode(text: bytes) -> Keys | None:
    try:
        keys = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            keys = json.loads(text.decode(errors="replace"), strict=False)
        except (ValueError, RecursionError):
            return None
    return keys if isinstance(keys, dict) else None


def _fault(text: bytes) -> str:
    """Return what is wrong with a JSON text, "" for nothing."""
    try:
        _ANYTHING.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    return ""


def _runs_out(text: bytes) -> bool:
    return "truncated" in _fault(text)


def rank_of(keys: Keys, path: str) -> int:
    """Return the rank that the file names, else the one in its name, else 0."""
    rank = _whole(_mapping(keys.get("distributedInfo")).get("rank"), -1)
    if 0 <= rank < _MAX_RANKS:
        return rank
    named = rank_in_name(path)
    return 0 if named is None else named


def rank_in_name(path: str) -> int | None:
    """Return the rank that a file's name holds; the last one where it holds several."""
    found = [digits for digits in re.findall(_RANK, PurePath(path).name) if len(digits) <= _MAX_RANK_DIGITS]
    return int(found[-1]) if found else None


def world_size_of(keys: Keys) -> int:
    """Return the number of ranks of the run, 1 where the file has none."""
    size = _whole(_mapping(keys.get("distributedInfo")).get("world_size"), 1)
    return size if 1 <= size <= _MAX_RANKS else 1


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

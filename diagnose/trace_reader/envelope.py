"""What stands around the events of a trace: the keys before and after the list."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from diagnose.errors import InputError, NotATraceError
from diagnose.trace_reader.blocks import Window
from diagnose.trace_reader.source import Source

__all__ = ["MAX_TAIL_BYTES", "Envelope", "Keys", "read_head", "read_keys"]

Keys: TypeAlias = Mapping[str, object]

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDE_TEXT = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{", b"[\0", b"\0[")  # UTF-16 and UTF-32, with a mark or without
_MAX_HEAD_BYTES = 1 << 24  # bytes before the first event; profilers write a few kB, or a few MB of process groups
_PADDING = b" \t\r\n\0"  # a file that was being written when its machine stopped ends in null bytes
MAX_TAIL_BYTES = 1 << 24  # bytes behind the last event: the profiler's log, at most a few MB
_FIRST_OF_LIST = re.compile(rb"\s*(?:null\s*,\s*)*(?:\{|\]|$)")


class Envelope(NamedTuple):
    """What stands around the list of events."""

    keys: Keys
    is_cut: bool  # the file ends too early
    is_unread: bool  # something stands behind the list that was not understood


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
    found = _EVENTS_KEY.search(head)
    return found.end() if found else 0


def _headless(head: bytes, source: Source, name: str) -> InputError:
    if not head.strip():
        why = source.fault or "it holds nothing but blanks"
        return InputError(f"{name} cannot be read: {why}. Copy or record the trace again.")
    if head.startswith(_WIDE_TEXT):
        return InputError(f"{name} is UTF-16 text, not UTF-8. Convert it first: iconv -f UTF-16 -t UTF-8.")
    if not _looks_like_json(head):
        return NotATraceError(f"{name} is not JSON, so it is no trace. Name a file that torch.profiler exported.")
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

"""The slow way through a block that is not what torch.profiler writes today.

First the text is repaired (bad UTF-8, ``nan``, single backslashes), then, where that is not enough, each event is
parsed alone and taken value by value; one that cannot be parsed at all is skipped and counted. The work is bounded by
a multiple of the text's length, whatever stands in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw, structs

from diagnose.trace_reader.schema import NO_TIME, Args, ExactEvent

_NO_NUMBER = rb"(?<=[\s:\[,])[-+]?(?:nan|NaN|inf|Infinity)(?:\(\w*\))?(?=\s*[,}\]])"
_BACKSLASH = rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?'
_SEPARATOR = re.compile(r"[\s,]*")
EVENT_START = r'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"'
_NEXT_EVENT = re.compile(rf"\}}\s*,\s*(?={EVENT_START})")
_MAX_TOKEN_CHARS = len(r"-Infinity\u0000")  # an error this near to the end may be a token that is cut


@dataclass(frozen=True, slots=True)
class Salvage:
    """What a piece of text held; ``rest`` stands behind the list's end, or is the beginning of an event."""

    events: list[ExactEvent] = field(default_factory=list)
    num_skipped: int = 0
    ended: bool = False  # the list's closing bracket was seen
    rest: bytes = b""


def repair(text: bytes) -> bytes:
    """Return the text with the mistakes mended that exporters are known to make."""
    text = re.sub(_NO_NUMBER, b"null", text.decode(errors="replace").encode())
    return re.sub(_BACKSLASH, lambda backslash: backslash.group() if backslash.group(1) else rb"\\", text)


class _Digits(float):
    """A number that remembers how it was written."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> _Digits:
        number = super().__new__(cls, text)
        number.text = text
        return number


_SCANNER = json.JSONDecoder(
    # Digits of a whole number; int64 has 19, and Python refuses to convert some thousands.
    strict=False,
    parse_float=_Digits,
    parse_int=lambda text: int(text) if len(text) <= 40 else None,
)


class _UnreadableError(Exception):
    """No value can be decoded at a place."""

    def __init__(self, position: int, *, runs_out: bool) -> None:
        super().__init__()
        self.position = position
        self.runs_out = runs_out  # the text ended too early, rather than being wrong


class _Text:
    """A text to decode values from, with a limit to what may be decoded in vain."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Characters that may be decoded in vain.
        self._effort = 4 * len(text)

    def decode(self, at: int) -> tuple[object, int]:
        """Return the value that begins at a place, and where it ends.

        Raises:
            _UnreadableError: there is none.
        """
        # At first: an error costs as much as stands before it.
        width = 4096
        while True:
            try:
                value, length = _SCANNER.raw_decode(self.text[at : at + width])
            except json.JSONDecodeError as error:  # a longer piece may succeed
                self._effort -= error.pos
                if at + width >= len(self.text) or not _runs_out(error):
                    raise _UnreadableError(at + error.pos, runs_out=_runs_out(error)) from None
                width *= 8
            except RecursionError:  # no profiler nests so deeply
                self._effort -= width
                raise _UnreadableError(at + 1, runs_out=False) from None
            else:
                return value, at + length

    def next_event(self, start: int) -> int | None:
        """Return where the next event begins; objects within arguments have no ``ph``."""
        for found in _NEXT_EVENT.finditer(self.text, start):
            if self._effort < 0:
                return None
            try:
                value, _ = self.decode(found.end())
            except _UnreadableError:
                continue
            if isinstance(value, dict) and "ph" in value:
                return found.end()
        return None


def salvage(raw: bytes, *, is_last: bool = True) -> Salvage:
    """Take out of a list of events (without its opening bracket) what can be read.

    Where more text follows (not ``is_last``), an event that does not end may end in it, and is the ``rest``.
    """
    source = _Text(repair(raw).decode())
    text = source.text
    events: list[ExactEvent] = []
    at = num_skipped = 0
    while True:
        at = _SEPARATOR.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string too
        if text.startswith("]", at):
            return Salvage(events, num_skipped, True, text[at + 1 :].encode())
        try:
            value, end = source.decode(at)
        except _UnreadableError as error:
            beyond = (
                None if error.runs_out and not is_last else source.next_event(at if error.runs_out else error.position)
            )
            if beyond is None:
                return Salvage(events, num_skipped, False, text[at:].encode())
            at, num_skipped = beyond, num_skipped + 1
            continue
        if isinstance(value, dict):
            events.append(_event(value))
        at, num_skipped = end, num_skipped + (not isinstance(value, dict))


def _runs_out(error: json.JSONDecodeError) -> bool:
    return error.msg.startswith("Unterminated") or error.pos > len(error.doc) - _MAX_TOKEN_CHARS


def _event(value: Mapping[str, object]) -> ExactEvent:
    args = value.get("args")
    return ExactEvent(
        ph=_text(value.get("ph")),
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=_label(value.get("pid"), -1),
        tid=_label(value.get("tid"), ""),
        ts=Raw(_time(value.get("ts"))),
        dur=_duration(value.get("dur")),
        args=Args(**{name: read(args.get(key), default) for name, key, read, default in _ARGS})
        if isinstance(args, dict)
        else Args(),
    )


def _text(value: object, _default: object = None) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _label(value: object, default: int | str) -> int | str:
    return value if isinstance(value, (int, str)) else default


def _time(value: object) -> bytes:
    """Return the digits of a time, nothing where it is none."""
    if isinstance(value, _Digits):
        return value.text.encode()
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return str(value).encode(errors="replace")
    return b""


def _duration(value: object) -> float:
    """Return a duration, 0 where none was recorded and no time where it is no number."""
    if value is None:
        return 0.0
    try:
        return NO_TIME if isinstance(value, bool) else float(value)  # type: ignore[arg-type]  # anything else is caught
    except (TypeError, ValueError, OverflowError):
        return NO_TIME


def _whole(value: object, default: int = -1) -> int:
    if isinstance(value, int):
        return value
    try:
        return int(float(value))  # type: ignore[arg-type]  # anything else is caught
    except (TypeError, ValueError, OverflowError):
        return default


def _json(value: object, _default: object = None) -> Raw:
    return Raw(b"" if value is None else json.dumps(value).encode())


_BY_TYPE: Mapping[object, Callable[[object, Any], Any]] = {int: _whole, str: _text, Raw: _json}
_ARGS = [(f.name, f.encode_name, _BY_TYPE.get(f.type, _label), f.default) for f in structs.fields(Args)]

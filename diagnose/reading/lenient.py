"""The slow way through a block that is not what torch.profiler writes today.

First the text is repaired (bad UTF-8, ``nan``, single backslashes), then, where that is not enough, each event is
parsed alone and taken value by value; one that cannot be parsed at all is skipped and counted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Raw

from diagnose.reading.schema import Args, ExactEvent

__all__ = ["Salvage", "repair", "salvage"]

_NO_NUMBER = re.compile(rb"(?<=[\s:\[,])[-+]?(?:nan|NaN|inf|Infinity)(?:\(\w*\))?(?=\s*[,}\]])")
_BACKSLASH = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_SEPARATOR = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)")')
_LONGEST_TOKEN = len(r"-Infinity\u0000")  # an error this near to the end may be a token that is cut


@dataclass(frozen=True, slots=True)
class Salvage:
    """What a piece of text held; ``rest`` stands behind the list's end, or is the beginning of an event."""

    events: list[ExactEvent] = field(default_factory=list)
    num_skipped: int = 0
    ended: bool = False  # the list's closing bracket was seen
    rest: bytes = b""


def repair(text: bytes) -> bytes:
    """Return the text with the mistakes mended that exporters are known to make."""
    text = text.decode(errors="replace").encode()
    return _BACKSLASH.sub(_escaped, _NO_NUMBER.sub(b"null", text))


def _escaped(backslash: re.Match[bytes]) -> bytes:
    return backslash.group() if backslash.group(1) else rb"\\"


class _Digits(float):
    """A number that remembers how it was written."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> _Digits:
        number = super().__new__(cls, text)
        number.text = text
        return number


_SCANNER = json.JSONDecoder(strict=False, parse_float=_Digits)


def salvage(raw: bytes) -> Salvage:
    """Take out of a list of events (without its opening bracket) what can be read."""
    text = repair(raw).decode()
    events: list[ExactEvent] = []
    at = num_skipped = 0
    while True:
        at = _SEPARATOR.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string too
        if text.startswith("]", at):
            return Salvage(events, num_skipped, True, text[at + 1 :].encode())
        try:
            value, end = _SCANNER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            beyond = None if _runs_out(error) else _next_event(text, error.pos)
            if beyond is None:
                return Salvage(events, num_skipped, False, text[at:].encode())
            at, num_skipped = beyond, num_skipped + 1
            continue
        if isinstance(value, dict):
            events.append(_event(value))
        at, num_skipped = end, num_skipped + (not isinstance(value, dict))


def _runs_out(error: json.JSONDecodeError) -> bool:
    """Say whether the text ended too early, rather than being wrong."""
    return error.msg.startswith("Unterminated") or error.pos > len(error.doc) - _LONGEST_TOKEN


def _next_event(text: str, start: int) -> int | None:
    """Return where the next event begins; objects within arguments have no ``ph``."""
    for found in _NEXT_EVENT.finditer(text, start):
        try:
            value, _ = _SCANNER.raw_decode(text, found.end())
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict) and "ph" in value:
            return found.end()
    return None


def _event(value: Mapping[str, object]) -> ExactEvent:
    args = value.get("args")
    ts = value.get("ts")
    return ExactEvent(
        ph=_text(value.get("ph")),
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=_label(value.get("pid"), -1),
        tid=_label(value.get("tid"), ""),
        ts=Raw((ts.text if isinstance(ts, _Digits) else repr(_number(ts))).encode()),
        dur=_number(value.get("dur")),
        args=_args(args) if isinstance(args, dict) else Args(),
    )


def _args(args: Mapping[str, object]) -> Args:
    return Args(
        correlation=_whole(args.get("correlation")),
        device=_label(args.get("device"), -1),
        stream=_label(args.get("stream"), ""),
        bytes=_whole(args.get("bytes")),
        grid=_json(args.get("grid")),
        input_dims=_json(args.get("Input Dims")),
        input_types=_json(args.get("Input type")),
        sequence=_whole(args.get("Sequence number")),
        stack=_text(args.get("Call stack")),
        allocated=_whole(args.get("Bytes"), 0),
        total_allocated=_whole(args.get("Total Allocated")),
        total_reserved=_whole(args.get("Total Reserved")),
        address=_whole(args.get("Addr")),
        device_type=_whole(args.get("Device Type"), 0),
        device_id=_whole(args.get("Device Id")),
        awaits=_whole(args.get("wait_on_cuda_event_record_corr_id")),
        collective=_text(args.get("Collective name")),
        dtype=_text(args.get("dtype")),
        group_size=_whole(args.get("Group size")),
        num_elements=_whole(args.get("In msg nelems")),
        name=_text(args.get("name")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _label(value: object, default: int | str) -> int | str:
    return value if isinstance(value, (int, str)) else default


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # anything else is caught
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def _whole(value: object, default: int = -1) -> int:
    if isinstance(value, int):
        return value
    try:
        return int(float(value))  # type: ignore[arg-type]  # anything else is caught
    except (TypeError, ValueError, OverflowError):
        return default


def _json(value: object) -> Raw:
    return Raw(b"" if value is None else json.dumps(value).encode())

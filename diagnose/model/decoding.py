"""JSON files into typed records: what does not fit becomes one sentence that names the file and the field."""

from __future__ import annotations

import re
import threading
from typing import TypeVar

import msgspec

from diagnose.errors import InputError
from diagnose.text.plain_text import middle

__all__ = ["decode"]

_T = TypeVar("_T")
_ONE_AT_A_TIME = threading.Lock()  # msgspec crashes where two threads meet a type for the first time at once
_WHERE = r"(?s) - at (?:`key` in )?`\$\.?(?P<field>.*)`$"
_FORM = r"(?s)str matching regex .*"
_SURROGATE = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"  # the first of a pair, as JSON writes it
_PAIR_OR_HALF = rb"(" + _SURROGATE + rb"\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
MAX_CHARS = 120  # characters of what a decoder found wrong: it may repeat a key of the file


def decode(text: bytes | str, kind: type[_T], *, source: str, remedy: str) -> _T:
    """Return the JSON text as a record of the given type; fields that the type lacks are ignored.

    Half a surrogate pair, as a path that is not UTF-8 leaves it, becomes U+FFFD.

    Raises:
        InputError: it is no JSON, or a value has another type or lies outside its range.
    """
    try:
        with _ONE_AT_A_TIME:
            return _decoded(text.encode("utf-8", "replace") if isinstance(text, str) else text, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{source} cannot be used: {_fault(error)}. {remedy}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(f"{source} is not valid JSON. {remedy}") from None
    except RecursionError:
        raise InputError(f"{source} is nested too deeply to be read. {remedy}") from None


def _decoded(text: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        whole = re.sub(_PAIR_OR_HALF, lambda found: found[1] or rb"\ufffd", text)
        if whole == text:
            raise
        return msgspec.json.decode(whole, type=kind)


def _fault(error: msgspec.ValidationError) -> str:
    """Return "its field rank is wrong (expected int >= 0)"."""
    message = str(error)
    found = re.search(_WHERE, message)
    what = re.sub(_FORM, "a plain name", (message[: found.start()] if found else message).replace("`", ""))
    where = f"its field {middle(found['field'], MAX_CHARS)} is wrong" if found and found["field"] else "it is wrong"
    return f"{where} ({middle(what[:1].lower() + what[1:], MAX_CHARS)})"

"""Results as bytes and back: only the types of this package, arrays of numbers, and plain values.

Unlike a pickle, bytes from anywhere can at worst be refused: nothing in them is executed or imported.
"""

from __future__ import annotations

import gc
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias

import msgspec
import numpy as np

from diagnose.text.plain_text import is_utf8


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's collector from walking many objects of which none forms a cycle, such as a trace's events."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_Types: TypeAlias = Mapping[str, type]

_TUPLE, _LIST, _SET, _DICT, _ARRAY, _NUMBER = "()", "[]", "<>", "{}", "#", "."
_PLAIN = (bool, str, int, float)
_TAGS: dict[type, str] = {tuple: _TUPLE, list: _LIST, frozenset: _SET}


def pack(value: object, *types: type) -> bytes:
    """Return a value as bytes; ``types`` are records beside those of ``diagnose.model``.

    Raises:
        TypeError: it holds something of another type.
        OverflowError: it holds an integer of more than 64 bits.
    """
    return msgspec.msgpack.encode(_packed(value, _known(types)))


def utf8(value: Any) -> Any:
    """Return a text as bytes if UTF-8 does not have it, since a path may be of any bytes; anything else as it is."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) and not is_utf8(value) else value


def text_of(packed: Any) -> Any:
    """Return the text that `utf8` turned into bytes; anything else as it is."""
    return packed.decode("utf-8", "surrogatepass") if isinstance(packed, bytes) else packed


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Return what ``zlib.compress`` compressed, if it is no more than ``max_bytes``.

    Raises:
        ValueError: it is larger, cut off, or something else.
    """
    inflated = zlib.decompressobj()
    try:
        found = inflated.decompress(data, max_bytes)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not inflated.eof:
        raise ValueError("it is cut off" if len(found) < max_bytes else f"it holds more than {max_bytes} bytes")
    return found


def unpack(data: bytes, *types: type) -> object:
    """Return what ``pack`` packed with the same types.

    Raises:
        ValueError: these are other bytes, or of types that have changed since.
    """
    try:
        return _unpacked(msgspec.msgpack.decode(data), _known(types))
    except (ValueError, msgspec.DecodeError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(f"these bytes hold no result ({type(error).__name__})") from None


def _known(types: tuple[type, ...]) -> _Types:
    return {**_of_model(), **{kind.__name__: kind for kind in types}}


@cache
def _of_model() -> _Types:
    """Return the types that results are made of, by name."""
    from diagnose.model import charts, diagnosis, events, job, locations, rules

    modules = (charts, diagnosis, events, job, locations, rules)
    found = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {kind.__name__: kind for kind in found if is_dataclass(kind) or hasattr(kind, "_fields")}


def _packed(value: Any, types: _Types) -> Any:
    if isinstance(value, np.generic):  # rounds otherwise than Python's numbers do
        return [_NUMBER, value.dtype.str, value.tobytes()]
    if value is None or isinstance(value, _PLAIN):
        return utf8(value)
    if isinstance(value, np.ndarray):
        return [_ARRAY, value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, Mapping):
        return [_DICT, *(_packed(each, types) for item in value.items() for each in item)]
    kind = type(value)
    if kind in _TAGS:
        return [_TAGS[kind], *(_packed(each, types) for each in value)]
    if types.get(kind.__name__) is not kind:
        raise TypeError(f"{kind.__name__} is not a type of a result")
    return [kind.__name__, *(_packed(getattr(value, name), types) for name in _names(kind))]


def _names(kind: Any) -> list[str]:
    """Return the fields of a type that it is made from."""
    return list(kind._fields) if issubclass(kind, tuple) else [f.name for f in fields(kind) if f.init]


def _unpacked(packed: Any, types: _Types) -> Any:
    if not isinstance(packed, list):
        return text_of(packed)
    tag, *rest = packed
    if tag == _NUMBER:
        return np.frombuffer(rest[1], rest[0])[0]
    if tag == _ARRAY:
        return np.frombuffer(rest[2], rest[0]).reshape(rest[1]).copy()
    values = [_unpacked(each, types) for each in rest]
    if tag == _DICT:
        return dict(zip(values[::2], values[1::2], strict=True))
    for kind, known in _TAGS.items():
        if tag == known:
            return kind(values)
    record: Any = types[tag]
    return record(**dict(zip(_names(record), values, strict=True)))

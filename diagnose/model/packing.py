"""Results as bytes and back: only the types of this package, arrays of numbers, and plain values.

Unlike a pickle, bytes from anywhere can at worst be refused: nothing in them is executed or imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

import msgspec
import numpy as np

__all__ = ["pack", "unpack"]

_TUPLE, _LIST, _DICT, _ARRAY, _NUMBER = "()", "[]", "{}", "#", "."
_Packed = list[Any]


def pack(value: object) -> bytes:
    """Return a value as bytes.

    Raises:
        TypeError: it holds something of another type.
        OverflowError: it holds an integer of more than 64 bits.
    """
    return msgspec.msgpack.encode(_packed(value))


def unpack(data: bytes) -> object:
    """Return what ``pack`` packed.

    Raises:
        ValueError: these are other bytes, or of types that have changed since.
    """
    try:
        return _unpacked(msgspec.msgpack.decode(data))
    except (ValueError, msgspec.DecodeError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(f"these bytes hold no result ({type(error).__name__})") from None


@cache
def _types() -> dict[str, type]:
    """Return the types that results are made of, by name."""
    from diagnose.model import charts, diagnosis, events, forecast, places, rules

    modules = (charts, diagnosis, events, forecast, places, rules)
    found = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {kind.__name__: kind for kind in found if is_dataclass(kind) or hasattr(kind, "_fields")}


def _packed(value: object) -> Any:
    if isinstance(value, np.generic):  # rounds otherwise than Python's numbers do
        return [_NUMBER, value.dtype.str, value.tobytes()]
    if value is None or isinstance(value, (bool, str, int, float)):
        return value
    if isinstance(value, np.ndarray):
        return [_ARRAY, value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, Mapping):
        return [_DICT, *(_packed(each) for item in value.items() for each in item)]
    if type(value) in (list, tuple):
        return [_LIST if isinstance(value, list) else _TUPLE, *map(_packed, cast("Iterable[object]", value))]
    return _packed_record(value)


def _packed_record(value: Any) -> _Packed:
    kind = type(value)
    if _types().get(kind.__name__) is not kind:
        raise TypeError(f"{kind.__name__} is no type of a result")
    return [kind.__name__, *(_packed(getattr(value, name)) for name in _names(kind))]


def _names(kind: Any) -> list[str]:
    """Return the fields of a type that it is made from."""
    return list(kind._fields) if issubclass(kind, tuple) else [f.name for f in fields(kind) if f.init]


def _unpacked(packed: Any) -> Any:
    if not isinstance(packed, list):
        return packed
    kind, *rest = packed
    if kind == _NUMBER:
        return np.frombuffer(rest[1], rest[0])[0]
    if kind == _ARRAY:
        return np.frombuffer(rest[2], rest[0]).reshape(rest[1]).copy()
    values = [_unpacked(each) for each in rest]
    if kind == _DICT:
        return dict(zip(values[::2], values[1::2], strict=True))
    if kind in (_LIST, _TUPLE):
        return values if kind == _LIST else tuple(values)
    record: Any = _types()[kind]
    names = _names(record)
    if len(names) != len(values):
        raise TypeError(f"{kind} has other fields")
    return record(**dict(zip(names, values, strict=True)))

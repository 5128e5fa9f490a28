"""Numbers and texts as JSON holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

from diagnose.model.locations import Where

__all__ = ["Json", "each", "ms", "plain", "share", "text", "where_to_dict"]

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
_T = TypeVar("_T")


def each(convert: Callable[[_T], Json], values: Iterable[_T]) -> list[Json]:
    """Return the values, converted."""
    return [convert(value) for value in values]


def share(value: float | None) -> float | None:
    """Return a share or a factor with nine decimals; None where it is not finite."""
    return round(float(value), 9) if value is not None and math.isfinite(value) else None


def ms(ns: float) -> float | None:
    """Return milliseconds with six decimals, which are whole nanoseconds."""
    return round(ns / 1e6, 6) if math.isfinite(ns) else None


def text(value: str) -> str:
    """Keep a string as it is, but escape half a surrogate pair, which no strict reader accepts."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if not value.isascii() else value


def where_to_dict(w: Where) -> dict[str, Json]:
    """Return a place."""
    fields: dict[str, Json] = {"file": w.file, "line": w.line, "op": w.op, "function": w.function, "code": w.code}
    fields |= {"library": w.library, "last_line": w.last_line}
    return {**{k: plain(v) for k, v in fields.items()}, "stack": each(text, w.stack)}


def plain(value: object) -> Json:
    """Return what an analyzer or a sampler put into a mapping as JSON values; what has no such form becomes text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return share(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    item = getattr(value, "item", None)  # a number of numpy or torch
    return plain(item()) if callable(item) and getattr(value, "ndim", None) == 0 else text(str(value))

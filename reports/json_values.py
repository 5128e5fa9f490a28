"""Numbers and texts as JSON holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

__all__ = ["Json", "each", "ms", "share", "text"]

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

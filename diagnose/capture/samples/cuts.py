"""Which share of a result a sample uses: the rest of a large one need not be computed.

A sample that cuts a result uses that part. It could compute the part alone if the same operation, on the same part of
what it reads, gives the same: that is tried, and what the operation reads is followed as long as it holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np

__all__ = ["Cuts", "Made"]

MIN_ELEMENTS = 1024  # of a result: less is computed in no time
TOLERANCE = 1e-5  # of the part against the whole: vector instructions round otherwise than single ones
_LIBRARIES = frozenset({"numpy", "scipy", "torch"})  # whose Python functions may be called once more


class Made:
    """One result and how it was made."""

    __slots__ = ("args", "function", "named", "number", "result", "used")

    def __init__(
        self, number: int, result: Any, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        self.number, self.result = number, result  # of the expression
        self.function, self.args, self.named = function, args, named
        self.used = 0.0  # share that cuts take of it, 0 where it cannot be computed for these alone


class Cuts:
    """Follows the results of one sample; those with one use are ``single``, by the number of their expression."""

    def __init__(self, single: Collection[int]) -> None:
        self._single = single
        self._made: dict[int, list[Made]] = defaultdict(list)  # by the address of the result, which lives as long
        self._passed: set[int] = (
            set()
        )  # addresses of what the script's own functions were given: they may use all of it
        self._sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])  # elements used and all, by expression

    def call(self, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Take notice that a function is about to be called."""
        if _is_of_script(function):
            self._passed.update(id(each) for each in (*args, *named.values()) if _size(each))

    def add(self, made: Made) -> None:
        """Take notice of a result."""
        if _size(made.result) >= MIN_ELEMENTS:
            self._made[id(made.result)].append(made)

    def cut(self, held: Any, at: Any, part: Any) -> None:
        """Take notice that a part of something is taken."""
        if id(held) in self._made and 0 < _size(part) < _size(held):
            self._follow(held, at, _size(part) / _size(held))

    def end_sample(self) -> None:
        """Sum up, and let the results go."""
        for each in self._made.values():
            for made in each:
                sums, size = self._sums[made.number], _size(made.result)
                sums[0] += size * (min(made.used, 1.0) or 1.0)
                sums[1] += size
        self._made.clear()
        self._passed.clear()

    def used(self, number: int) -> float:
        """Return which share of an expression's results the samples use; 1 if it is not known."""
        used, total = self._sums.get(number, (1.0, 1.0))
        return used / total

    def _follow(self, held: Any, at: Any, share: float) -> None:
        makers = self._made.get(id(held), [])
        if id(held) in self._passed or not all(made.number in self._single for made in makers):
            return
        for made in makers:
            if _is_by_part(made, at):
                made.used += share
                owner = getattr(made.function, "__self__", None)
                for each in (owner, *made.args):
                    if _size(each) == _size(held) and each is not held:
                        self._follow(each, at, share)


def _is_of_script(function: Callable[..., Any]) -> bool:
    """Return whether a function is neither a library's nor written in C."""
    is_python = isinstance(function, FunctionType | MethodType)
    return is_python and function.__module__.partition(".")[0] not in _LIBRARIES


def _is_by_part(made: Made, at: Any) -> bool:
    """Return whether an operation on a part of what it reads gives that part of its result."""
    function, shape = made.function, made.result.shape
    if _is_of_script(function) or any(_size(each) for each in made.named.values()):  # such as what it writes into
        return False
    try:
        owner = getattr(function, "__self__", None)
        if _size(owner):
            function = getattr(_part(owner, shape, at), function.__name__)
        args = [_part(each, shape, at) if _size(each) else each for each in made.args]
        if not any(_size(each) == _size(made.result) for each in (owner, *made.args)):
            return False
        part, expected = function(*args, **made.named), made.result[at]
        is_like = part.shape == expected.shape and part.dtype == expected.dtype
        return is_like and bool(np.allclose(part, expected, TOLERANCE, TOLERANCE, equal_nan=True))
    except Exception:  # an operation that needs all of it may answer in any way
        return False


def _part(held: Any, shape: Sequence[int], at: Any) -> Any:
    """Return a copy of the part of an operand that belongs to a part of the result: the operation may write to it."""
    if isinstance(held, np.ndarray):
        return np.array(np.broadcast_to(held, tuple(shape))[at])
    return held.expand(*shape)[at].clone()


def _size(held: Any) -> int:
    """Return the number of elements of an array or tensor of numbers, 0 of anything else and of a single number."""
    if isinstance(held, np.ndarray):
        return held.size if held.ndim and not held.dtype.hasobject else 0
    if type(held).__module__ == "torch" and hasattr(held, "numel"):
        return int(held.numel()) if held.ndim else 0
    return 0

"""The function of the script's that makes a loader's batches: what collates samples, or the dataset's own method."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType
from typing import Any

from diagnose.capture.record.sampler import is_users

__all__ = ["batch_maker"]


def batch_maker(loader: Any, dataset: object) -> tuple[str, int, int, str] | None:
    """Return the file, first and last line, and name of the function; None where libraries make the batches."""
    methods = (getattr(type(dataset), name, None) for name in ("__getitem__", "__iter__"))
    for function in (getattr(loader, "collate_fn", None), *methods):
        code = _code_of(function)
        if code is not None and is_users(code):
            last = max(_lines(code), default=code.co_firstlineno)
            return code.co_filename, code.co_firstlineno, last, code.co_name
    return None


def _code_of(function: Any) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):  # an object that is called
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _lines(code: CodeType) -> Iterator[int]:
    yield from (line for *_, line in code.co_lines() if line is not None)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _lines(inner)

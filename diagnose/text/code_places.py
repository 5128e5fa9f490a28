"""Where code that was recorded stands: file, line and name, as a report shows them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType


def place_of(called: Callable[..., object]) -> str:
    """Return file, line and name of a function: of a wrapped one, a method, or an object that is called."""
    while isinstance(called, partial):
        called = called.func
    called = inspect.unwrap(called)
    code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
    name: str = getattr(called, "__qualname__", type(called).__qualname__)
    return f"{from_here(code.co_filename)}:{code.co_firstlineno} in {name}" if code is not None else name


def line_of(frame: FrameType) -> str:
    """Return the file and line that a frame stands at."""
    return f"{from_here(frame.f_code.co_filename)}:{frame.f_lineno}"


def from_here(file: str) -> str:
    """Return a file without the working folder that it is in."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file

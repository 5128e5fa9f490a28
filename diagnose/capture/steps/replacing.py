"""Replaces a function of a class or a module, and puts it back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["OnEvent", "Undo", "around", "replace_function"]

OnEvent: TypeAlias = Callable[[object], None]
"""Called at each event with the object that it comes from."""
Undo: TypeAlias = Callable[[], None]


def replace_function(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Undo:
    """Replace a function of a class or module by what ``make`` returns for it.

    The function returned puts the original back, unless somebody else has replaced it since.
    """
    original = getattr(owner, name)
    replacement = functools.wraps(original)(make(original))
    setattr(owner, name, replacement)

    def undo() -> None:
        if getattr(owner, name, None) is replacement:
            setattr(owner, name, original)

    return undo


def around(cls: type, name: str, *, before: OnEvent | None = None, after: OnEvent | None = None) -> Undo:
    """Call ``before`` and ``after`` with the object around each call of the method ``name``."""

    def make(original: Any) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(self)
            result = original(self, *args, **kwargs)
            if after is not None:
                after(self)
            return result

        return wrapped

    return replace_function(cls, name, make)

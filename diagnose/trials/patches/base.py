"""What a patch is: a change to torch's classes that an unmodified script meets, and that can be undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from diagnose.errors import DiagnoseError

__all__ = ["CannotApply", "Install", "Log", "Patch", "Promise", "Undo", "replace_attribute"]

Undo: TypeAlias = Callable[[], None]
Promise: TypeAlias = Literal["identical", "rounding", "reduced"]
"""What happens to the numbers: nothing, another order of roundings, or arithmetic of fewer bits."""


class CannotApply(DiagnoseError):  # noqa: N818  # what it says of a patch
    """A patch meets something that it cannot follow: the trial ends there, and the sentence is its result."""


class Log:
    """What a patch did to the script: one line for each kind of thing that it changed."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.refused: list[str] = []

    def did(self, what: str) -> None:
        """Note a change, once."""
        if what not in self.done:
            self.done.append(what)

    def left(self, why: str) -> None:
        """Note something that could have been changed but was left alone, once."""
        if why not in self.refused:
            self.refused.append(why)


Install: TypeAlias = Callable[[Log, Mapping[str, Any]], Undo]


@dataclass(frozen=True)
class Patch:
    """One change that can be made from outside.

    ``install`` is called once torch has been imported, with a log and with options such as ``{"workers": 4}``.
    ``environment`` is set for the whole process before torch is imported. What ``compiles`` may take minutes until its
    first step, and is killed when it takes too long, so it never writes to the compiler's cache of the user.
    """

    id: str
    title: str
    promise: Promise
    install: Install | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_gpu: bool = False
    compiles: bool = False
    group: str = ""  # of changes to the same thing: only the best of them goes into a combination


def replace_attribute(owner: Any, name: str, value: Any) -> Undo:  # a class or a module, any attribute
    """Set an attribute and return what puts the former one back, unless someone else has replaced it since."""
    before = owner.__dict__[name] if name in vars(owner) else None
    setattr(owner, name, value)

    def undo() -> None:
        if vars(owner).get(name) is value:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    return undo

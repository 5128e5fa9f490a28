"""What the functions of patches share: a log, and the way in which an attribute is replaced and put back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from diagnose.errors import DiagnoseError

__all__ = ["CannotApply", "Install", "Log", "Undo", "replace_attribute"]

Undo: TypeAlias = Callable[[], None]


class CannotApply(DiagnoseError):
    """A patch meets something that it cannot follow: the trial ends there, and the sentence is its result."""


class Log:
    """What a patch did to the script: one line for each kind of thing that it changed."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.refused: list[str] = []
        self._open: list[tuple[Callable[[], bool], str, str]] = []

    def did_unless(self, fell_back: Callable[[], bool], what: str, why: str) -> None:
        """Note a change that may take itself back while the script runs: `settle` checks whether it has."""
        self._open.append((fell_back, what, why))

    def settle(self) -> None:
        """Note what became of the changes that could take themselves back; the script has ended."""
        while self._open:
            fell_back, what, why = self._open.pop(0)
            if fell_back():
                self.left(why)
            else:
                self.did(what)

    def did(self, what: str) -> None:
        """Note a change, once."""
        if what not in self.done:
            self.done.append(what)

    def left(self, why: str) -> None:
        """Note something that could have been changed but was left alone, once."""
        if why not in self.refused:
            self.refused.append(why)


Install: TypeAlias = Callable[[Log, Mapping[str, Any]], Undo]


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

"""Notices profilers that the script itself starts: two at once would ruin each other."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from diagnose.capture.steps.replacing import Undo, around

__all__ = ["OtherProfilers"]

OWN_MODULES = "diagnose.capture."


class OtherProfilers:
    """Watches torch.autograd.profiler.profile, which every profiler of torch creates once per cycle."""

    def __init__(self, on_start: Callable[[], None]) -> None:
        self.place = ""  # "file:line" where the script made its latest profiler
        self._on_start = on_start
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._undo: Undo = lambda: None

    def watch(self) -> None:
        """Begin watching; torch must have been imported."""
        from torch.autograd import profiler as torch_profiler

        self._undo = around(torch_profiler.profile, "__init__", after=self._profiler_made)

    def _profiler_made(self, profiler: Any) -> None:
        frame = _caller()
        if not str(frame.f_globals.get("__name__")).startswith(OWN_MODULES):
            self._made.add(profiler)
            self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self._on_start()

    def forget(self) -> None:
        """Stop watching."""
        self._undo()

    def active(self) -> bool:
        """Return whether a profiler of the script is being prepared or runs."""
        from torch import autograd

        enabled: Any = vars(autograd)["_profiler_enabled"]  # there is no public name for it
        return bool(enabled()) or any(
            getattr(p, "entered", False) and getattr(p, "kineto_results", None) is None for p in list(self._made)
        )


def _caller() -> FrameType:
    """Return the innermost frame outside torch."""
    frame = sys._getframe(3)  # past this, what calls it and the function around the constructor
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("torch", "contextlib"):
            break
        frame = frame.f_back
    return frame

"""Hooks for what tells the phases of a run apart: gradients off, a module's mode, a checkpoint being written.

Like those in `hooks`, each installs one hook and returns a function that removes it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from diagnose.capture.steps.hooks import Undo

__all__ = ["watch_gradients", "watch_modes", "watch_saves"]

OnSwitch: TypeAlias = Callable[[bool], None]


def watch_gradients(off: OnSwitch) -> Undo:
    """Report where ``torch.no_grad`` or ``torch.inference_mode`` switch gradients off, and where that is over.

    Regions within such a region are not reported, nor what an autograd function computes without gradients.
    """
    import torch

    regions = [_watch_region(kind, off) for kind in (torch.no_grad, torch.inference_mode)]

    def undo() -> None:
        for forget in regions:
            forget()

    return undo


def _watch_region(region: type, off: OnSwitch) -> Undo:
    import torch

    enter, leave = region.__enter__, region.__exit__  # type: ignore[attr-defined]  # both are context managers
    enabled = torch.is_grad_enabled

    @functools.wraps(enter)
    def watched_enter(self: Any) -> Any:
        outermost = enabled()
        result = enter(self)
        if outermost and not enabled():
            off(True)
        return result

    @functools.wraps(leave)
    def watched_leave(self: Any, *error: Any) -> Any:
        inside = not enabled()
        result = leave(self, *error)
        if inside and enabled():
            off(False)
        return result

    region.__enter__, region.__exit__ = watched_enter, watched_leave  # type: ignore[attr-defined]

    def undo() -> None:
        if region.__enter__ is watched_enter:  # type: ignore[attr-defined]
            region.__enter__, region.__exit__ = enter, leave  # type: ignore[attr-defined]

    return undo


def watch_modes(switched: Callable[[Any, bool], None]) -> Undo:
    """Report each call of ``module.train()`` or ``module.eval()`` that changes a module's mode; its children follow."""
    from torch.nn import Module

    original = Module.train
    busy = False

    @functools.wraps(original)
    def watched(self: Any, mode: bool = True) -> Any:  # torch's signature
        nonlocal busy
        if busy:
            return original(self, mode)
        busy, before = True, self.training
        try:
            result = original(self, mode)
        finally:
            busy = False
        if before != self.training:
            switched(self, self.training)
        return result

    Module.train = watched  # type: ignore[method-assign]  # wrapped on purpose

    def undo() -> None:
        if Module.train is watched:
            Module.train = original  # type: ignore[method-assign]

    return undo


def watch_saves(saving: OnSwitch) -> Undo:
    """Report begin and end of each ``torch.save``."""
    import torch

    original = torch.save

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> None:
        saving(True)
        try:
            original(*args, **kwargs)
        finally:
            saving(False)

    torch.save = watched

    def undo() -> None:
        with contextlib.suppress(AttributeError):
            if torch.save is watched:
                torch.save = original

    return undo

"""Puts full collections of garbage off while steps are recorded.

What is recorded are many objects that live on, which makes Python search all objects of the process again: 0.1 s each
time with torch imported, more than all else that recording takes. Young objects are collected as always.
"""

from __future__ import annotations

import gc

from diagnose.capture.steps.hooks import Undo

__all__ = ["no_full_collections"]

_NEVER = (1 << 31) - 1


def no_full_collections() -> Undo:
    """Let no full collection start by itself; return what ends that, and leaves thresholds set meanwhile."""
    before = gc.get_threshold()
    held = (*before[:2], _NEVER)
    gc.set_threshold(*held)

    def undo() -> None:
        if gc.get_threshold() == held:
            gc.set_threshold(*before)

    return undo

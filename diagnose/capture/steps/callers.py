"""Which calls of a module prepare data: those of a dataset, and of modules that hold nothing to be trained.

The transforms of torchvision are modules, and an evaluation calls them once a sample, its model once a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["by_torch", "in_module", "prepares_data"]

DATA_METHODS = frozenset({"__getitem__", "__getitems__"})
MAX_FRAMES = 60  # looked at: a loop's own stack is far shallower
_HOOKS = ("diagnose.", "torch.utils._contextlib")  # between a region and who has entered it
_OF_TORCH = ("torch.nn.", "torch.optim.")
_MODULES = "torch.nn.modules.module"
_MODULE_CALLS = frozenset({"_call_impl", "_wrapped_call_impl"})


def prepares_data(module: Any) -> bool:
    """Return whether a module that is being called has neither parameters nor buffers, or is called by a dataset."""
    try:
        empty = next(module.parameters(), None) is None and next(module.buffers(), None) is None
    except Exception:  # a module of the script may answer in any way
        return False
    return empty or _is_below(lambda frame: frame.f_code.co_name in DATA_METHODS)


def in_module() -> bool:
    """Return whether this is executed by the forward pass of a module."""
    return _is_below(
        lambda frame: frame.f_code.co_name in _MODULE_CALLS and frame.f_globals.get("__name__") == _MODULES
    )


def by_torch() -> bool:
    """Return whether torch itself switches gradients off: it copies a state, initialises or updates weights."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_HOOKS):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith(_OF_TORCH)


def _is_below(wanted: Callable[[FrameType], bool]) -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        if wanted(frame):
            return True
        frame = frame.f_back
    return False

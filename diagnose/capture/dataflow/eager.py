"""Lets what torch.compile has made run eagerly, and what compiles itself run as it does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["EagerStance"]


class EagerStance:
    """The compiler's stance while steps are recorded."""

    def __init__(self) -> None:
        self._before: Any = None

    def start(self) -> None:
        """Run compiled regions eagerly; does nothing where nothing has been compiled."""
        compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
        if compiler is not None:
            self._before = compiler._stance
            torch.compiler.set_stance("force_eager")

    def stop(self) -> None:
        """Put the stance back that was there."""
        compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
        if self._before is not None:
            compiler._set_stance(self._before)
            self._before = None

    @contextmanager
    def left(self) -> Iterator[None]:
        """Compile in this block as if nothing were recorded, without any mode."""
        self.stop()
        try:
            with _disable_current_modes():
                yield
        finally:
            self.start()

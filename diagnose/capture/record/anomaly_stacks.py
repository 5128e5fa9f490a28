"""Measures how long autograd's anomaly detection takes to record the stack of an operator, as deep as a model calls."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from diagnose.capture.steps.hooks import Undo, replace_function

__all__ = ["AnomalyStacks"]

STACKS = 3  # that are timed: the first one reads source lines


class AnomalyStacks:
    """Watches the calls of modules on the thread that starts it, until one runs under anomaly detection."""

    def __init__(self) -> None:
        self._undo: Undo | None = None
        self._thread = 0
        self.stack_ns = 0  # that one stack takes, 0 where anomaly detection is off

    def start(self) -> None:
        """Begin to watch; what was measured before is forgotten."""
        from torch.nn import Module

        self.stop()
        self._thread, self.stack_ns = threading.get_ident(), 0
        self._undo = replace_function(Module, "_call_impl", self._watched)

    def stop(self) -> None:
        """End watching."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _watched(self, call: Any) -> Callable[..., Any]:
        def watched_call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.stack_ns and threading.get_ident() == self._thread:
                self.stack_ns = _stack_ns()
            return call(module, *args, **kwargs)

        return watched_call


def _stack_ns() -> int:
    import torch

    if not torch.is_anomaly_enabled():
        return 0
    took = []
    for _ in range(STACKS):
        began = time.perf_counter_ns()
        traceback.format_stack()
        took.append(time.perf_counter_ns() - began)
    return min(took)

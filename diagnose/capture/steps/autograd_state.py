"""What autograd does on this thread at this moment."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["gradients_on", "in_backward"]

_graph_task_id: Callable[[], int] | None = None  # torch's, from when it is imported


def gradients_on() -> bool:
    """Return whether operators are recorded for a backward pass, or would be once torch is imported."""
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def in_backward() -> bool:
    """Return whether this thread is executing a backward pass."""
    global _graph_task_id  # noqa: PLW0603  # looked up once: this is called at each step
    if _graph_task_id is None:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "_C"):
            return False
        _graph_task_id = torch._C._current_graph_task_id
    return _graph_task_id() != -1

"""The explicit step marker: call ``diagnose.step()`` once per training step where steps are not found by themselves.

Outside a trace it does nothing and costs one comparison, so it can stay in the script. It never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable

_listener: Callable[[], None] | None = None


def step() -> None:
    """Mark the end of a step; a no-op outside ``diagnose trace``."""
    if _listener is not None:
        _listener()


def is_listened_to() -> bool:
    """Return whether a capture or a watch counts the marks of this process."""
    return _listener is not None


def set_listener(listener: Callable[[], None] | None) -> None:
    """Call ``listener`` at every mark; None removes it."""
    global _listener  # noqa: PLW0603  # one listener per process, as there is one capture per process
    _listener = listener

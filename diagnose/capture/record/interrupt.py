"""Runs a function on the main thread in the middle of a step, as soon as that thread executes Python again.

A thread waits until the function is due and sends the main thread SIGURG, which a program ignores without
a handler; a script that has its own handler for it keeps it, and is then not interrupted. A wait such as time.sleep
goes on after it. While the main thread is inside a C function that returns late, nothing can be done.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["StepInterrupt"]

AGAIN_S = 0.05  # until the next try, where the thread was inside a boundary or a backward pass
MAX_WAIT_S = 1.0  # between two looks


class StepInterrupt:
    """Calls ``act`` once ``due_in``, the seconds until the next look, is not above 0."""

    def __init__(self, due_in: Callable[[], float], act: Callable[[], None]) -> None:
        self._due_in, self._act = due_in, act
        self._owner = os.getpid()
        self._changed = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch, where this is the main thread and the signal is free; no effect where it does already."""
        free = signal.getsignal(signal.SIGURG) == signal.SIG_DFL
        if threading.current_thread() is threading.main_thread() and free:
            signal.signal(signal.SIGURG, self._arrived)
            self._thread = threading.Thread(target=self._watch, name="diagnose-limits", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Compute the time until the next look again."""
        self._changed.set()

    def stop(self) -> None:
        """End the watch and leave the signal as it was."""
        self._over = True
        self._changed.set()
        if self._thread is not None and os.getpid() == self._owner:
            self._thread = None
            if signal.getsignal(signal.SIGURG) == self._arrived:
                signal.signal(signal.SIGURG, signal.SIG_DFL)

    def _watch(self) -> None:
        main = threading.main_thread().ident or 0
        while not self._over:
            wait = self._due_in()
            if wait <= 0:
                signal.pthread_kill(main, signal.SIGURG)
                wait = AGAIN_S
            self._changed.wait(min(wait, MAX_WAIT_S))
            self._changed.clear()

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        if not self._over and os.getpid() == self._owner and self._due_in() <= 0:
            self._act()

"""A signal that asks a run for something, taken where the program has no use for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["SignalRequest"]


class SignalRequest:
    """Calls ``act`` when the signal arrives, between ``take`` and ``give_back``; "" is no signal."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act
        self._handled: signal.Signals | None = None

    def take(self) -> None:
        """Take the signal, where this is the main thread and the program leaves it to the system."""
        if not self._name or threading.current_thread() is not threading.main_thread():
            return
        number = signal.Signals[self._name]
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, self._arrived)
            self._handled = number

    def give_back(self) -> None:
        """Leave the signal to the system again, unless somebody else has taken it since."""
        if self._handled is not None and signal.getsignal(self._handled) == self._arrived:
            signal.signal(self._handled, signal.SIG_DFL)

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        self._act()

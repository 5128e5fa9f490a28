"""Lets SIGTERM and SIGHUP end ``diagnose prove`` as Ctrl-C does: runs are ended and folders removed on the way out."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["EndedBySignal", "ended_by_signals"]

NUMBERS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(BaseException):  # not an error: no handler of errors may keep it
    """Unwinds the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number  # as a shell shows it


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `EndedBySignal` in the block at the first signal; what is ignored, as under nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield
        return
    before = {number: signal.getsignal(number) for number in NUMBERS}

    def end(number: int, _frame: object) -> None:
        for other in NUMBERS:  # a second one must not interrupt the cleaning up
            signal.signal(other, signal.SIG_IGN)
        raise EndedBySignal(number)

    for number in NUMBERS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Stop signals: SIGTERM and SIGHUP unwind the script, and none of them disturbs the writing of the capture.

A signal that goes to the whole process group ends the script's worker processes too, and the script then often fails
with an error about them: `stopped_by` is what really ended it.

A thread that trains cannot end the program by raising. `unwind_main` raises on the main thread instead, in the handler
of SIGCONT, which a program ignores without one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeAlias

__all__ = ["Killed", "StopSignals"]

UNWINDING = (signal.SIGTERM, signal.SIGHUP)
DEFERRED = (*UNWINDING, signal.SIGINT)
STOP_S = 5.0  # within which the main thread executes Python again, unless it stays in a call of C such as a GUI's loop

Handler: TypeAlias = Callable[[int, "FrameType | None"], None]


class Killed(BaseException):  # not an error of the script
    """Unwinds the script after SIGTERM or SIGHUP, so that what was captured is kept."""


class StopSignals:
    """The handlers of one run; a handler of the script's own has precedence while the script runs."""

    def __init__(self) -> None:
        self.stopped_by = 0  # the signal that unwound the script
        self.deferred = 0  # the latest signal that came while the capture was written
        self._owner = os.getpid()
        self._ours = threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self._requests: list[tuple[BaseException, threading.Event]] = []  # for the main thread, which sets the event

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Unwind the script upon a signal that it leaves alone; on the way out put every handler back."""
        handlers: dict[int, Handler] = {**dict.fromkeys(UNWINDING, self._unwind), signal.SIGCONT: self._raise_requested}
        mine = {n: h for n, h in handlers.items() if self._ours and signal.getsignal(n) == signal.SIG_DFL}
        for number, handler in mine.items():
            signal.signal(number, handler)
        try:
            yield
        finally:
            for deferred, before in self._before.items():
                signal.signal(deferred, before)
            for number, handler in mine.items():
                if signal.getsignal(number) == handler:
                    signal.signal(number, signal.SIG_DFL)

    def unwind_main(self, error: BaseException) -> bool:
        """Raise ``error`` on the main thread, from another one; return whether it is raised.

        It is not if the script handles SIGCONT itself, has ended, or keeps the main thread in a call of C.
        """
        if os.getpid() != self._owner or signal.getsignal(signal.SIGCONT) != self._raise_requested:
            return False
        request = (error, threading.Event())
        self._requests.append(request)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGCONT)
        request[1].wait(STOP_S)
        try:
            self._requests.remove(request)
        except ValueError:  # it was taken
            return True
        return False

    def _raise_requested(self, _number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return
        error: BaseException | None = None
        with contextlib.suppress(IndexError):
            while True:
                error, taken = self._requests.pop()
                taken.set()
        if error is not None:
            raise error

    def defer(self) -> None:
        """From here on only remember signals; the DataLoader's own handler would report workers that were ended."""
        if not self._ours or os.getpid() != self._owner:
            return
        while True:
            try:
                self._silence_children()
                if signal.getsignal(signal.SIGCONT) == self._raise_requested:
                    self._replace(signal.SIGCONT, _do_nothing)
                for number in DEFERRED:
                    if signal.getsignal(number) not in (signal.SIG_IGN, None):
                        self._replace(number, self._remember)
            except Killed:  # tried until no handler raises
                self.deferred = self.stopped_by
            except KeyboardInterrupt:
                self.deferred = signal.SIGINT
            except Exception:  # a handler that was still in its place has raised
                continue
            else:
                return

    def _replace(self, number: int, handler: Handler) -> None:
        before = signal.getsignal(number)
        if before != handler:
            self._before.setdefault(number, before)
            signal.signal(number, handler)

    def _silence_children(self) -> None:
        """Let no handler of SIGCHLD raise: torch's does for each worker that a signal has ended."""
        if callable(signal.getsignal(signal.SIGCHLD)):
            self._replace(signal.SIGCHLD, _do_nothing)

    def _unwind(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._owner:
            self.stopped_by = number
            self._silence_children()  # the iterators that unwinding removes end their workers
            raise Killed
        self._die(number)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._owner:
            self.deferred = number
        else:
            self._die(number)

    def _die(self, number: int) -> None:
        """End a forked child as the signal always did."""
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Stand for a handler; SIG_DFL would make the interpreter report a signal that has arrived already."""

"""Records one window of steps after another, with the profiler's own faults kept away from the script."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import TypeAlias

from diagnose.capture.measured import Measured, Surroundings
from diagnose.capture.window import Window, WindowKind
from diagnose.files import reason

__all__ = ["Recorder", "Steps", "first_line"]

Steps: TypeAlias = Generator[None, int, None]
"""Resumed at every step boundary with the duration of the step that is over, ns."""


class Recorder:
    """Holds the window that is open, if one is; a profiler that the script starts takes precedence."""

    def __init__(self, around: Surroundings, measured: Measured) -> None:
        self._around = around
        self._measured = measured
        self._together = around.num_ranks > 1
        self._window: Window | None = None
        self._marking = False
        self._disturbed = False

    def end_step(self) -> None:
        """Close the mark of the step that is over."""
        if self._window is not None:
            self._window.end_step()

    def begin_step(self, number: int) -> None:
        """Open the mark of the next step."""
        if self._window is not None and self._marking:
            self._window.begin_step(number)

    def disturb(self) -> None:
        """Give way at once to a profiler that the script starts."""
        if self._window is not None:
            self._disturbed = True
            self._window.stop()
            self._window = None

    def record(self, kind: WindowKind, num_steps: int, full: Callable[[float], bool]) -> Steps:
        """Record one window; where the script's own profiler is in the way, try again once it is gone.

        ``full`` is asked after every step, with the memory held at the window's start, whether to close it early.
        """
        while True:
            while not self._together and self._around.foreign_active():
                yield
            complete = yield from self._attempt(kind, num_steps, full)
            if complete or self._together:
                return

    def _attempt(self, kind: WindowKind, num_steps: int, full: Callable[[float], bool]) -> Generator[None, int, bool]:
        """Record one window; return False if the script's own profiler cut it off."""
        self._disturbed = False
        times: list[int] = []
        self._window = None if self._around.foreign_active() else self._start(kind, num_steps)
        began, grown_from = time.time_ns(), self._around.grown_mb()
        try:
            yield  # recorded but not marked: the profiler's own first step is slow
            began = time.time_ns()
            self._marking = True
            self._around.sampling(kind == "light")
            while len(times) < num_steps and (self._together or not self._disturbed):
                times.append((yield))
                if full(grown_from):
                    break
        finally:
            self._around.sampling(False)
            window, self._window, self._marking = self._window, None, False
            if window is not None:
                self._write(window, times, (began, time.time_ns()))
        return not self._disturbed

    def _start(self, kind: WindowKind, num_steps: int) -> Window | None:
        self._around.say(f"capturing {num_steps} steps ({kind} window)")
        try:
            window = Window(kind)
            window.start()
        except Exception as error:  # the profiler failing must not end the user's script
            self._measured.notes.append(f"The profiler could not start ({first_line(error)}).")
            return None
        return window

    def _write(self, window: Window, times: list[int], span: tuple[int, int]) -> None:
        """Stop the profiler and write what it has, provided that there is a whole step in it."""
        try:
            window.stop()
            if window.num_steps <= (len(self._measured.light) if window.kind == "light" else 0):
                return  # nothing whole in it, or less than an earlier window has
            name = f"{self._around.prefix}.{window.kind}.pt.trace.json.gz"
            self._around.say(f"writing {name}")
            size = window.export(self._around.folder / name)
        except Exception as error:  # the profiler failing must not end the user's script
            self._measured.notes.append(f"The {window.kind} window could not be written: {_why(error)}")
            return
        self._measured.files[window.kind] = name
        self._measured.spans[window.kind] = span
        self._measured.flags[window.kind] = window.flags
        if window.kind == "light":
            self._measured.light, self._measured.light_mb = times[: window.num_steps], size
        else:
            self._measured.attribution = times[: window.num_steps]
        self._around.wrote()


def _why(error: Exception) -> str:
    return reason(error) if isinstance(error, OSError) else f"{first_line(error).rstrip('.')}."


def first_line(error: BaseException) -> str:
    """Return an error's first line."""
    return (str(error) or type(error).__name__).splitlines()[0]

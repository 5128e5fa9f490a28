"""Records one window of steps after another, with the profiler's own faults kept away from the script."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from diagnose.capture.host.trace import HostTrace
from diagnose.capture.host.turns import TurnCount
from diagnose.capture.record.folder import StepState
from diagnose.capture.record.long_steps import Due
from diagnose.capture.record.measurements import Measurements, PlanHooks
from diagnose.capture.record.window import (
    SAFETY,
    TRACE_POLL_S,
    UNKNOWN_STEP,
    ScriptHeap,
    StepSize,
    TraceSize,
    Window,
    WindowKind,
    packed,
)
from diagnose.capture.steps.hooks import Undo, around, nothing, replace_function
from diagnose.model.files import reason, replace_private

if TYPE_CHECKING:
    from diagnose.capture.dataflow.window import DataflowWindow


# Two steps that are recorded as a program, after the windows: what goes wrong here ends them, never the script.

FLOW_STEPS = 2  # the second shows what is the same in every step
_DID_NOT_COME = "1 step in {every} was much longer than the others; the one that was recorded for it was not."


class FlowSteps:
    """Holds the window while it is open."""

    def __init__(self, hooks: PlanHooks, measured: Measurements) -> None:
        self._hooks, self._measured = hooks, measured
        self._window: DataflowWindow | None = None
        self.counts = False  # statements are counted, which makes steps longer

    @property
    def is_open(self) -> bool:
        """Return whether a step is being recorded, or was until it was cut, or its statements are counted."""
        return self._window is not None or self.counts

    def cut(self) -> None:
        """Record no more, inside a step."""
        if self._window is not None:
            self._window.pause()

    def record(self) -> Generator[None, int, None]:
        """Record the steps and write them; every rank lets as many pass, whatever goes wrong on it."""
        self._hooks.report(f"recording {FLOW_STEPS} steps as a program")
        yield from self._steps(self._finish)
        self._load_samples()

    def count_turns(self, least: int) -> Generator[None, int, None]:
        """Count in some steps, ``least`` at least, how often what they make is read."""
        turns: TurnCount | None = None
        try:
            turns = None if self._hooks.other_active() else self._hooks.turns()
        except Exception as error:  # a source of the user's that is like no other
            self._note(error)
        if turns is None:
            return
        self._hooks.report("counting how often results are read")
        self.counts = True
        turns.start()
        try:
            for _ in range(4 * least):  # times as many steps as are counted at least, for what comes now and then
                yield
                if turns.end_step(least):
                    break
        finally:
            self.counts = False
            self._measured.unread = turns.stop()

    def record_long(self, due: Due) -> Generator[None, int, None]:
        """Record the step before a long one, and that one; if it is as short as others are, nothing is written."""
        self._hooks.report("recording a long step as a program")
        took: list[int] = []

        def finish(window: DataflowWindow) -> None:
            if len(took) == FLOW_STEPS and 2 * (took[1] - took[0]) > due.longer_ns:
                self._measured.long_step_every = due.every
                self._finish(window, ".long")
            else:
                window.stop()
                self._measured.notes.append(_DID_NOT_COME.format(every=due.every))

        yield from self._steps(finish, took)

    def _steps(
        self, finish: Callable[[DataflowWindow], None], took: list[int] | None = None
    ) -> Generator[None, int, None]:
        """Record steps; ``took`` gets the length of each, without what recording costs."""
        window = self._window = None if self._hooks.other_active() else self._started()
        is_usual = took is None
        trace = HostTrace(self._hooks.hot_lines() if window is not None and is_usual else ())
        trace.start()
        cost_ns = 0
        try:
            for _ in range(FLOW_STEPS):
                duration = yield
                trace.end_step()
                if window is not None:
                    window.end_step()
                    if took is not None:
                        took.append(duration - (window.cost_ns - cost_ns))
                        cost_ns = window.cost_ns
        finally:
            self._window = None
            seen = trace.stop()
            if is_usual:
                self._measured.host = seen
            if window is not None:
                finish(window)

    def _load_samples(self) -> None:
        """Load some samples of the training loader's again, in another process."""
        loader = self._hooks.training_loader()
        if loader is None or self._hooks.other_active():
            return
        from diagnose.capture.samples.replay import load_again

        self._hooks.report("loading some samples again")
        try:
            self._measured.loaded = load_again(loader)
        except Exception as error:
            self._measured.notes.append(f"Samples could not be loaded again: {type(error).__name__}.")
        if self._measured.loaded.left_out:
            self._measured.notes.append(self._measured.loaded.left_out)

    def _started(self) -> DataflowWindow | None:
        window = None
        try:
            from diagnose.capture.dataflow.window import DataflowWindow  # needs torch, which is the script's to import

            window = DataflowWindow()
            window.start()
        except Exception as error:
            self._note(error)
            if window is not None:
                window.stop()
            return None
        return window

    def _finish(self, window: DataflowWindow, kind: str = "") -> None:
        from diagnose.model.dataflow_file import dataflow_rows

        name = f"{self._hooks.prefix}{kind}.dataflow.json.gz"
        try:
            window.stop()
            flow = window.result(rank=int(self._hooks.prefix.removeprefix("rank")))
            if not flow.num_steps:
                self._measured.notes += [f"No data flow was recorded. {sentence}" for sentence in flow.left_out]
                return
            self._hooks.report(f"writing {name}")
            replace_private(self._hooks.folder / name, packed(json.dumps(dataflow_rows(flow)).encode()))
        except Exception as error:
            self._note(error)
            return
        if kind:
            self._measured.long_step_file = name
        else:
            self._measured.dataflow_file = name
            self._measured.wide_buffers = window.wide_buffers
        stacks = dict.fromkeys(one.stack for one in flow.operators)
        lines = (frame[:2] for stack in stacks for frame in stack)
        self._measured.dataflow_lines = tuple(dict.fromkeys((*self._measured.dataflow_lines, *lines)))
        self._hooks.wrote()

    def _note(self, error: Exception) -> None:
        why = reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}."
        self._measured.notes.append(f"The data flow could not be recorded: {why}")


# Measures how long autograd's anomaly detection takes to record the stack of an operator, as deep as a model calls.


class AnomalyStacks:
    """Watches the calls of modules on the thread that starts it, until one runs under anomaly detection."""

    def __init__(self) -> None:
        self._undo: Undo = nothing
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
        self._undo()

    def _watched(self, call: Any) -> Callable[..., Any]:
        import torch

        def watched_call(module: Any, *args: Any, **kwargs: Any) -> Any:
            is_watched = not self.stack_ns and threading.get_ident() == self._thread
            if is_watched and torch.is_anomaly_enabled():
                took = []
                for _ in range(3):  # the first one reads source lines
                    began = time.perf_counter_ns()
                    traceback.format_stack()
                    took.append(time.perf_counter_ns() - began)
                self.stack_ns = min(took)
            return call(module, *args, **kwargs)

        return watched_call


# Notices profilers that the script itself starts: two at once would ruin each other.

OWN_MODULES = "diagnose.capture."


class OtherProfilers:
    """Watches torch.autograd.profiler.profile, which every profiler of torch creates once per cycle."""

    def __init__(self, on_start: Callable[[], None]) -> None:
        self.place = ""  # "file:line" where the script made its latest profiler
        self._on_start = on_start
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._undo: Undo = nothing

    def watch(self) -> None:
        """Begin watching; torch must have been imported."""
        from torch.autograd import profiler as torch_profiler

        self._undo = around(torch_profiler.profile, "__init__", after=self._profiler_made)

    def _profiler_made(self, profiler: Any) -> None:
        frame = sys._getframe(2)  # past this and the function around the constructor
        while frame.f_back is not None:  # the innermost frame outside torch
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in ("torch", "contextlib"):
                break
            frame = frame.f_back
        if not str(frame.f_globals.get("__name__")).startswith(OWN_MODULES):
            self._made.add(profiler)
            self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self._on_start()

    def forget(self) -> None:
        """Stop watching."""
        self._undo()

    def active(self) -> bool:
        """Return whether a profiler of the script is being prepared or runs."""
        from torch import autograd

        enabled: Any = vars(autograd)["_profiler_enabled"]  # there is no public name for it
        return bool(enabled()) or any(
            getattr(p, "entered", False) and getattr(p, "kineto_results", None) is None for p in list(self._made)
        )


# Runs a function on the main thread in the middle of a step, as soon as that thread executes Python again.
#
# A thread waits until the function is due and sends the main thread SIGURG, which a program ignores without a handler;
# a script that has its own handler for it keeps it, and is then not interrupted. A wait such as time.sleep goes on
# after it. While the main thread is inside a C function that returns late, nothing can be done.


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
                wait = 0.05  # the thread may be inside a boundary or a backward pass
            self._changed.wait(min(wait, 1.0))
            self._changed.clear()

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        if not self._over and os.getpid() == self._owner and self._due_in() <= 0:
            self._act()


Steps: TypeAlias = Generator[None, int, None]
"""Resumed at every step boundary with the duration of the step that is over, ns."""


_PART_KEPT: dict[WindowKind, str] = {
    "light": "the figures cover a part of one step",
    "attribution": "lines and shapes come from a part of one step",
}
MIN_MB_PER_S = 5.0  # as much as an ordinary training script gives


class Recorder:
    """Holds the window that is open, if one is; a profiler that the script starts takes precedence."""

    def __init__(self, hooks: PlanHooks, measured: Measurements) -> None:
        self.script_heap = ScriptHeap()
        self.keeps_parts = False  # whether a window that holds no whole step is of use
        self.stacks = True  # whether the attribution window holds Python functions
        self._num_disturbed = 0
        self.flow = FlowSteps(hooks, measured)
        self._hooks = hooks
        self._measured = measured
        self._together = hooks.num_ranks > 1
        self._window: Window | None = None
        self._size = TraceSize("light")  # of the window
        self._limit_mb = math.inf
        self._highest: dict[WindowKind, float] = {}  # MB a second that a window may give, from one that was cut
        self._expected: dict[WindowKind, StepSize] = {}
        self._marking = False
        self._stacks = AnomalyStacks()
        self._first = 0  # number of the first step with a mark
        self._disturbed = False
        self._cut = False
        self._why = ""
        self._recorded_s = self._recorded_mb = 0.0  # until the window was cut

    def expect(self, kind: WindowKind, step: StepSize) -> None:
        """Take at most twice as much for possible in a window that is to be recorded."""
        self._expected[kind] = step
        self._highest[kind] = max(step.most_mb_per_s, MIN_MB_PER_S)

    def end_step(self) -> None:
        """Close the mark of the step that is over."""
        if self._window is not None:
            self._window.end_step()
            if not self._cut:
                self._size.boundary()
        else:
            self.script_heap.boundary()

    def begin_step(self, number: int) -> None:
        """Open the mark of the next step."""
        if self._window is not None and self._marking:
            self._first = self._first or number + 1
            self._window.begin_step(number)

    def disturb(self) -> None:
        """Give way at once to a profiler that the script starts."""
        if self._window is not None:
            self._disturbed = True
            self._num_disturbed += 1
            self._window.stop()
            self._window = None

    def cut(self, why: str) -> None:
        """Stop recording inside the step; what is over of the window is written at the step's end."""
        self.flow.cut()
        if self._window is not None and not self._cut:
            self._cut, self._why = True, why
            self._recorded_s, self._recorded_mb = self._size.elapsed_s, self._size.mb()
            self._window.stop()

    @property
    def broken_off(self) -> bool:
        """Return whether the window is open, though it was cut inside the step."""
        return self._window is not None and self._cut

    @property
    def recording(self) -> bool:
        """Return whether a window is open."""
        return self.flow.is_open or (self._window is not None and not self._cut)

    @property
    def state(self) -> StepState:
        """Return what is recorded of the step that begins now."""
        if self._window is None:
            return "edge" if self.flow.is_open else "plain"
        return self._window.kind if self._marking and not self._cut else "edge"

    @property
    def given_up(self) -> bool:
        """Return whether the script's own profiler began so often that no window can be expected to be whole."""
        return self._num_disturbed >= 5

    @property
    def without_timing(self) -> bool:
        """Return whether the timing window was cut before it held a whole step."""
        return self._cut and not self._measured.timing

    @property
    def full_in(self) -> float:
        """Return in how many seconds to look at the trace's size again; 0 once it has reached its limit."""
        if self._window is None or self._cut:
            return math.inf
        safe = self._size.safe_s(self._limit_mb)
        if safe > 0:
            return safe
        return 0.0 if self._size.mb() >= self._limit_mb else TRACE_POLL_S

    @property
    def write_s(self) -> float:
        """Return how long writing what is recorded now will take, judging by the window before."""
        if self._window is None:
            return 0.0
        # Stopping a profiler makes Python objects of its events, which the heap must not be taken for records of.
        return self._measured.write_s_per_mb * (self._recorded_mb if self._cut else self._size.mb())

    def record(
        self, kind: WindowKind, num_steps: int, limit_mb: float, late: Callable[[], bool], *, warm_up: bool = True
    ) -> Steps:
        """Record one window; where the script's own profiler is in the way, try again once it is gone.

        ``late`` decides after every step whether to close the window early. A window that was cut although its trace
        turns out to be small is recorded again, now that the rate of its events is known.
        """
        self._limit_mb = limit_mb
        try:
            for tries in itertools.count(1):
                while not self._together and self._hooks.other_active():
                    yield
                again = yield from self._attempt(kind, num_steps, late, warm_up=warm_up)
                if not again or self._together or (self._cut and (tries >= 3 or late())):
                    break
                if self.given_up:
                    self._measured.notes.append(
                        f"It began {self._num_disturbed} times while steps were being recorded, which ended the "
                        f"recording of the {kind} window. Switch it off, or give the trace it writes to `diagnose "
                        "analyze`."
                    )
                    break
        finally:
            if self._cut:
                self._note_cut(kind)

    def _attempt(
        self, kind: WindowKind, num_steps: int, late: Callable[[], bool], *, warm_up: bool
    ) -> Generator[None, int, bool]:
        """Record one window; return whether it should be recorded again."""
        self._disturbed = self._cut = False
        self._first = 0
        times: list[int] = []
        self._window = None if self._hooks.other_active() else self._start(kind, num_steps)
        self._size = size = TraceSize(
            kind, self._highest.get(kind), self.script_heap, self._expected.get(kind, UNKNOWN_STEP)
        )
        self._hooks.look()
        small = False
        try:
            self._hooks.sampling(kind == "light")  # of a step that is too long for the window this may be all there is
            if warm_up:
                yield  # recorded but not marked: the profiler's own first step is slow
            self._marking = True
            if kind == "attribution" and not self._hooks.compiled():  # what is compiled calls no module
                self._stacks.start()
            while len(times) < num_steps and (self._together or not (self._disturbed or self._cut)):
                times.append((yield))
                if self._together or len(times) == num_steps:
                    continue
                if late() or self._next_is_too_much(size, len(times) + warm_up):
                    break
        finally:
            self._hooks.sampling(False)
            self._stacks.stop()
            window, self._window, self._marking = self._window, None, False
            if window is not None:
                elapsed = self._recorded_s if self._cut else size.elapsed_s
                mb = self._write(window, times)
                # It was cut because of the script's own memory.
                small = self._cut and mb < 0.5 * self._limit_mb
                self._highest[kind] = max(SAFETY * mb / elapsed, MIN_MB_PER_S)
        return self._disturbed or small

    def _next_is_too_much(self, size: TraceSize, num_steps: int) -> bool:
        """Return whether one more step like those before would exceed the limit, and take it for a cut."""
        if size.safe_s(self._limit_mb * num_steps / (num_steps + 1)) > 0:
            return False
        if size.whole_steps_mb * (num_steps + 1) / num_steps > self._limit_mb:
            self.cut(f"its limit of {self._limit_mb:.3g} MB, which --max-mb raises")
        return self._cut

    def _start(self, kind: WindowKind, num_steps: int) -> Window | None:
        self._hooks.report(f"capturing {num_steps} steps ({kind} window)")
        try:
            window = Window(kind, stacks=self.stacks)
            window.start()
        except Exception as error:  # the profiler failing must not end the user's script
            self._measured.notes.append(f"The profiler could not start ({first_line(error)}).")
            return None
        return window

    def _write(self, window: Window, times: list[int]) -> float:
        """Stop the profiler, write what it has if that is of use, and return its size in MB."""
        measured, kind = self._measured, window.kind
        began = time.monotonic()
        try:
            window.stop()
            partial = self.keeps_parts or (self._cut and (kind == "light" or bool(measured.timing)))
            of_use = window.num_steps > len(measured.of(kind)) or (partial and kind not in measured.files)
            if not of_use and not self._cut:
                return 0.0  # nothing whole in it, or less than an earlier window has
            name = f"{self._hooks.prefix}.{kind}.pt.trace.json.gz"
            self._hooks.report(f"writing {name}")
            path = self._hooks.folder / (name if of_use else f"{name}.unused")
            mb = window.export(path)
            if not of_use:  # only its size was of interest
                path.unlink()
                return mb
        except Exception as error:  # the profiler failing must not end the user's script
            why = reason(error) if isinstance(error, OSError) else f"{first_line(error).rstrip('.')}."
            measured.notes.append(f"The {kind} window could not be written: {why}")
            return 0.0
        measured.files[kind] = name
        measured.first[kind] = self._first
        measured.flags[kind] = window.flags
        measured.mb[kind] = mb
        # Of a small trace most of the time goes into starting to write it.
        measured.write_s_per_mb = min((time.monotonic() - began) / mb, 0.25) if mb else 0.0
        if kind == "light":
            measured.timing = times[: window.num_steps]
        else:
            measured.attribution = times[: window.num_steps]
            measured.stack_ns = self._stacks.stack_ns
        self._hooks.wrote()
        return mb

    def _note_cut(self, kind: WindowKind) -> None:
        """State what a window that was cut holds."""
        measured = self._measured
        if measured.of(kind):
            kept = f"it holds {len(measured.of(kind))} whole steps"
        elif kind in measured.files:
            kept = _PART_KEPT[kind]
        else:
            kept = "it held no whole step and was dropped. Allow more, or mark shorter steps with diagnose.step()"
        measured.notes.append(f"The {kind} window was stopped by {self._why}; {kept}.")


def first_line(error: BaseException) -> str:
    """Return an error's first line."""
    return (str(error) or type(error).__name__).splitlines()[0]

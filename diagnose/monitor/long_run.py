"""A light monitor inside a long run: a row per so many steps, and a recorded window where steps become slower.

Between windows nothing is profiled: a step costs the hooks that find its end, a row some reading of memory; where that
is more than a small share of a step, some are only counted. A fault of the monitor ends the monitor, never the run.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from statistics import median
from types import TracebackType

from diagnose.capture.process.run import silence_kineto
from diagnose.capture.process.script import check_script, run_script
from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.step_marker import is_listened_to, step
from diagnose.capture.steps.hooks import when_imported
from diagnose.capture.steps.listener import Listener
from diagnose.errors import is_debugging
from diagnose.monitor.metrics import Metrics, Point, address_of, points
from diagnose.monitor.process_readings import ProcessReadings
from diagnose.monitor.run_folder import Recorded, RunFolder
from diagnose.monitor.step_rows import Block, Row
from diagnose.monitor.trends import GrowthDetector, Observation, SlowdownDetector, observe
from diagnose.monitor.watch_options import WatchOptions
from diagnose.monitor.windows import MEMORY_WORDS, Analysis, MemoryWindow, Window
from diagnose.text.numbers import duration, percent

# What the watch itself takes of a step, measured in the run, and how many steps it may time at that price.

MAX_SHARE = 0.005  # of a step
KEPT = 9  # rows whose measure counts: their median shrugs off an interruption


class OwnCost:
    """Takes what the hooks of a timed step and what a row took; ``interval`` is how many steps one is timed of."""

    def __init__(self) -> None:
        self.interval = 1
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._rows: deque[float] = deque(maxlen=KEPT)

    def add_steps(self, own_ns: int, steps: int) -> None:
        """Take what the hooks took in so many timed steps together."""
        self._steps.append(own_ns / steps)

    def add_row(self, own_ns: int) -> None:
        """Take what the end of a row took."""
        self._rows.append(own_ns)

    def per_step_ns(self, steps_of_row: int) -> float:
        """Return what a timed step takes, with its share of the row; 0 where nothing was measured yet."""
        if not self._steps or not self._rows:
            return 0.0
        return median(self._steps) + median(self._rows) / steps_of_row

    def decide(self, step_ns: float, steps_of_row: int, step: int) -> str:
        """Set the interval for steps of this length; return a sentence where no longer all of them are timed, else "".

        ``step`` is the number of the present one.
        """
        # The first ones hold cold caches.
        if min(len(self._steps), len(self._rows)) < 4 or not step_ns > 0:
            return ""
        price = self.per_step_ns(steps_of_row) / (MAX_SHARE * step_ns)
        wanted = min(math.ceil(price), 100)  # a longer one saves nothing: what is left is the call of the hooks
        if wanted <= self.interval:
            # More steps are timed again only if half as much again would still be cheap.
            self.interval = max(1, min(self.interval, math.ceil(1.5 * price)))
            return ""
        timed_all, self.interval = self.interval == 1, wanted
        if not timed_all:
            return ""
        return (
            f"Steps take {duration(step_ns)}, and timing each of them {percent(MAX_SHARE * price)} of that: from step "
            f"{step} on one in {wanted} is timed, to stay below {percent(MAX_SHARE)}."
        )


LOOK_NS = 2_000_000_000  # between two looks for it, as the folder may lie on a network
ON_DEMAND = "asked for"


class Watch:
    """Watches one run; ``install`` once torch is imported, ``close`` at the end.

    As a ``with`` block it does both. Where steps are not found by themselves ``step`` marks them. Inside
    `diagnose trace`, or another watch, nothing is watched, and ``step`` marks a step for that.
    """

    _run: RunFolder  # of a watch that is not passive

    def __init__(
        self,
        options: WatchOptions,
        *,
        command: tuple[str, ...] = (),
        report: Callable[[str], None] = lambda _text: None,
        clock: Callable[[], int] = time.perf_counter_ns,
        own_clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.options = options
        self.rows: list[Row] = []
        self.num_steps: int = 0
        self.passive: bool = is_listened_to()
        self._command, self._report, self._clock, self._own_clock = command, report, clock, own_clock
        self._owner = os.getpid()
        self._notes: list[str] = []
        self._windows: list[Recorded] = []
        self._analyses: list[Analysis] = []
        self._window: Window | MemoryWindow | None = None
        self._block = Block()
        self._every = options.every
        self._detector, self._growth = SlowdownDetector(options.slow), GrowthDetector()
        self._readings = ProcessReadings()
        self._began = self._looked = self._rest = self._epochs = 0
        self._asked = self._grown = ""  # why a window is wanted, and why one of memory
        self._over = self._locked = False
        self._own_cost, self._gap = OwnCost(), 0
        self._left = 0  # of the present gap's steps, which are counted only, those still to come
        self._random = random.Random(0)  # gaps of one length would meet each epoch at the same step
        self.folder: RunFolder | None = None
        self._metrics: Metrics | None = None
        if not self.passive:
            if options.prometheus:
                self._metrics = Metrics(address_of(options.prometheus), self._points, run=options.name)
            self.folder = self._run = RunFolder(
                options.folder, options.name, every=options.every, slow=options.slow, command=command
            )
            self._listener = Listener(options.step_on, ScriptConfig(), self._boundary)

    def __enter__(self) -> Watch:
        import_module("torch")  # the hooks go into it
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close("finished" if kind is None else kind.__name__)

    def _points(self) -> list[Point]:  # on a thread of the server's
        return points(self.rows[-1] if self.rows else None, self.num_steps, sum(bool(w.folder) for w in self._windows))

    def install(self) -> None:
        """Put hooks into torch, which has been imported; without hooks only marked steps count."""
        if self.passive or self._over:
            return
        try:
            self._listener.install()
        except (ImportError, AttributeError) as error:
            self._note(f"This torch could not be hooked into fully ({error}).")

    def step(self) -> None:
        """End a step of a loop that marks its steps."""
        if self.passive:
            step()
        elif os.getpid() == self._owner:
            self._boundary(fresh=False)

    def record(self, why: str = ON_DEMAND) -> None:
        """Record a window from the end of the present step on."""
        self._asked = why

    def close(self, ended: str = "finished") -> list[Observation]:
        """End the watch; return what the whole run shows."""
        if self.passive or self._over or os.getpid() != self._owner:
            return []
        self._over = True
        self._listener.remove()
        self._guarded(self._finish)
        self._readings.stop()
        if self._metrics is not None:
            self._guarded(self._metrics.close)
        for analysis in self._analyses:
            analysis.wait(self._report)
        self._announce_diagnoses()
        found = observe(self.rows, self.options.slow)
        own_us = round(self._own_cost.per_step_ns(self._every) / self._own_cost.interval / 1e3, 1)
        self._guarded(lambda: self._run.update(steps=self.num_steps, own_us=own_us, ended=ended))
        self._run.close()
        for each in found:
            self._report(each.text)
        return found

    def _finish(self) -> None:
        if self._window is not None:
            self._end_window()
        if len(self._block) > 1:
            self._end_row()

    def _boundary(self, fresh: bool) -> None:  # a callback
        if self._over:
            return
        if self._left:
            self.num_steps += 1
            self._left -= 1
            if not self._left:
                self._end_gap()
            return
        try:
            end = self._end_step if self._listener.meter is None else self._end_metered_step
            end(fresh)
        except Exception as error:  # whatever it is, the training must go on
            self._fail(error)

    def _guarded(self, act: Callable[[], None]) -> None:
        """Run a part of the monitor; its failure ends the monitor and not the run."""
        try:
            act()
        except Exception as error:  # as above
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if is_debugging():
            raise error
        self._over = True
        self._listener.remove()
        if self._window is not None:
            self._window.abandon()
        self._note(f"The watch ended at step {self.num_steps}: {type(error).__name__}: {error}")

    def _end_step(self, fresh: bool) -> None:
        now = self._clock()
        phases = self._listener.phases.take()
        self.num_steps = 0 if fresh else self.num_steps + 1
        if fresh or not self._began:  # when the first step began is not known
            self._block = Block()
        else:
            begins_epoch = self._listener.num_epochs != self._epochs
            if self._window is not None:
                if self._window.step():
                    self._end_window()
            elif self._rest:
                self._rest -= 1
            else:
                self._block.add(now - self._began, phases, begins_epoch=begins_epoch)
                if len(self._block) >= self._every:
                    self._end_row()
        self._epochs = self._listener.num_epochs
        if now - self._looked > LOOK_NS:
            self._looked = now
            self._look()
        if (self._asked or self._grown) and self._window is None and not fresh and self.num_steps:
            self._begin_window()
        if self._window is None:
            self._listener.phases.begin()
            if self._own_cost.interval > 1 and not self._rest:
                self._begin_gap()
        self._began = self._clock()

    def _begin_gap(self) -> None:
        """Leave the next steps untimed, so many on average that one step of ``interval`` is timed."""
        self._gap = self._random.randrange(2 * self._own_cost.interval - 1)
        if self._gap:
            self._listener.rest()
            self._left = self._gap if self._listener.resting else 0

    def _end_gap(self) -> None:
        self._block.skipped += self._gap
        self._epochs = self._listener.num_epochs
        self._listener.wake()
        self._began = self._clock()

    def _end_metered_step(self, fresh: bool) -> None:
        began = self._own_clock()
        self._end_step(fresh)
        listener, timed = self._listener, len(self._block)
        if listener.meter is not None and timed:  # no row has just ended
            listener.own_ns += self._own_clock() - began
            if timed >= 8:  # two readings of the clock for each hook: enough of a row
                self._end_metering()

    def _end_metering(self) -> None:
        self._listener.meter = None
        if len(self._block):
            self._own_cost.add_steps(self._listener.own_ns, len(self._block))

    def _end_row(self) -> None:
        began = self._own_clock()
        if self._listener.meter is not None:
            self._end_metering()
        self._close_row()
        if self._locked:
            self._own_cost.add_row(self._own_clock() - began)
            self._note(self._own_cost.decide(self.rows[-1].p50_ns, self._every, self.num_steps))
            self._listener.own_ns, self._listener.meter = 0, self._own_clock

    def _close_row(self) -> None:
        row = self._block.row(self.num_steps, time.time(), self._readings.read())
        self._block = Block()
        self.rows.append(row)
        if not self._locked:
            self._settle()
        self._run.add(row)
        # After 5 MB a row holds twice as many steps, and again after as many rows.
        if len(self.rows) % 10_000 == 0:
            self._every *= 2
        slower = self._detector.add(row)
        if slower is not None:
            self._report(str(slower))
            self._asked = str(slower)
        if self.options.dataflow and not any(w.memory is not None and w.memory.holders for w in self._windows):
            self._grown = self._growth.look(self.rows) or self._grown
        self._announce_diagnoses()

    def _settle(self) -> None:
        """Fix what a step is once that is beyond doubt, and begin to read the GPUs that are in use by now."""
        if self._listener.finder.undecided:
            return
        self._locked = self._listener.brief = True
        if self._listener.finder.anchor is not None or self.options.step_on == "marker":
            self._listener.lock()
        self._readings.start()
        self._run.describe_torch()
        self._run.update()

    def _look(self) -> None:
        """Look for the file that asks for a window."""
        if self._run.take_request():
            self.record()

    def _begin_window(self) -> None:
        why, is_memory = self._asked or self._grown, not self._asked
        self._asked, self._grown = "", "" if is_memory else self._grown
        asked = Recorded(self.num_steps, why)
        limits, refused = self.options.limits.left(self._run.path, sum(bool(w.folder) for w in self._windows))
        if refused:
            self._keep(replace(asked, note=refused))
            return
        self._block = Block()  # a row holds steps without a profiler only
        self._listener.meter, self._listener.brief = None, False
        self._report(f"recording {MEMORY_WORDS if is_memory else 'a window'} at step {self.num_steps}: {why}")
        if is_memory:
            self._window = MemoryWindow(asked)
        else:
            folder = self._run.path / f"step-{self.num_steps}"
            self._window = Window(asked, folder, self._listener, self._command, limits)

    def _end_window(self) -> None:
        # Two steps are left out: the first absorbs the cost of writing, the second refills the queue.
        window, self._window, self._rest = self._window, None, 2
        assert window is not None
        self._listener.brief = self._locked
        recorded = window.finish()
        self._keep(recorded)
        if recorded.folder:
            self._analyses.append(Analysis(self._run.path / recorded.folder))

    def _keep(self, window: Recorded) -> None:
        self._windows.append(window)
        if text := window.note or (window.memory.text if window.memory is not None else ""):
            self._report(text)
        self._run.update(windows=tuple(self._windows), steps=self.num_steps)

    def _announce_diagnoses(self) -> None:
        for analysis in [each for each in self._analyses if each.over]:
            self._analyses.remove(analysis)
            self._report(analysis.outcome())

    def _note(self, text: str) -> None:
        if not text:
            return
        self._notes.append(text)
        self._report(text)
        with contextlib.suppress(OSError):  # the disk is full, which may be why there is a note
            self._run.update(notes=tuple(self._notes))


# Runs a script in this process as Python would, watched from its first step to its last.


def watch_script(
    argv: Sequence[str], options: WatchOptions, *, module: bool, report: Callable[[str], None]
) -> tuple[int, Watch]:
    """Run ``argv`` as the main program; return its exit code and the watch, which is over.

    Raises:
        UsageError: there is no such script.
        OutputError: the run's folder cannot be made.
    """
    check_script(argv, module=module)
    silence_kineto()
    watch = Watch(options, command=(*(("-m",) if module else ()), *argv), report=report)
    forget = when_imported("torch", watch.install)
    outcome = run_script(argv, module=module)
    forget()
    error = outcome.error
    failed = outcome.ended != "finished"
    watch.close(outcome.ended if error is None or not failed else type(error).__name__)
    return outcome.exit_code, watch

"""What samples the training thread, densely in timing windows, else a few times a second, and notes its collections."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from diagnose.capture.record.gc_watch import GcWatch
from diagnose.capture.record.sampler import Sampler

__all__ = ["Samplers"]

RUN_SAMPLER_MS = 20.0  # a long step of a tenth of a second still has five samples, for 0.3 % of a core
RUN_DEPTH = 6  # lines of the user's code, the innermost and its callers


class Samplers:
    """The samplers of the thread that first enters a window or begins the plan, and the watch of its collector.

    ``period_ms`` is that of the timing windows.
    """

    def __init__(self, period_ms: float, *, wanted: bool) -> None:
        self.in_windows: Sampler | None = None
        self.of_run: Sampler | None = None  # while no window is open
        self._gc_watch: GcWatch | None = None
        self._period_ms, self._wanted = period_ms, wanted

    def sample_window(self, *, on: bool) -> None:
        """Sample a timing window from now on, or no longer."""
        if not self._wanted:
            return
        if self.in_windows is None:
            thread = threading.current_thread()
            self.in_windows = Sampler(thread.ident or 0, thread.native_id or 0, self._period_ms)
        if on:  # one after the other: each leaves the interpreter's switching as it found it
            self.sample_run(on=False)
            self.in_windows.start()
        else:
            self.in_windows.stop()
            self.sample_run(on=True)

    def sample_run(self, *, on: bool) -> None:
        """Sample what the thread does where no timing window is open, from now on or no longer."""
        if not self._wanted:
            return
        if self.of_run is None:
            thread = threading.current_thread()
            self.of_run = Sampler(thread.ident or 0, thread.native_id or 0, RUN_SAMPLER_MS, depth=RUN_DEPTH)
            self._gc_watch = GcWatch(thread.ident or 0)
            self._gc_watch.start()  # to the end: how often it runs is known from all steps, not from a dozen
        if on:
            self.of_run.start()
        else:
            self.of_run.stop()

    def stop(self) -> None:
        """End the threads."""
        for sampler in (self.in_windows, self.of_run):
            if sampler is not None:
                sampler.stop()
        if self._gc_watch is not None:
            self._gc_watch.stop()

    @property
    def gc_runs(self) -> Sequence[object]:
        """Return the collector's runs, recorded or not."""
        return self._gc_watch.runs if self._gc_watch is not None else ()

    @property
    def summary(self) -> Mapping[str, object]:
        """Return what CaptureInfo.sampler holds."""
        return self.in_windows.summary() if self.in_windows is not None else {}

    def run_paths(self) -> Mapping[str, object]:
        """Return the samples between the windows, as the file of the steps holds them."""
        return self.of_run.paths() if self.of_run is not None else {}

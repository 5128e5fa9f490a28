"""What samples the training thread, densely in timing windows, else at a low rate, and notes its collections."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from diagnose.capture.record.exact_sampler import ExactSampler
from diagnose.capture.record.gc_watch import GcWatch
from diagnose.capture.record.sampler import Sampler
from diagnose.capture.record.sampler_process import SamplerProcess
from diagnose.capture.record.taken import Taken

__all__ = ["Samplers"]

# From the first import of torch on: a long step of a tenth of a second still has five samples, for 1 % of a core.
RUN_SAMPLER_MS = 20.0
RUN_DEPTH = 6  # innermost lines of the user's code; the outermost ones are kept too


class _Watch:
    """Samples a thread from outside, or where that fails from a thread beside it."""

    def __init__(self, process: SamplerProcess, taken: Taken) -> None:
        self.taken = taken
        self._exact, self._beside = ExactSampler(process, taken), Sampler(taken)

    def start(self) -> None:
        if not self._exact.start():
            self._beside.start()

    def stop(self) -> None:
        self._exact.stop()
        self._beside.stop()

    def collect(self) -> Taken:
        self._exact.collect()
        return self.taken


class Samplers:
    """The samplers of the thread that makes the steps, and before the first one of that which imports torch.

    The watch of its collector belongs to them.

    ``period_ms`` is that of the timing windows.
    """

    def __init__(self, period_ms: float, *, wanted: bool) -> None:
        self._in_windows: _Watch | None = None
        self._of_run: _Watch | None = None  # while no window is open
        self._gc_watch: GcWatch | None = None
        self._period_ms, self._wanted = period_ms, wanted
        self._process = SamplerProcess()

    def prepare(self) -> None:
        """Start the process that samples, before the script could notice that there is another one."""
        if self._wanted:
            self._process.start()

    def sample_window(self, *, on: bool) -> None:
        """Sample a timing window from now on, or no longer."""
        if not self._wanted:
            return
        if self._in_windows is None:
            self._in_windows = self._watch(self._period_ms, 1)
        if on:  # one after the other: each leaves the interpreter's switching as it found it
            self.sample_run(on=False)
            self._in_windows.start()
        else:
            self._in_windows.stop()
            self.sample_run(on=True)

    def sample_run(self, *, on: bool) -> None:
        """Sample what the thread does where no timing window is open, from now on or no longer."""
        if not self._wanted:
            return
        if self._of_run is None or self._of_run.taken.thread_id != threading.get_ident():
            for watch in (self._of_run, self._gc_watch):  # of the thread that imported torch, which makes no steps
                if watch is not None:
                    watch.stop()
            self._of_run = self._watch(RUN_SAMPLER_MS, RUN_DEPTH)
            self._gc_watch = GcWatch(threading.get_ident())
            self._gc_watch.start()  # to the end: how often it runs is known from all steps, not from a dozen
        if on:
            self._of_run.start()
        else:
            self._of_run.stop()

    def _watch(self, period_ms: float, depth: int) -> _Watch:
        taken = Taken(threading.get_ident(), threading.get_native_id(), period_ms, depth=depth)
        return _Watch(self._process, taken)

    def stop(self) -> None:
        """End the threads and the process."""
        for watch in (self._in_windows, self._of_run):
            if watch is not None:
                watch.stop()
        if self._gc_watch is not None:
            self._gc_watch.stop()
        self._process.close()

    @property
    def in_windows(self) -> Taken | None:
        """Return what was sampled in timing windows, None before the first one."""
        return self._in_windows.collect() if self._in_windows is not None else None

    @property
    def of_run(self) -> Taken | None:
        """Return what was sampled between them."""
        return self._of_run.collect() if self._of_run is not None else None

    @property
    def gc_runs(self) -> Sequence[object]:
        """Return the collector's runs, recorded or not."""
        return self._gc_watch.runs if self._gc_watch is not None else ()

    @property
    def summary(self) -> Mapping[str, object]:
        """Return what CaptureInfo.sampler holds."""
        return self._in_windows.taken.summary() if self._in_windows is not None else {}

    def run_paths(self) -> Mapping[str, object]:
        """Return the samples between the windows, as the file of the steps holds them."""
        return self._of_run.collect().paths() if self._of_run is not None else {}

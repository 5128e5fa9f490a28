"""What happens at which step: wait until steady, time steps unprofiled, light window, a rest, attribution window.

The plan is a generator: it is resumed at every step boundary with the duration of the step that is over, so it
reads in the order in which things happen. Whatever it does between two resumptions lies outside every step.

With several ranks every decision is a count of steps: ranks that decided by their own clocks would part, and the
one that went on alone would wait for the others in its next collective for ever.
"""

from __future__ import annotations

import math
import time
from statistics import median

from diagnose.capture.measured import Measured, Surroundings
from diagnose.capture.options import CaptureOptions
from diagnose.capture.recording import Recorder, Steps, first_line
from diagnose.capture.steady import steady_since
from diagnose.capture.window import WindowKind

__all__ = ["LEAST_STEPS", "Plan"]

DEFAULT_SKIP = 40  # steps: compiling, autotuning and caches are over before, or never
RANKED_SKIP = 20  # steps that several ranks wait: past compilation and the first buckets, still affordable
LEAST_STEPS = 10  # of a window where the user did not say: the median of ten is steady to a few percent
MOST_STEPS = 100  # and of short steps so many that the window lasts
WINDOW_NS = 500_000_000  # half a second: a hundred samples of the executing line
MOST_ATTRIBUTION_STEPS = 20  # stacks are heavy and name the same lines in every step
REST_STEPS = 2  # unprofiled steps between windows: the first absorbs the cost of stopping, the second refills the queue
WAIT_SHARE = 0.4  # of max_seconds for waiting,
PLAIN_SHARE = 0.6  # then until the unprofiled steps are done,
LIGHT_SHARE = 0.8  # and the light window; the attribution window has the rest
LIGHT_MB_SHARE = 0.4  # of max_mb for the light window
ATTRIBUTION_GROWTH = 3.5  # MB a step against the light window: 3.1 with all flags, measured on small CPU steps


class Plan:
    """Runs the plan; ``boundary`` is called at every step boundary, on the thread that steps."""

    def __init__(self, options: CaptureOptions, around: Surroundings, measured: Measured) -> None:
        self.done = False
        self.failed = False
        self.num_steps = 0
        self._num_steps = LEAST_STEPS
        self._options = options
        self._around = around
        self._measured = measured
        self._together = around.num_ranks > 1
        self._began_at = time.monotonic()
        self._step_began = time.perf_counter_ns()
        self._steps = self._script()
        self._recorder = Recorder(around, measured)
        next(self._steps)

    def boundary(self) -> None:
        """Take notice that a step is over; errors of the profiler end the plan, never the script."""
        duration = time.perf_counter_ns() - self._step_began
        if self.done:
            return
        self._recorder.end_step()
        self.num_steps += 1
        try:
            self._steps.send(duration)
        except StopIteration:
            self.done = True
        except Exception as error:  # a fault of the capture must not become the script's
            self.done = self.failed = True
            self._measured.notes.append(f"The capture failed: {type(error).__name__}: {first_line(error)}.")
        self._recorder.begin_step(self.num_steps)
        self._step_began = time.perf_counter_ns()

    def close(self) -> None:
        """End the plan wherever it is; a window that holds a whole step is kept."""
        self._steps.close()
        self.done = True

    def disturb(self) -> None:
        """Give way at once to a profiler that the script starts."""
        self._recorder.disturb()

    def _script(self) -> Steps:
        yield from self._wait()
        yield from self._plain()
        first = min(self._num_steps, self._options.steps or LEAST_STEPS)
        yield from self._record("light", first, LIGHT_SHARE)
        yield from self._pass(REST_STEPS)
        yield from self._record("attribution", self._attribution_steps(), 1.0)
        longer = self._longer_window()
        if longer > first:  # short steps: now that the rest is safe, a light window that lasts
            yield from self._pass(REST_STEPS)
            yield from self._record("light", longer, 1.0)

    def _wait(self) -> Steps:
        """Watch step times until they settle; with several ranks wait a fixed number of steps."""
        fixed = self._together or self._options.skip == 0
        limit = self._options.skip if self._options.skip is not None else RANKED_SKIP if fixed else DEFAULT_SKIP
        times: list[int] = []
        settling_from = 0
        compiled = self._around.compiled()
        steady: int | None = None
        while len(times) < limit and not (self._late(WAIT_SHARE) and times):
            times.append((yield))
            if compiled != self._around.compiled():
                compiled, settling_from, steady = self._around.compiled(), len(times), None
            if steady is None:
                steady = steady_since(times[settling_from:])
            if steady is not None and not fixed and not self._around.undecided():
                break
            self._tell_waiting(times)
        self._num_steps = self._options.steps or self._fitting_steps(times)
        self._around.settled()
        start = time.time_ns()
        if steady is None:
            if limit:
                self._measured.notes.append(
                    f"Step times had not settled after {len(times)} steps; the numbers may include warm-up."
                )
        else:
            self._measured.found_after = settling_from + steady
            self._measured.unprofiled += times[settling_from + steady :]
            start -= sum(self._measured.unprofiled)
        self._measured.spans["unprofiled"] = (start, start)

    def _plain(self) -> Steps:
        """Time steps with no profiler running, where the wait has not timed enough of them."""
        times = self._measured.unprofiled
        wanted = (self._options.steps or LEAST_STEPS) - (0 if self._together else len(times))
        if wanted > 0:
            self._around.say(f"measuring {wanted} steps without the profiler")
        for _ in range(max(wanted, 0)):
            times.append((yield))
            if self._late(PLAIN_SHARE):
                break
        start, _ = self._measured.spans["unprofiled"]
        self._measured.spans["unprofiled"] = (start, time.time_ns())

    def _record(self, kind: WindowKind, num_steps: int, share: float) -> Steps:
        return self._recorder.record(kind, num_steps, lambda grown_from: self._full(kind, share, grown_from))

    def _fitting_steps(self, times: list[int]) -> int:
        """Return how many steps make a window long enough for the sampler and for a steady median."""
        if self._together or not times:
            return LEAST_STEPS
        return min(max(math.ceil(WINDOW_NS / median(times[-LEAST_STEPS:])), LEAST_STEPS), MOST_STEPS)

    def _attribution_steps(self) -> int:
        """Return how many steps the attribution window may have, judging its size by the light window's."""
        wanted = min((self._num_steps + 1) // 2, MOST_ATTRIBUTION_STEPS)
        light = self._measured
        if self._together or not light.light:
            return wanted
        per_step = ATTRIBUTION_GROWTH * light.light_mb / len(light.light)
        fitting = int((self._options.max_mb - light.light_mb) / per_step) if per_step else wanted
        return max(1, min(wanted, fitting))

    def _longer_window(self) -> int:
        """Return how many steps a second light window may have, judging its size by the first one's."""
        light = self._measured
        if not light.light or not light.light_mb:
            return 0
        return min(self._num_steps, int(LIGHT_MB_SHARE * self._options.max_mb * len(light.light) / light.light_mb))

    def _full(self, kind: WindowKind, share: float, grown_from: float) -> bool:
        """Return whether the window must close early, and note why."""
        if self._together:
            return False
        limit = self._options.max_mb * (LIGHT_MB_SHARE if kind == "light" else 1.0)
        if self._around.grown_mb() - grown_from > limit:
            self._measured.notes.append(f"The {kind} window was cut short by --max-mb {self._options.max_mb:g}.")
            return True
        if self._late(share):
            self._measured.notes.append(
                f"The {kind} window was cut short by --max-seconds {self._options.max_seconds:g}."
            )
            return True
        return False

    def _late(self, share: float) -> bool:
        elapsed = time.monotonic() - self._began_at
        return not self._together and elapsed > share * self._options.max_seconds

    def _pass(self, num_steps: int) -> Steps:
        for _ in range(num_steps):
            yield

    def _tell_waiting(self, times: list[int]) -> None:
        self._around.say(f"waiting for a steady state: step {len(times)}, now {median(times[-8:]) / 1e6:.1f} ms each")

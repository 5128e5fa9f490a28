"""What happens at which step: wait until steady, time steps unprofiled, timing window, a rest, attribution window.

Every step is timed, whatever is recorded of it.

The plan is a generator: it is resumed at every step boundary with the duration of the step that is over, so it
reads in the order in which things happen. Whatever it does between two resumptions lies outside every step.

With several ranks every decision is a count of steps: ranks that decided by their own clocks would part, and the
one that went on alone would wait for the others in its next collective for ever.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median

from diagnose.capture.options import QUICK_S, CaptureOptions
from diagnose.capture.record.folder import StepState
from diagnose.capture.record.long_steps import MIN_RARE_SHARE, Due, LongSteps
from diagnose.capture.record.measurements import Measurements, PlanHooks
from diagnose.capture.record.recording import FLOW_STEPS, Recorder, Steps, first_line
from diagnose.capture.record.window import (
    MAX_STEP_CALLS,
    FrameCount,
    StepSize,
    WindowKind,
)
from diagnose.capture.steps.step_source import converged_since
from diagnose.model.limits import FEWEST
from diagnose.model.statistics import MIN_LONG_RATIO, grows

# How long steps are watched once everything is recorded: until what recurs now and then has been seen to recur.

STEADY_NS = 3_000_000_000  # of steps without a profiler, where they are all alike
ALL_NS = 5_000_000_000  # of steps, recorded ones included, where no window was broken off inside one
RARE_NS = 15_000_000_000  # where some are long, until as many have come as show a period, and until the next comes


class WatchedSteps:
    """Takes the length of every step since times were steady."""

    def __init__(self) -> None:
        self._plain: list[int] = []
        self._plain_ns = self._all_ns = 0
        self._broken_ns = 0  # the longest step inside which a window was broken off
        self._look_at_ns = 0
        self._was_enough = False

    def add(self, took_ns: int, state: StepState, *, broken_off: bool = False) -> None:
        """Take a step that is over; a window broken off inside it was too small for what may come again."""
        self._all_ns += took_ns
        if broken_off:
            self._broken_ns = max(self._broken_ns, took_ns)
        if state == "plain":
            self._plain.append(took_ns)
            self._plain_ns += took_ns

    @property
    def enough(self) -> bool:
        """Return whether further steps are unlikely to show anything else."""
        if not self._was_enough and self._all_ns >= self._look_at_ns:
            self._look_at_ns = self._all_ns + 250_000_000  # the next look
            self._was_enough = self._is_enough()
        return self._was_enough

    def _is_enough(self) -> bool:
        usual = median(self._plain) if self._plain else 0
        long = [ns for ns in self._plain if ns > MIN_LONG_RATIO * usual]
        if sum(long) - usual * len(long) >= MIN_RARE_SHARE * max(self._plain_ns, 1) and long:
            return self._plain_ns >= (STEADY_NS if len(long) >= 3 else RARE_NS)  # three show a period
        if usual and self._broken_ns > MIN_LONG_RATIO * usual:
            return self._plain_ns >= ALL_NS
        # If steps get longer one after the other, samples must show at which place.
        if self._plain_ns < 8_000_000_000 and grows(self._plain):
            return False
        return self._plain_ns >= STEADY_NS or self._all_ns >= ALL_NS


# How many steps a recorded window has, and how many show that steps are steady.

USUAL_STEPS = 10  # of a window without --steps: the median of ten is steady to a few percent
LONG_STEP_S = 1.0  # of such steps one and one show that they are steady: they vary little


def fitting_steps(times: Sequence[int], device_ns: float | None) -> int:
    """Return how many steps make a window long enough for the sampler and for a steady median.

    ``times`` are the host's (ns), which may only queue what the device takes ``device_ns`` for.
    """
    step_ns = max(median(times[-USUAL_STEPS:]), device_ns or 0.0)
    # A window of five seconds needs no ten steps: long ones vary less. One of short steps lasts half a second,
    # a hundred samples of the executing line.
    least = min(max(math.ceil(5_000_000_000 / step_ns), 2), USUAL_STEPS)
    return min(max(math.ceil(500_000_000 / step_ns), least), 100)


def attribution_steps(step_mb: float, left_mb: float) -> int:
    """Return how many steps of ``step_mb`` of JSON text the attribution window may have, where ``left_mb`` are left."""
    # 21 MB name the same lines as 87 MB, and the command took 12.5 s of CPU time instead of 23.4 (a loader that indexes
    # 1,024 rows in each step).
    return int(min(left_mb, max(30.0, 3 * step_mb)) / step_mb)


def steady_steps(times: Sequence[int]) -> int:
    """Return how many steps make the smallest group that is compared with the one before."""
    return 1 if times and median(times[-2:]) >= LONG_STEP_S * 1e9 else FEWEST


_NOT_RECORDED = "Some steps are much longer than the others, and none came while steps were recorded as a program."

REST_STEPS = 2  # unprofiled steps between windows: the first absorbs the cost of stopping, the second refills the queue
RESERVED_STEPS = 4  # the least that the windows need: one to warm up and one to record, twice
TIMING_MB_SHARE = 0.4  # of max_mb for the timing window


class Plan:
    """Runs the plan; ``boundary`` is called at every step boundary, on the thread that steps.

    With ``at_once``, which a quick plan may be given, recording begins here: steps are long.
    """

    def __init__(
        self, options: CaptureOptions, hooks: PlanHooks, measured: Measurements, *, at_once: bool = False
    ) -> None:
        self._together = hooks.num_ranks > 1
        longest_s = min(options.max_seconds, QUICK_S) if options.quick else options.max_seconds
        # Ranks that decided by their own clocks would part: together they have no bound of time.
        self._max_s = math.inf if self._together else longest_s
        self._at_once = at_once
        self.done = self.failed = False
        self.num_steps = 0
        self._num_steps = USUAL_STEPS
        self._graphs = 0  # that torch.compile had made once steps were steady
        self._usual_s = 0.0  # what a step takes, where a long one may leave out what costs more than it would show
        self._options = options
        self._hooks = hooks
        self._measured = measured
        self._began_at = time.monotonic()
        self._step_began = time.perf_counter_ns()
        measured.clock.mark(0)
        self._latest_ns = 0
        self._watched = WatchedSteps()
        self._long = LongSteps()
        self._steps = self._script()
        self._recorder = Recorder(hooks, measured)
        self._functions = 0  # that a step calls, 0 where that is not known
        self.has_begun = False  # a window, which holds no whole step at first
        self._state: StepState = "plain"  # of the step that is under way
        self._over = False  # --max-seconds was reached inside a step
        next(self._steps)

    def boundary(self) -> None:
        """Take notice that a step is over; errors of the profiler end the plan, never the script."""
        duration = time.perf_counter_ns() - self._step_began
        if self.done:
            return
        self._latest_ns = duration
        self._recorder.end_step()
        self.num_steps += 1
        self._measured.clock.mark(self.num_steps)
        was = self._recorder.state
        state: StepState = self._state if was == self._state else "edge"
        self._long.add(duration, state)
        if self.has_begun and not self._recorder.flow.counts:  # as the script has it
            self._watched.add(duration, state, broken_off=self._recorder.broken_off)
        self._hooks.stepped(duration, state)
        try:
            if not self._over and self._left_s() <= 0:
                self.cut()
            if self._over:
                self.close()
                return
            self._steps.send(duration)
        except StopIteration:
            self.done = True
        except Exception as error:  # a fault of the capture must not become the script's
            self.done = self.failed = True
            self._measured.notes.append(f"The capture failed: {type(error).__name__}: {first_line(error)}.")
        now = self._recorder.state
        self._state = "edge" if now == "plain" != was else now
        self._recorder.begin_step(self.num_steps)
        self._step_began = time.perf_counter_ns()

    def close(self) -> None:
        """End the plan wherever it is; a window that holds a whole step is kept."""
        self._steps.close()
        self.done = True

    @property
    def wanted_steps(self) -> int:
        """Return how many steps the first timing window is to have."""
        return self._options.steps or min(self._num_steps, USUAL_STEPS)

    @property
    def due_in(self) -> float:
        """Return in how many seconds to look whether a bound is reached inside a step; 0 once one is."""
        if self.done:
            return math.inf
        if not self.has_begun:
            self._recorder.script_heap.look()
            return max(0.0, min(self._left_s(), 0.05))
        return max(0.0, min(self._left_s(), self._recorder.full_in))

    def cut(self) -> bool:
        """Stop recording inside a step, on the thread that steps; return whether the time is over for good."""
        self._over = self._left_s() <= 0
        bound = self._time_bound if self._over else f"--max-mb {self._options.max_mb:g}"
        if self._over and not self._recorder.recording:
            self._measured.notes.append(
                f"The recording was ended by {bound} inside step {self.num_steps}; allow more for all of its parts."
            )
        self._recorder.cut(f"{bound} inside step {self.num_steps}")
        return self._over

    def _left_s(self) -> float:
        """Return the time that is left before what is recorded now must be written."""
        if self._over:
            return math.inf
        return self._began_at + self._max_s - self._recorder.write_s - time.monotonic()

    @property
    def _time_bound(self) -> str:
        return f"--max-seconds {self._max_s:g}" if self._max_s == self._options.max_seconds else "--quick"

    def disturb(self) -> None:
        """Give way at once to a profiler that the script starts."""
        self._recorder.disturb()

    def _quick(self) -> Steps:
        """Record one timing window; long steps are neither waited for nor timed without the profiler."""
        self._measured.notes.append(
            "With --quick one short window is recorded, without stacks, shapes and memory: operators have no callers, "
            "and how near kernels come to what the device can do is not known. Leave --quick out for these."
        )
        if self._at_once:
            self._measured.notes.append("Steps are long, so no time was spent on waiting until they are steady.")
            self._hooks.converged()
        else:
            yield from self._wait()
            yield from self._plain()
        self.has_begun, self._recorder.keeps_parts = True, True
        most = self._num_steps, self._options.max_mb
        yield from self._recorder.record("light", *most, lambda: self._full("light", 1.0))

    def _script(self) -> Steps:
        if self._options.quick:
            yield from self._quick()
            return
        yield from self._wait()
        yield from self._plain()
        self.has_begun = True
        first = self.wanted_steps
        yield from self._record("light", first, 0.8)
        if self._recorder.given_up and not self._measured.timing:
            return
        if self._affords(REST_STEPS + 2):
            yield from self._count_functions()
            # A call of C code that was counted when it began has to be over: the profiler would see it return only,
            # and torch 2.6 loses the whole window then.
            yield from self._pass(1)
        if self._hooks.compiled() != self._graphs:
            # In 4 of 12 such scripts torch 2.13 crashed in that window, or wrote names that are no text.
            self._recorder.stacks = False
            self._measured.notes.append(
                "torch.compile compiles in these steps, which torch's profiler cannot follow: Python functions were "
                "not recorded, so lines come from the sampler, and operators have no stacks."
            )
        if self._recorder.without_timing and not self._together:
            return
        yield from self._record("attribution", self._attribution_steps(), 1.0)
        longer = self._longer_window()
        if longer > first and self._affords(longer):  # short steps: a timing window that lasts, now the rest is safe
            yield from self._pass(REST_STEPS)
            yield from self._record("light", longer, 1.0)
        if self._options.dataflow and self._affords(2 * FLOW_STEPS):
            yield from self._recorder.flow.record()
            if not self._together and self._affords(2 * USUAL_STEPS):
                yield from self._recorder.flow.count_turns(USUAL_STEPS)
        yield from self._observe()

    def _observe(self) -> Steps:
        """Let steps pass that are timed only, until what recurs now and then has recurred, or to the end."""
        if self._together or self._options.steps is not None:
            return
        self._max_s = math.inf  # of the recording, which is over
        if self._options.keep_going or not self._watched.enough:
            self._hooks.report("watching further steps without recording them")
        looks = self._options.dataflow and bool(self._measured.dataflow_file)
        try:
            while self._options.keep_going or not self._watched.enough or (looks and self._awaited() is not None):
                due = self._awaited() if looks else None
                if due is None or due.steps != 1:
                    yield
                else:
                    looks = False
                    yield from self._recorder.flow.record_long(due)
        finally:
            if looks and self._long_due() is not None:
                self._measured.notes.append(_NOT_RECORDED)

    def _long_due(self) -> Due | None:
        """Return when the next long step comes, None where none recur that take a part of the time."""
        return self._long.due(self._measured.converged_after or 2)

    def _awaited(self) -> Due | None:
        """Return when the next long step comes, None where none does in time."""
        due = self._long_due()
        return due if due is not None and (due.steps + 1) * self._usual_s * 1e9 <= RARE_NS else None

    def _affords(self, num_steps: int) -> bool:
        """Return whether so many steps like the latest end in time."""
        return num_steps * self._latest_ns / 1e9 < self._left_s()

    def _wait(self) -> Steps:
        """Watch step times until they settle; with several ranks wait a fixed number of steps."""
        fixed = self._together or self._options.skip == 0
        # Compiling, autotuning and caches are over before 40 steps, or never; 20 that several ranks wait are past
        # compilation and the first buckets, and still affordable.
        usual = 40 if not fixed else 3 if self._options.quick else 20
        limit = self._options.skip if self._options.skip is not None else usual
        times: list[int] = []
        converging_from = 0
        compiled = self._hooks.compiled()
        converged: int | None = None
        # Of --max-seconds 40 % are for waiting, 20 % for unprofiled steps, 20 % for the timing window.
        while len(times) < limit and not (times and (self._late(0.4) or not self._affords(RESERVED_STEPS))):
            times.append((yield))
            if compiled != self._hooks.compiled():
                compiled, converging_from, converged = self._hooks.compiled(), len(times), None
            if converged is None:
                converged = converged_since(times[converging_from:], steady_steps(times[converging_from:]))
            if converged is not None and not fixed and not self._hooks.undecided():
                break
            now_ms = median(times[-8:]) / 1e6
            self._hooks.report(f"waiting for a steady state: step {len(times)}, now {now_ms:.1f} ms each")
        self._graphs = self._hooks.compiled()
        self._num_steps = self._options.steps or USUAL_STEPS
        if times and not self._together and self._options.steps is None:
            self._num_steps = fitting_steps(times, self._measured.clock.recent_ns)
            self._usual_s = median(times[-USUAL_STEPS:]) / 1e9
        self._hooks.converged()
        if converged is not None:
            self._measured.converged_after = converging_from + converged
            self._measured.unprofiled += times[converging_from + converged :]
        elif times:
            if not self._affords(RESERVED_STEPS):
                self._measured.unprofiled.append(times[-1])
            self._measured.notes.append(
                f"Step times had not settled after {len(times)} steps; the numbers may include warm-up."
            )
        self._measured.first["unprofiled"] = self.num_steps - len(self._measured.unprofiled) + 1

    def _plain(self) -> Steps:
        """Time steps with no profiler running, where the wait has not timed enough of them."""
        times = self._measured.unprofiled
        wanted = self.wanted_steps - (0 if self._together else len(times))
        if wanted > 0:
            self._hooks.report(f"measuring {wanted} steps without the profiler")
        for _ in range(wanted):
            if times and (self._late(0.6) or not self._affords(RESERVED_STEPS)):
                break
            times.append((yield))

    def _record(self, kind: WindowKind, num_steps: int, share: float) -> Steps:
        limit_mb = self._options.max_mb - sum(self._measured.mb.values())
        if kind == "light":
            other = self._measured.mb.get("attribution", 0.0)
            limit_mb = min(TIMING_MB_SHARE * self._options.max_mb, self._options.max_mb - other)
        # The profiler's own first step costs some 0.1 s: of three seconds a few percent, and times with stacks count
        # for nothing.
        warm_up = self._affords(2) and self._usual_s < (3.0 if kind == "light" else LONG_STEP_S)
        return self._recorder.record(kind, num_steps, limit_mb, lambda: self._full(kind, share), warm_up=warm_up)

    def _count_functions(self) -> Steps:
        """Count the functions that one step calls; where they are too many, stacks are left out."""
        functions = FrameCount()
        functions.start()
        try:
            yield
        finally:
            functions.stop()
        if not functions.is_known:
            return
        self._functions = functions.functions
        if self._functions > MAX_STEP_CALLS:
            self._recorder.stacks = False
            self._measured.notes.append(
                f"A step calls more than {MAX_STEP_CALLS:,} Python functions, so they were not recorded: lines "
                "come from the sampler, and operators have no stacks."
            )
        elif self._measured.timing:
            step_s = median(self._measured.timing) / 1e9
            self._recorder.expect("attribution", StepSize(self._attribution_mb(), step_s))

    def _attribution_mb(self) -> float:
        """Return what a step of the attribution window takes, judging by the timing window and what it calls."""
        measured = self._measured
        # A step takes 3.1 times the MB of one of the timing window, measured on small CPU steps; a call 330 bytes.
        operators = 3.5 * measured.mb["light"] / len(measured.timing)
        return max(operators, measured.mb["light"] / len(measured.timing) + self._functions * 330 / 1e6)

    def _attribution_steps(self) -> int:
        """Return how many steps the attribution window may have, judging its size by the timing window's."""
        # Stacks are heavy and name the same lines in every step.
        wanted = 1 if self._usual_s >= LONG_STEP_S else min((self._num_steps + 1) // 2, 20)
        measured = self._measured
        if self._together or not measured.timing:
            return wanted
        per_step = self._attribution_mb()
        fitting = attribution_steps(per_step, self._options.max_mb - measured.mb["light"]) if per_step else wanted
        if self._functions and self._recorder.stacks:
            fitting = min(fitting, 2 * MAX_STEP_CALLS // self._functions - 1)
        return max(1, min(wanted, fitting))

    def _longer_window(self) -> int:
        """Return how many steps a second timing window may have, judging its size by the first one's."""
        timing, timing_mb = self._measured.timing, self._measured.mb.get("light", 0.0)
        if not timing or not timing_mb:
            return 0
        return min(self._num_steps, int(TIMING_MB_SHARE * self._options.max_mb * len(timing) / timing_mb))

    def _full(self, kind: WindowKind, share: float) -> bool:
        """Return whether the window must close early for lack of time, and note why."""
        if self._affords(1) and not self._late(share):
            return False
        if not self._options.quick:
            self._measured.notes.append(f"The {kind} window was cut short by {self._time_bound}.")
        return True

    def _late(self, share: float) -> bool:
        return time.monotonic() - self._began_at > share * self._max_s

    def _pass(self, num_steps: int) -> Steps:
        for _ in range(num_steps):
            yield

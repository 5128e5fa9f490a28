"""Whether the steps without the profiler, before and after the recorded ones, show what recording costs.

They are what the recorded steps are set against. Where something else slowed the machine before the recording, or
during it, the recorded steps are no longer than those before, though the step is longer than usual; the steps after it
show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.diagnosis import PlainSteps
from diagnose.model.intervals import quantiles
from diagnose.model.limits import FEWEST
from diagnose.tables import Tables
from diagnose.tables.run_steps import MIN_RUN_STEPS, PLAIN, TIMING, run_mean, settled, usable_steps, variation
from diagnose.tables.steps import COLD_RATIO

BESIDE_NS = 3_000_000_000  # of steps on either side, as long as steps are watched after a recording; 8 of long ones
MIN_DIFFERENCE = 0.1  # of the shorter step: as much as counts as converged
MAX_STEADY = 0.2  # quartiles apart, over the median: equal steps lie at 0.1, on a busy machine at up to 0.3


class _Beside(NamedTuple):
    """Step times in ns, nearest to the timing window first, and those in it; empty where too few are known."""

    before: Floats
    recorded: Floats
    after: Floats
    first: int = 0  # row of the first step that counts: those before it were slower than what was recorded and followed


def unprofiled_steps(t: Tables) -> Floats:
    """Return the times of the steps that ran without the profiler, ns; empty if none were timed.

    All of the run count where they are known, else those right before the timing window.
    """
    info, of_run = t.capture.info, steps_of_run(t)
    return warm(of_run) if len(of_run) else warm(info.unprofiled_ms if info is not None else ()) * 1e6


def steps_of_run(t: Tables) -> Floats:
    """Return the times of all steps of the run that ran without the profiler, ns; empty where they do not count.

    With a device the host's steps may run ahead of the device's, and the profiler, which stays attached afterwards,
    makes launches longer. Of several ranks each knows the steps right before the timing window alone.
    """
    run, info = t.capture.run, t.capture.info
    if run is None or t.device_id >= 0 or (info is not None and info.world_size > 1):
        return np.empty(0)
    run = settled(run, t.capture)
    rows = np.flatnonzero(usable_steps(run, t.capture) & (run.state == PLAIN))
    beside, varies = _beside(t), variation(t.capture)
    if beside is not None and (varies is None or varies.per_work_ns is None):
        rows = rows[rows >= beside.first]
    return run.step_ns[rows if len(rows) >= FEWEST else rows[:0]].astype(np.float64)


def warm(steps: Sequence[float] | Floats) -> Floats:
    """Return the times of steps without the first ones that are cold."""
    times = np.array(steps, np.float64)
    while len(times) > 1 and times[0] > max(COLD_RATIO * np.median(times[1:]), times[1:].max()):
        times = times[1:]
    return times


def plain_steps(t: Tables) -> PlainSteps | None:
    """Return what steps took around the timing window, None where the run's steps are not known, or not the device's.

    With a device those after the window count for nothing where they differ, nor does the run's mean then: its
    profiler stays attached and makes their launches longer (on an H100 steps of 23 ms took 37 ms after the recording).
    """
    beside = _beside(t)
    mean = run_mean(t.capture.run, t.capture) if t.capture.run is not None else None
    if beside is None or mean is None:
        return None
    before, recorded, after, _ = beside
    alike = not (len(before) and len(after)) or not _differ(before, after)
    lasts = t.device_id < 0 or alike
    if t.device_id >= 0:
        after, alike = after[:0], True
    agree = alike and not any(_is_longer(each, recorded) for each in (before, after) if len(each))
    varies = variation(t.capture)  # by what steps work on, which recorded steps are compared by
    return PlainSteps(
        before_ns=_median(before),
        recorded_ns=float(np.median(recorded)),
        after_ns=_median(after),
        mean_ns=mean[0] if lasts else None,
        num=mean[1],
        agree=agree or (varies is not None and varies.per_work_ns is not None) or t.growing_steps is not None,
    )


def steady_beside(t: Tables) -> bool:
    """Return whether recorded steps can be compared with those beside them although steps vary over the run.

    Both are alike among themselves then: what makes other steps longer, as another program does that started later,
    is not in them.
    """
    beside, plain = _beside(t), t.plain_steps
    if beside is None or plain is None or not plain.agree:
        return False
    nearest = beside.before if len(beside.before) or t.device_id >= 0 else beside.after
    return _is_steady(nearest) and _is_steady(beside.recorded)


def _beside(t: Tables) -> _Beside | None:
    run, info = t.capture.run, t.capture.info
    if run is None or info is None or not info.light_ms or not info.unprofiled_ms:
        return None
    if t.device_id >= 0 and not len(run.device_ns):
        return None  # the host runs ahead by any number of steps
    run = settled(run, t.capture)
    plain = np.flatnonzero(usable_steps(run, t.capture) & (run.state == PLAIN))
    # The longest run of consecutive rows: of two timing windows the longer one is kept.
    rows = np.flatnonzero(run.state == TIMING)
    parts = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    window = max(parts, key=len)
    if not len(window):
        return None
    times = run.step_ns.astype(np.float64)
    recorded = np.array(info.light_ms) * 1e6
    before = _nearest(times[plain[plain < window[0]]][::-1])
    after = _nearest(times[plain[plain > window[-1]]])
    if len(before) and len(after) and _is_longer(before, after) and not _differ(recorded, after):
        # The script became faster before it was recorded: as those after it are the recorded ones.
        return _Beside(before[:0], recorded, after, int(window[-1]))
    return _Beside(before, recorded, after)


def _is_steady(times: Floats) -> bool:
    if len(times) < MIN_RUN_STEPS:
        return False
    first, median, third = quantiles(times, 0.25, 0.5, 0.75)
    return third - first <= MAX_STEADY * median


def _nearest(times: Floats) -> Floats:
    """Return the first of these times that count, none of too few."""
    num = max(int(np.searchsorted(np.cumsum(times), BESIDE_NS)), MIN_RUN_STEPS)
    return times[:num] if len(times) >= FEWEST else times[:0]


def _differ(one: Floats, other: Floats) -> bool:
    return _is_longer(one, other) or _is_longer(other, one)


def _is_longer(longer: Floats, shorter: Floats) -> bool:
    """Return whether steps are longer than others by more than the quartiles of either lie apart."""
    (low, middle, high), (other_low, other, other_high) = (quantiles(x, 0.25, 0.5, 0.75) for x in (longer, shorter))
    return bool(middle - other > max(high - low, other_high - other_low, MIN_DIFFERENCE * other))


def _median(times: Floats) -> float | None:
    return float(np.median(times)) if len(times) else None

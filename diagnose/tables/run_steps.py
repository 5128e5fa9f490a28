"""The whole run, step by step: its phases, steps that are long now and then, and steps that vary by themselves.

A capture times every step, recorded or not. Steps that were recorded take longer, so each is set against the median of
those recorded in the same way; steps in which a profiler was started or had just been stopped count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from diagnose.model.arrays import Floats, Ints, Mask, Rows
from diagnose.model.capture import Capture, RunSteps
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import among, covered, quantiles, union
from diagnose.model.statistics import sum_factor
from diagnose.tables import Tables, shared_table
from diagnose.tables.run_lines import place_of
from diagnose.tables.run_phases import phase_steps

__all__ = [
    "COLLECTION",
    "MIN_RATIO",
    "MIN_STEPS",
    "PLAIN",
    "TIMING",
    "Stall",
    "Variation",
    "phase_shares",
    "run_mean",
    "stalls",
    "usable_steps",
    "variation",
]

COLLECTION = "collection"
"""What explains a long step in which Python's garbage collector ran: no phase, it runs inside of any of them."""

EDGE = 3  # rows of capture.record.run_log.STATES
ATTRIBUTION = 2
TIMING = 1
PLAIN = 0
MIN_STEPS = 8  # of a run that is judged
MIN_PHASE_STEPS = 4  # whose phases are known: of long steps no more are watched
MIN_RATIO = 3.0  # of the median: steps on a busy machine are up to twice as long now and then
SEEN_PHASES = ("evaluation", "rollout", "inference", "checkpoint", COLLECTION)  # by events, and no part of every step
MIN_PHASE_RATIO = 0.5  # of the median: a step with so much of one of these is a long one, whatever the machine does
MIN_LABEL_SHARE = 0.5  # of what a long step takes longer, for a phase to explain it
MAX_USUAL_SHARE = 0.1  # of a usual step: a phase that takes more of it than this is nothing special
MIN_REGULAR = 0.7  # of the distances between long steps, and of the steps where one is expected
MIN_COUNT = 3  # of steps at a regular distance, where nothing else explains them
WORKERS = 16  # a loader with so many workers may be late at every 16th batch: that is the loader's own rule
VARYING = 0.5  # quartiles of the step times apart, over the median: equal steps on a busy machine lie at 0.1 to 0.3
MIN_CORRELATION = 0.8  # of times with what the steps worked on


class Stall(NamedTuple):
    """Steps that take several times as long as the others; times in ns."""

    rows: Rows
    period: int  # steps from one to the next, 0 where they do not recur regularly
    num_steps: int  # that were judged
    base_ns: float  # of the other steps, the median
    each_ns: float  # of these, the median
    lost_ns: float  # what they take longer, spread over all steps
    share: float  # of the run's time
    factor: float  # 95 %: by which their cost may differ, as few as they are and as unequal
    phase: str  # of run_phases.PHASES, "" where none explains them
    phase_share: float  # of what they take longer
    place: tuple[tuple[str, int, str], ...]  # file, line, function, and its callers; innermost first
    place_share: float  # of the samples that they have more than other steps
    in_function: bool  # those of the place's function; else of its line

    @property
    def every(self) -> int:
        """Return how many steps come to one of these."""
        return self.period or max(2, round(self.num_steps / len(self.rows)))


class Variation(NamedTuple):
    """How far steps differ that were not recorded, and what they cost by what they worked on."""

    low_ns: float  # a tenth of them took less
    high_ns: float  # a tenth took more
    base_ns: float  # of a step without any work, where the times follow the work
    per_work_ns: float | None  # None where they do not


class _Judged(NamedTuple):
    """A run with what its steps are set against."""

    run: RunSteps
    capture: Capture
    usable: Mask  # steps that count
    base: Floats  # the median of the steps that were recorded in the same way
    within: Mapping[str, Ints]  # ns of each step by phase, and by the collector, which runs inside of phases


def _within_steps(run: RunSteps, capture: Capture) -> dict[str, Ints]:
    """Return ns per step and phase, and of the collector's runs; the latter lie inside of the phases.

    Runs in every step of a kind are part of those steps; earlier captures noted them in timing windows only.
    """
    samples = capture.run_samples
    noted = np.array(samples.gc_runs if samples is not None else (), np.int64).reshape(-1, 2)
    collected = covered(union((noted[:, 0], noted[:, 1])), run.began_ns, run.began_ns + run.took_ns)
    for state in (PLAIN, TIMING, ATTRIBUTION):
        rows = run.state == state
        if rows.any() and np.median(collected[rows]) > MAX_USUAL_SHARE * np.median(run.took_ns[rows]):
            collected[rows] = 0
    return {COLLECTION: collected, **phase_steps(run)}


def phase_shares(capture: Capture) -> dict[str, float]:
    """Return the share of the run's time in each phase that came, the largest first; they sum to 1."""
    run = capture.run
    if run is None:
        return {}
    rows = np.flatnonzero(usable_steps(run, capture) & (run.state != ATTRIBUTION))
    times = (
        {name: float(ns[rows].sum()) for name, ns in phase_steps(run).items()} if len(rows) >= MIN_PHASE_STEPS else {}
    )
    whole = sum(times.values())
    return (
        {name: ns / whole for name, ns in sorted(times.items(), key=lambda item: -item[1]) if ns > 0} if whole else {}
    )


@shared_table
def stalls(t: Tables) -> tuple[Stall, ...]:
    """Return the kinds of long steps that recur, or that a phase explains."""
    run = t.capture.run
    return () if run is None else tuple(_stalls(run, t.capture))


def variation(capture: Capture) -> Variation | None:
    """Return how far equal steps differ, None where they are alike or too few."""
    times, work = _unrecorded(capture)
    if len(times) < MIN_STEPS:
        return None
    first, median, third = quantiles(times, 0.25, 0.5, 0.75)
    if third - first <= VARYING * median:
        return None
    low, high = quantiles(times, 0.1, 0.9)
    base, per_work = 0.0, None
    if len(work) and work.std() > 0 and np.corrcoef(work, times)[0, 1] >= MIN_CORRELATION:
        slope, start = np.polyfit(work, times, 1)
        base, per_work = float(start), float(slope)
    return Variation(low, high, base, per_work)


def _unrecorded(capture: Capture) -> tuple[Floats, Floats]:
    """Return the times of steps without a profiler, and what they worked on, where that is known."""
    run, info = capture.run, capture.info
    if run is not None:
        rows = np.flatnonzero(usable_steps(run, capture) & (run.state == PLAIN))
        work = run.phase("work")[rows].astype(np.float64)
        return run.step_ns[rows].astype(np.float64), work if (work > 0).all() else np.empty(0)
    return np.array(info.unprofiled_ms if info else (), np.float64) * 1e6, np.empty(0)


def usable_steps(run: RunSteps, capture: Capture) -> Mask:
    """Return which steps count: those after the warm-up that a profiler neither began nor ended in."""
    converged_after = capture.info.settled_after if capture.info is not None else None
    usable: Mask = run.state != EDGE
    usable[: min(converged_after if converged_after is not None else 2, run.num // 4)] = False
    return usable


def _stalls(run: RunSteps, capture: Capture) -> Iterator[Stall]:
    usable = usable_steps(run, capture)
    base = _bases(run, usable)
    usable &= base > 0
    base[base == 0] = 1.0
    ratio = np.where(usable, run.step_ns / base, 0.0)
    usable &= ratio > 0
    if int(usable.sum()) < MIN_STEPS:
        return
    judged = _Judged(run, capture, usable, base, _within_steps(run, capture))
    long = usable & ((ratio >= MIN_RATIO) | _in_a_phase(judged))
    if not long.any() or 2 * long.sum() > usable.sum():
        return
    labels = _labels(judged, np.flatnonzero(long), np.flatnonzero(usable & ~long))
    for label in dict.fromkeys(labels):
        rows = np.array([row for row, own in zip(np.flatnonzero(long), labels, strict=True) if own == label], np.intp)
        groups = [rows] if label else _by_size(rows, ratio, usable)
        for group in groups:
            period = _period(group, usable)
            if _is_kept(label, group, period):
                yield _stall(judged, group, label, period)


def run_mean(run: RunSteps, capture: Capture) -> tuple[float, int] | None:
    """Return the mean step of the run, ns, without what recording makes longer, and of how many; None where unknown."""
    usable = usable_steps(run, capture)
    base = _bases(run, usable)
    plain = base[usable & (run.state == PLAIN)]
    rows = np.flatnonzero(usable & (base > 0))
    if not len(plain) or plain[0] <= 0:
        return None
    return float((run.step_ns[rows] * (plain[0] / base[rows])).mean()), len(rows)


def _bases(run: RunSteps, usable: Mask) -> Floats:
    """Return for each step the median of those that were recorded in the same way, 0 for fewer than two."""
    base = np.zeros(run.num)
    for state in (PLAIN, TIMING, ATTRIBUTION):
        rows = np.flatnonzero(usable & (run.state == state))
        if len(rows) >= 2:
            base[rows] = np.median(run.step_ns[rows])
    return base


def _in_a_phase(steps: _Judged) -> Mask:
    """Return which steps hold much of a phase that usual steps do not have; no load of the machine changes that."""
    usable, base = steps.usable, steps.base
    found = np.zeros(steps.run.num, bool)
    for name, ns in steps.within.items():
        if name in SEEN_PHASES and np.median(ns[usable]) <= MAX_USUAL_SHARE * np.median(base[usable]):
            found |= ns >= MIN_PHASE_RATIO * base
    return found


def _is_kept(label: str, rows: Rows, period: int) -> bool:
    """Return whether long steps are a finding: they recur regularly, or what they do is known."""
    if label == "loading":
        return period > WORKERS
    if label == COLLECTION:  # the first ones of a program come late and once
        return len(rows) >= MIN_COUNT
    return bool(label) or (period > 0 and len(rows) >= MIN_COUNT)


def _labels(steps: _Judged, long: Rows, usual: Rows) -> list[str]:
    """Return the phase that explains each long step, "" where none does: one that usual steps hardly have.

    Where the collector ran for as long, it explains the phase in which it did.
    """
    run, base = steps.run, steps.base
    phases = {name: ns for name, ns in steps.within.items() if name != "training"}
    usual_ns = {name: float(np.median(ns[usual])) if len(usual) else 0.0 for name, ns in phases.items()}
    found = []
    for row in long.tolist():
        more = {
            name: float(ns[row]) - usual_ns[name]
            for name, ns in phases.items()
            if usual_ns[name] <= MAX_USUAL_SHARE * base[row] or name == "loading"
        }
        excess = float(run.step_ns[row]) - base[row]
        collects = more.get(COLLECTION, 0.0) >= MIN_LABEL_SHARE * max(excess, 1.0)
        name = COLLECTION if collects else max(more, key=lambda each: more[each], default="")
        found.append(name if name and more[name] >= MIN_LABEL_SHARE * excess else "")
    return found


def _by_size(rows: Rows, ratio: Floats, usable: Mask) -> list[Rows]:
    """Return long steps in groups: all, or where the longest recur at a distance of their own those and the others."""
    longest = ratio[rows] >= 0.5 * ratio[rows].max()
    parts = [group for group in (rows[longest], rows[~longest]) if len(group)]
    apart = all(len(group) >= MIN_COUNT and _period(group, usable) for group in parts)
    return parts if apart or not _period(rows, usable) else [rows]


def _period(rows: Rows, usable: Mask) -> int:
    """Return the distance at which steps recur, 0 where they do not.

    Nearly all distances are multiples of it, and nearly all steps where one is expected are among them.
    """
    distances = np.diff(rows)
    for period in sorted(set(distances.tolist())):
        if period < 2 or (distances % period == 0).mean() < MIN_REGULAR:
            continue
        expected = np.arange(rows[0] % period, len(usable), period)
        expected = expected[usable[expected]]
        if len(expected) and among(expected, rows).mean() >= MIN_REGULAR:
            return int(period)
    return 0


def _stall(steps: _Judged, rows: Rows, label: str, period: int) -> Stall:
    run, usable, base = steps.run, steps.usable, steps.base
    times = run.step_ns.astype(np.float64)
    plain = base[np.flatnonzero(usable & (run.state == PLAIN))]
    base_ns = float(plain[0] if len(plain) else base[rows[0]])
    scale = base_ns / base  # what recording made longer
    phase = steps.within[label][rows].astype(np.float64) * scale[rows] if label else np.zeros(len(rows))
    excess = np.maximum((times[rows] - base[rows]) * scale[rows], phase)
    judged = np.flatnonzero(usable)
    lost = float(excess.sum()) / len(judged)
    shared = place_of(run, steps.capture, rows, judged[~among(judged, rows)])
    return Stall(
        rows=rows,
        period=period,
        num_steps=len(judged),
        base_ns=base_ns,
        each_ns=float(np.median(times[rows] * scale[rows])),
        lost_ns=lost,
        share=lost * len(judged) / float((times[judged] * scale[judged]).sum()),
        factor=sum_factor(excess.tolist(), is_regular=period > 0),
        phase=label,
        phase_share=min(1.0, float(phase.sum() / excess.sum())),
        place=shared.path,
        place_share=shared.share,
        in_function=shared.in_function,
    )

"""The whole run, step by step: its phases, steps that are long now and then, and steps that vary by themselves.

A capture times every step, recorded or not. Steps that were recorded take longer, so each is set against the median of
those recorded in the same way; steps in which a profiler was started or had just been stopped count for nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Ints, Mask, Rows
from diagnose.model.capture import Capture, RunSteps, Samples
from diagnose.model.events import Kind
from diagnose.model.guards import checked_by
from diagnose.model.intervals import Intervals, among, contains, covered, distinct, quantiles, union
from diagnose.model.limits import FEW, MAJORITY, MIN_RECURRENCES, MIN_REGIONS, PREVAILS
from diagnose.model.records import CompilationRecord
from diagnose.model.statistics import grows, sum_factor
from diagnose.tables import Tables
from diagnose.tables.names import LOADER_NEXT, OPTIMIZER_STEP

# What each step of the run goes into.

PHASES = ("training", "loading", "evaluation", "rollout", "inference", "checkpoint", "other")
"""What a step's time goes into; the first is what is left, and is inference where nothing is trained."""


def phase_steps(run: RunSteps) -> Mapping[str, Ints]:
    """Return ns per step and phase; they sum to the time of the step."""
    trains = bool(run.phase("backwards").any())
    parts = {name: run.phase(name) for name in PHASES[1:]}
    # Steps with gradients off hardly more often than those without a rollout evaluate: a target network or an attack,
    # which each step has, is no part of a rollout. With batches nothing is known of it.
    work, others = run.phase("work"), run.phase("rollout") == 0
    more = work - (np.median(work[others]) if others.any() else 0)
    few = (run.phase("loading") == 0) & (work > 0) & (more < MIN_REGIONS)
    parts["inference"] = parts["inference"] + np.where(few, parts["rollout"], 0)
    parts["rollout"] = np.where(few, 0, parts["rollout"])
    if not trains:  # without gradients all the time: nothing there is beside the model
        zero = np.zeros(run.num, np.int64)
        parts |= dict.fromkeys(("evaluation", "rollout", "inference", "other"), zero)
    rest = np.maximum(run.took_ns - sum(parts.values(), np.zeros(run.num, np.int64)), 0)
    if trains:
        return {"training": rest, **parts}
    return {**parts, "training": np.zeros(run.num, np.int64), "inference": rest}


# Samples whose time is not that of their line: loading seen where nothing is loaded, a loop's head in the optimizer.
#
# The process that samples reads the clock, then frames. Where it loses its core between the two, the line is of up to
# some ms later: one of the next batch lies in the optimizer's step. Of few samples in a short piece it may be the only
# one.

# Of a function's samples, those outside of loading: more are no accident. Of 120 samples on two busy cores one was.
MIN_SAMPLES_WITHIN = 2  # of its samples within loading, for one outside: a training loop fetches batches as well
_OF_DATASETS = frozenset({"__getitem__", "__getitems__"})  # which little else has: these need none within
_LOOP_HEAD = r"^for\b.+\bin\b.+:\s*(#.*)?$"  # which calls the iterator, and nothing else


def is_loop_head(code: str | None) -> bool:
    """Return whether a line of source is a loop's head, which fetches what other lines make."""
    return re.match(_LOOP_HEAD, (code or "").strip()) is not None


def functions_of(samples: Samples) -> tuple[list[tuple[str, str]], Ints]:
    """Return file and name of the functions that the sampler saw, and for each sample its function, -1 for none."""
    functions = sorted({(file, function) for file, _, function in samples.places})
    number = {each: i for i, each in enumerate(functions)}
    of_place = np.array([number[file, function] for file, _, function in samples.places] + [-1], np.int64)
    return functions, of_place[samples.place]


def late_samples(t: Tables) -> Mask:
    """Return which of the sampler's rows were read later than their time shows, of those that this is known of."""
    samples = t.capture.samples
    if samples is None or not t.trace.epoch_ns:
        return np.zeros(0, bool)
    functions, seen = functions_of(samples)
    time = samples.time_ns - t.trace.epoch_ns
    start, end = t.steps.window
    watched = (seen >= 0) & (time >= start) & (time < end)
    loading = contains(t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)), time)
    within, outside = (np.bincount(seen[watched & part], minlength=len(functions)) for part in (loading, ~loading))
    of_datasets = np.array([function in _OF_DATASETS for _, function in functions], bool)
    loads = (within >= MIN_SAMPLES_WITHIN) | (of_datasets & loading.any())
    loads &= outside <= np.maximum(FEW * (within + outside), 1)
    heads = [is_loop_head(t.capture.lines.get((file, line))) for file, line, _ in samples.places]
    at_head = np.array([*heads, False], bool)[samples.place]
    late: Mask = watched & ~loading & np.append(loads, False)[seen]
    late |= watched & at_head & contains(t.covering(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP)), time)
    return late


def sampled_lines(t: Tables) -> tuple[Ints, Rows]:
    """Return when the sampler saw a line of the user's, in order, and which; late samples are left out."""
    samples = t.capture.samples
    if samples is None or not t.trace.epoch_ns:
        return np.empty(0, np.int64), np.empty(0, np.intp)
    kept = np.flatnonzero((samples.place >= 0) & ~t.late_samples)
    time = samples.time_ns[kept] - t.trace.epoch_ns
    order = np.argsort(time, kind="stable")
    return time[order], samples.place[kept][order].astype(np.intp)


def sampled_files(t: Tables) -> Mapping[str, set[str]]:
    """Return the files that the sampler saw, by the last part of their names."""
    found: dict[str, set[str]] = {}
    samples, run = t.capture.samples, t.capture.run
    places = [*(samples.places if samples else ()), *(at for path in (run.paths if run else ()) for at in path)]
    for file in {file for file, _, _ in places}:
        found.setdefault(PurePosixPath(file).name, set()).add(file)
    return found


# The lines in which long steps of a run spend their time, by the samples that the run has of them.

# A line that usual steps are in as well, as the call of the training function, says nothing of long ones: then the
# largest of their lines is named that has so much of what they have more.
MIN_SAMPLES_AT_PART, USUAL_SHARE = 0.3, 0.9
MIN_LONG_STEP_SAMPLES = 5


_Place = tuple[str, int, str]  # file, line, function
_ALL_LINES = 0  # in the place of a line: the function


class Shared(NamedTuple):
    """What most samples of long steps share that usual steps do not have."""

    path: tuple[_Place, ...] = ()  # the line and its callers; innermost first
    share: float = 0.0  # of the samples, at the line and in what it calls; or in the function
    in_function: bool = False  # the samples counted are those of the line's function, of which it has most
    usual_share: float = 0.0  # of the samples of usual steps, there
    num_samples: int = 0  # of long steps
    num_more: float = 0.0  # of these, what they take longer


def place_of(run: RunSteps, capture: Capture, long: Rows, usual: Rows) -> Shared:
    """Return the innermost line that most samples share which long steps have more than usual ones."""
    paths, seen_ns, row = run.paths, run.sampled_ns, run.path
    in_long = samples_in(run, long, seen_ns)
    samples = capture.run_samples
    if in_long.sum() < MIN_LONG_STEP_SAMPLES and samples is not None:  # they came while a window was open
        paths, seen_ns, row = tuple((place,) for place in samples.places), samples.time_ns, samples.place
        in_long = samples_in(run, long, seen_ns) & (row >= 0)
    if in_long.sum() < MIN_LONG_STEP_SAMPLES:
        return Shared()
    in_usual = samples_in(run, usual, seen_ns) & (row >= 0)
    usual_time, long_time = float(run.took_ns[usual].sum()), float(run.took_ns[long].sum())
    per_step = usual_time / max(len(usual), 1) * len(long)
    weight = per_step / usual_time if usual_time else 0.0
    more: defaultdict[_Place, float] = defaultdict(float)
    depth: defaultdict[_Place, int] = defaultdict(int)
    counted = [(1.0, np.bincount(row[in_long], minlength=len(paths)))]
    counted.append((-weight, np.bincount(row[in_usual], minlength=len(paths))))
    for factor, counts in counted:
        for i in np.flatnonzero(counts).tolist():
            innermost: dict[_Place, int] = {}
            for level, line in enumerate(paths[i]):
                innermost.setdefault(line, level)
                innermost.setdefault(_function_of(line), level)
            for place, level in innermost.items():
                more[place] += factor * int(counts[i])
                depth[place] = max(depth[place], len(paths[i]) - level)
    whole = float(in_long.sum()) * max(0.0, 1 - per_step / long_time if long_time else 0.0)
    # Of the samples that long steps have more than others.
    least = PREVAILS * whole

    def is_shared(line: _Place) -> bool:
        return more[line] >= least or (more[line] >= MAJORITY * whole and more[_function_of(line)] >= least)

    shared = [place for place in depth if place[1] != _ALL_LINES and is_shared(place)] if whole > 0 else []
    if not shared:
        return Shared()
    line = max(shared, key=lambda place: depth[place])
    usual_counts = counted[1][1]
    in_function = more[line] < least
    if _share_at(line, paths, usual_counts) >= USUAL_SHARE:
        inner = [place for place in depth if place[1] != _ALL_LINES and depth[place] > depth[line]]
        parts = [place for place in inner if more[place] >= MIN_SAMPLES_AT_PART * whole]
        line = max(parts, key=lambda place: (more[place], -depth[place]), default=line)
        in_function = False
    path = _calling(line, paths, counted)
    named = _function_of(line) if in_function else line
    share = min(1.0, more[named] / whole)
    usual_there = _share_at(named, paths, usual_counts)
    return Shared(path, share, in_function, usual_there, int(in_long.sum()), whole)


def _calling(
    line: _Place, paths: Sequence[tuple[_Place, ...]], counted: Sequence[tuple[float, Ints]]
) -> tuple[_Place, ...]:
    """Return a line and what calls it in most of the counted samples: usual steps may call it from elsewhere."""
    found: defaultdict[tuple[_Place, ...], float] = defaultdict(float)
    for factor, counts in counted:
        for i in (i for i in np.flatnonzero(counts).tolist() if line in paths[i]):
            found[paths[i][paths[i].index(line) :]] += factor * int(counts[i])
    return max(found, key=lambda path: found[path])


def _share_at(place: _Place, paths: Sequence[tuple[_Place, ...]], counts: Ints) -> float:
    """Return the share of the samples at a line or in a function, and in what it calls."""
    at = [place in path or place in map(_function_of, path) for path in paths]
    return float(counts[np.array(at, bool)].sum() / max(counts.sum(), 1))


def _function_of(place: _Place) -> _Place:
    file, _, function = place
    return file, _ALL_LINES, function


def lines_in(capture: Capture, start: Ints, length: Ints) -> list[_Place]:
    """Return the innermost lines of the samples in these intervals of time, those with most samples first."""
    counted: Counter[_Place] = Counter()
    run, samples = capture.run, capture.run_samples
    if run is not None:
        counted.update(run.paths[row][0] for row in run.path[_within(start, length, run.sampled_ns)].tolist())
    if samples is not None:
        seen = samples.place[_within(start, length, samples.time_ns) & (samples.place >= 0)]
        counted.update(samples.places[row] for row in seen.tolist())
    return [place for place, _ in counted.most_common()]


def samples_in(run: RunSteps, rows: Rows, times: Ints) -> Mask:
    """Return which times lie within one of these steps."""
    return _within(run.began_ns[rows], run.took_ns[rows], times)


def _within(start: Ints, length: Ints, times: Ints) -> Mask:
    return contains(Intervals(start, start + length), times)


COLLECTION = "collection"
"""What explains a long step in which Python's garbage collector ran: no phase, it runs inside of any of them."""

EDGE = 3  # rows of capture.record.run_log.STATES
ATTRIBUTION = 2
TIMING = 1
PLAIN = 0
MIN_RUN_STEPS = 8  # of a run that is judged
MIN_RATIO = 3.0  # of the median: steps on a busy machine are up to twice as long now and then
SEEN_PHASES = ("evaluation", "rollout", "inference", "checkpoint", COLLECTION)  # by events, and no part of every step
MAX_USUAL_SHARE = 0.1  # of a usual step: a phase that takes more of it than this is nothing special
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
    times = {name: float(ns[rows].sum()) for name, ns in phase_steps(run).items()}
    whole = sum(times.values())
    return {name: ns / whole for name, ns in sorted(times.items(), key=lambda item: -item[1]) if ns > 0}


def stalls(t: Tables) -> tuple[Stall, ...]:
    """Return the kinds of long steps that recur, or that a phase explains."""
    run, capture, found = t.capture.run, t.capture, list[Stall]()
    if run is None:
        return ()
    whole, run = run, settled(run, capture)
    usable = usable_steps(run, capture) & (run.took_ns == whole.took_ns)
    base = _bases(run, usable)
    usable &= base > 0
    base[base == 0] = 1.0
    ratio = np.where(usable, run.step_ns / base, 0.0)
    usable &= ratio > 0
    if int(usable.sum()) < MIN_RUN_STEPS:
        return ()
    judged = _Judged(run, capture, usable, base, _within_steps(run, capture))
    long = usable & (ratio >= MIN_RATIO)
    # Steps that hold much of a phase that usual steps do not have; no load of the machine changes that.
    for name, ns in judged.within.items():
        if name in SEEN_PHASES and np.median(ns[usable]) <= MAX_USUAL_SHARE * np.median(base[usable]):
            long |= usable & (ns >= MAJORITY * base)
    if not long.any() or 2 * long.sum() > usable.sum():
        return ()
    every = np.flatnonzero(long)
    labels = _labels(judged, every, np.flatnonzero(usable & ~long))
    for label in dict.fromkeys(labels):
        rows = every[[own == label for own in labels]]
        for group in [rows] if label else _by_size(rows, ratio, usable):
            period = _period(group, usable)
            is_many = len(group) >= MIN_RECURRENCES  # the collector's first runs in a program come late and once
            is_known = is_many if label == COLLECTION else period > WORKERS if label == "loading" else bool(label)
            if is_known or (not label and period > 0 and is_many):
                found.append(_stall(judged, group, label, period))
    return tuple(found)


def variation(capture: Capture) -> Variation | None:
    """Return how far equal steps differ, None where they are alike or too few."""
    run, info, work = capture.run, capture.info, np.empty(0)
    times = np.array(info.unprofiled_ms if info else (), np.float64) * 1e6
    if run is not None:
        run = settled(run, capture)
        rows = np.flatnonzero(usable_steps(run, capture) & (run.state == PLAIN))
        times, work = run.step_ns[rows].astype(np.float64), run.phase("work")[rows].astype(np.float64)
    if len(times) < MIN_RUN_STEPS:
        return None
    first, median, third = quantiles(times, 0.25, 0.5, 0.75)
    if third - first <= VARYING * median:
        return None
    low, high = quantiles(times, 0.1, 0.9)
    base, per_work = 0.0, None
    if (work > 0).all() and len(work) and work.std() > 0 and np.corrcoef(work, times)[0, 1] >= MIN_CORRELATION:
        slope, start = np.polyfit(work, times, 1)
        base, per_work = float(start), float(slope)
    return Variation(low, high, base, per_work)


def usable_steps(run: RunSteps, capture: Capture) -> Mask:
    """Return which steps count: those after the warm-up that a profiler neither began nor ended in."""
    converged_after = capture.info.settled_after if capture.info is not None else None
    usable: Mask = run.state != EDGE
    usable[: min(converged_after if converged_after is not None else 2, run.num // 4)] = False
    return usable


def run_mean(run: RunSteps, capture: Capture) -> tuple[float, int] | None:
    """Return the mean step of the run, ns, without what recording makes longer, and of how many; None where unknown."""
    run, usable = settled(run, capture), usable_steps(run, capture)
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
        collects = more.get(COLLECTION, 0.0) >= MAJORITY * max(excess, 1.0)
        name = COLLECTION if collects else max(more, key=lambda each: more[each], default="")
        found.append(name if name and more[name] >= MAJORITY * excess else "")
    return found


def _by_size(rows: Rows, ratio: Floats, usable: Mask) -> list[Rows]:
    """Return long steps in groups: all, or where the longest recur at a distance of their own those and the others."""
    longest = ratio[rows] >= 0.5 * ratio[rows].max()
    parts = [group for group in (rows[longest], rows[~longest]) if len(group)]
    apart = all(len(group) >= MIN_RECURRENCES and _period(group, usable) for group in parts)
    return parts if apart or not _period(rows, usable) else [rows]


def _period(rows: Rows, usable: Mask) -> int:
    """Return the distance at which steps recur, 0 where they do not.

    Nearly all distances are multiples of it, and nearly all steps where one is expected are among them.
    """
    distances = np.diff(rows)
    for period in sorted(set(distances.tolist())):
        # Of the distances between long steps, and of the steps where one is expected.
        if period < 2 or (distances % period == 0).mean() < PREVAILS:
            continue
        expected = np.arange(rows[0] % period, len(usable), period)
        expected = expected[usable[expected]]
        if len(expected) and among(expected, rows).mean() >= PREVAILS:
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


# Code that torch.compile compiles again in steady steps, as torch noted it over the whole run.
#
# A window of ten steps may hold none of it, and a guard that fails once in twenty steps still takes most of the time.


class Recompiling(NamedTuple):
    """What compiling again takes of the run after its start; times in ns."""

    num: int  # steps in which something is compiled again
    num_steps: int  # that were judged
    each_ns: float  # that compiling takes of one of these steps
    lost_ns: float  # of the mean step
    share: float  # of the run's time
    factor: float  # 95 %: by which its cost may differ
    compilations: tuple[CompilationRecord, ...]  # in these steps, for the guard that failed most often


# A number that changed twice goes on, as counters, temperatures and rates do, and so do flags of parameters. Sizes may
# be a few, of which the last ones come late.
MIN_CHANGES = 2


def recompiling(t: Tables) -> Recompiling | None:
    """Return what is compiled again once the run has started, None where that stops.

    What the first quarter of the steps compiles is the start, up to as many versions as torch makes by itself. A guard
    has to fail time and again: an evaluation and the last batch of an epoch let others fail once each. Of steps that
    were recorded with stacks only the number counts.
    """
    run, capture = t.capture.run, t.capture
    if run is None or run.num < MIN_RUN_STEPS:
        return None
    again = [each for each in capture.known.compiled.compilations if each.version]
    # Of a function: torch's own limit, which scripts raise.
    start = run.num // 4 if all(each.version < 8 for each in again) else 0
    failed = defaultdict[tuple[str, ...], list[CompilationRecord]](list)
    for each in again:
        failed[each.file, each.function, re.sub(r"\d+(\.\d+)?", "#", each.guard)].append(each)
    found = dict[tuple[str, ...], Rows]()
    for guard, those in failed.items():
        rows = np.flatnonzero(_compiling_ns(run, those)[start:]) + start
        goes_on = checked_by(those[0].guard) in ("number", "flag")
        if len(rows) >= (MIN_CHANGES if goes_on else MIN_RECURRENCES):
            found[guard] = rows
    within, base = _compiling_ns(run, again), settled(run, capture).step_ns[start:]
    rows = distinct(*found.values()) if found else np.empty(0, np.intp)
    timed = rows[run.state[rows] != ATTRIBUTION]
    plain = base[run.state[start:] == PLAIN]
    if not len(timed) or not len(plain):
        return None
    lost_ns = float(within[timed].mean()) * len(rows) / len(base)
    return Recompiling(
        num=len(rows),
        num_steps=len(base),
        each_ns=float(np.median(within[timed])),
        lost_ns=lost_ns,
        share=lost_ns / (lost_ns + float(plain.mean())),
        factor=sum_factor(within[rows].tolist(), is_regular=_period(rows, np.ones(run.num, bool)) > 0),
        compilations=tuple(failed[max(found, key=lambda guard: len(found[guard]))]),
    )


def _compiling_ns(run: RunSteps, noted: Iterable[CompilationRecord]) -> Ints:
    """Return what these compilations took of each step."""
    times = np.array([(each.began_ns, each.took_ns) for each in noted], np.int64).reshape(-1, 2)
    compiling = union((times[:, 0], times[:, 0] + times[:, 1]))
    return covered(compiling, run.began_ns, run.began_ns + run.took_ns)


def settled(run: RunSteps, capture: Capture) -> RunSteps:
    """Return the steps without what compiling took of them: it makes no step a long one, and ends, or has a rule."""
    compiling = _compiling_ns(run, capture.known.compiled.compilations)
    if not compiling.any():
        return run
    by_device = run.device_ns
    if len(by_device):
        by_device = np.where(by_device > 0, np.maximum(by_device - compiling, 1), 0)
    return replace(run, took_ns=np.maximum(run.took_ns - compiling, 1), device_ns=by_device)


# Steps that get longer as the run goes on, because of the work at one place: it grows with what is stored.
#
# A machine that becomes slower makes everything in a step longer; here one place has what the later steps take longer,
# and the rest of the step stays nearly as it was.

NEAREST = 16  # steps, whose median is the level there
MIN_DEVIATIONS = 3.0  # of the samples there: that many more than a machine that slows everything would show


class GrowingSteps(NamedTuple):
    """How steps grow; times in ns."""

    num_steps: int
    first_ns: float  # of a step at the beginning of the watched ones
    last_ns: float
    lost_ns: float  # what the mean step takes longer than at the beginning
    unrecorded_ns: float  # what it takes longer than the recorded ones
    share: float  # of the run's time, of ``lost_ns``
    place: Shared


def growing_steps(t: Tables) -> GrowingSteps | None:
    """Return how the steps that were not recorded grow, and where; None where they do not, or no place shows."""
    run, info = t.capture.run, t.capture.info
    if run is None or t.device_id >= 0 or (info is not None and info.world_size > 1):
        return None  # the host's steps are not the device's, nor those of other ranks
    run = settled(run, t.capture)
    rows = np.flatnonzero(usable_steps(run, t.capture) & (run.state == PLAIN))
    times = run.step_ns[rows].astype(np.float64)
    if not grows(times.tolist()):
        return None
    half = len(rows) // 2
    place = place_of(run, t.capture, rows[half:], rows[:half])
    # The place has more of what steps take longer than of the step, and the rest hardly grows. If it has nearly all of
    # the step, samples cannot show that.
    if not place.path or (1 - place.share) > MAJORITY * (1 - place.usual_share):
        return None
    deviation = math.sqrt(2 * place.num_samples * place.usual_share * (1 - place.usual_share))  # of two counts
    if (place.share - place.usual_share) * place.num_more < MIN_DEVIATIONS * max(deviation, 1.0):
        return None
    mean = float(times.mean())
    first, last = (float(np.median(part)) for part in (times[:NEAREST], times[-NEAREST:]))
    recorded = np.flatnonzero(run.state == TIMING)
    nearest = np.argsort(np.abs(rows - recorded.mean()), kind="stable")[:NEAREST] if len(recorded) else slice(None)
    lost = max(mean - first, 0.0)
    unrecorded = max(mean - float(np.median(times[nearest])), 0.0)
    return GrowingSteps(len(rows), first, last, lost, unrecorded, lost / mean, place)

"""From runs to trials: runs without and with a change, compared by time, and by their losses step by step.

`ProveResult` is what all trials of one ``diagnose prove`` showed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

from diagnose.answer.cards import certainty
from diagnose.changes import CHANGES
from diagnose.changes.common.change import Numerics as ChangedNumerics
from diagnose.changes.common.change import Promise, other_training
from diagnose.model.diagnosis import Trial
from diagnose.model.limits import MAX_LOSSES, Doubt
from diagnose.model.statistics import middle_step, noise_of, speed_up
from diagnose.reports.saving_words import CERTAINTY
from diagnose.trials.candidates import Candidate, together
from diagnose.trials.measuring import TrialResult

Kind: TypeAlias = Literal["single", "combination", "without"]
Numerics: TypeAlias = Literal["identical", "within", "drifted", "unknown"]

COMPARED_LOSSES = 30  # from the first on: later ones differ by the chaos of training, whatever the cause
MIN_LOSSES = 3  # fewer show nothing
# Median relative distance of the losses that a promise allows; roundings grow about tenfold in the first steps.
ALLOWED: dict[Promise, float] = {"identical": 1e-5, "rounding": 1e-3, "reduced": 2e-2}  # from strict to loose
FROM_BEST: tuple[Numerics, ...] = ("identical", "within", "unknown", "drifted")
DOUBTS: Mapping[Doubt, str] = {
    "noise not known": "There was no time to see how far equal runs differ, so nothing is certain; give --budget more.",
    "disturbed": "Unchanged copies of the script differed for certain while it was measured, so nothing is.",
    "measured once": ("It was measured once only, since the budget was used up; raise --budget to measure it again."),
    "interrupted": "It was interrupted, so this is not certain yet.",
    "not repeated": "A second pair of runs was not as certain, so the first may have been chance.",
}
OTHER_DRAWS = (
    "Other random numbers are drawn with the change, by samples or for dropout: losses cannot show whether the rest "
    "stays the same."
)
LATER_EPOCHS = (
    "Later epochs draw other random numbers with kept workers: only the {num} losses of the first are compared."
)
ONLY_FIRST = "Later epochs draw other random numbers with kept workers, so only the first can be compared."


class TrialRuns(NamedTuple):
    """The runs of one change."""

    ids: Sequence[str]
    baselines: Sequence[TrialResult]  # those next to the variants, in the same minutes of the machine
    variants: Sequence[TrialResult]
    all_baselines: Sequence[TrialResult]
    kind: Kind = "single"


def joined(blocks: Sequence[TrialRuns], all_baselines: Sequence[TrialResult]) -> TrialRuns:
    """Return the runs of one change, measured several times, as if they were measured at once."""
    beside = {id(run): run for block in blocks for run in block.baselines}  # two blocks may share the run between them
    variants = [run for block in blocks for run in block.variants]
    return TrialRuns(blocks[0].ids, list(beside.values()), variants, all_baselines, blocks[0].kind)


class Times(NamedTuple):
    """What a change did to the step."""

    before_ms: tuple[float, ...]
    after_ms: tuple[float, ...]
    speed_up: float
    interval: tuple[float, float]
    noise: float | None
    mean_ms: tuple[float, float]


def evaluate(candidate: Candidate, measured: TrialRuns, times: Times | None = None) -> Trial:
    """Return what a change did to the time and to the losses, those of every run with it.

    ``times`` were taken by turns; without them those of the runs count.
    """
    ids, baselines, variants, all_baselines, kind = measured
    good = [run for run in variants if run.step_ns]
    before = [run.step_ns for run in baselines if run.step_ns]
    failure = next((run.failure for run in variants if run.failure), "")
    if not good or not before:
        failed = skipped(replace(candidate, skip_reason=failure or "The unchanged run next to it failed."))
        return replace(failed, ids=tuple(ids), kind=kind)
    times = times or _times(before, [run.step_ns for run in good], all_baselines)
    unchanged = [run.losses for run in all_baselines if run.losses] or [()]
    parity = _parity(ids, unchanged, good, all_baselines)
    worst = good[parity.run]
    norms = [norms_apart(baselines[0].grad_norms, run.grad_norms) for run in good]
    apart = max((each for each in norms if each is not None), default=None)
    skips = baselines[0].skipped_steps, good[0].skipped_steps
    notes = [
        f"Applied: {'; '.join(good[0].applied)}.",
        *_left_alone(good[0]),
        _skip_words(good[0].skipped_steps),
        "A gradient's norm is not finite on one side only." if apart == math.inf else "",
        "" if all(run.converged for run in good) else "Its step times had not settled before they were measured.",
        parity.note,
        f"One run with it failed. {failure}" if failure else "",
    ]
    return Trial(
        id=candidate.id,
        title=candidate.title,
        ids=tuple(ids),
        kind=kind,
        baseline_ms=times.before_ms,
        step_ms=times.after_ms,
        speed_up=times.speed_up,
        interval=times.interval,
        numerics=parity.numerics,
        mean_ms=times.mean_ms,
        predicted_ms=None if candidate.predicted_ratio is None else candidate.predicted_ratio * times.mean_ms[0],
        noise=times.noise,
        peak_bytes=_peaks(baselines, good),
        skipped_steps=None if skips == (None, None) else (skips[0] or 0, skips[1] or 0),
        losses=(unchanged[0][:MAX_LOSSES], worst.losses[:MAX_LOSSES]),
        drift=parity.drift,
        worst_drift=parity.worst_drift,
        drift_limits=parity.limits,
        grad_norms=(baselines[0].grad_norms, worst.grad_norms),
        grad_drift=apart,
        note=" ".join(filter(None, notes)),
    )


def _times(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], all_baselines: Sequence[TrialResult]
) -> Times:
    noise = max(noise_of([run.step_ns for run in all_baselines if run.step_ns]), noise_of(after))
    faster = speed_up(before, after, noise)
    old, new = (tuple(ns / 1e6 for run in runs for ns in run) for runs in (before, after))
    means = middle_step(before) / 1e6, middle_step(after) / 1e6
    return Times(old, new, faster.ratio, (faster.low, faster.high), noise, means)


def skipped(candidate: Candidate) -> Trial:
    """Return the trial of a change of which nothing could be measured."""
    name, title, why = candidate.id, candidate.title, candidate.skip_reason
    return Trial(name, (), (), 1.0, (0.0, 0.0), "unknown", title, (name,), failure=why)


def nothing_done(run: TrialResult) -> str:
    """Return why a change that was run cannot have done anything: it is the script without it."""
    return " ".join(["It found nothing to change.", *_left_alone(run)])


def is_gain(trial: Trial) -> bool:
    """Return whether the change made the step shorter for certain, and left the numbers as it promised."""
    return not trial.failure and trial.interval[0] > 1.0 and trial.numerics != "drifted"


def is_certain(trial: Trial) -> bool:
    """Return whether the change made the step shorter or longer for certain."""
    low, high = trial.interval
    return not trial.failure and not low <= 1.0 <= high


def is_inconclusive(trial: Trial) -> bool:
    """Return whether the runs were too uneven to say if the change helps or does nothing."""
    low, high = trial.interval
    # Ends of an interval around 1 that are further apart than this do not show what a change does.
    return not trial.failure and low <= 1.0 <= high and high > 1.25 * low


def doubted(trial: Trial, doubt: Doubt) -> Trial:
    """Return the trial with a doubt in its note; unless it was measured once only, its interval then includes 1."""
    low, high = trial.interval
    interval = trial.interval if doubt == "measured once" else (min(low, 1.0), max(high, 1.0))
    return replace(trial, interval=interval, doubt=doubt, note=f"{trial.note} {DOUBTS[doubt]}".strip())


def sentence(trial: Trial) -> str:
    """Return what became of a trial, for a line of progress."""
    if trial.failure:
        return f"{trial.id}: {trial.failure}"
    low, high = trial.interval
    sure = "faster" if low > 1 else "slower" if high < 1 else CERTAINTY[certainty(trial)]
    without = "without " if trial.kind == "without" else ""
    return f"{without}{trial.id}: {trial.speed_up:.2f} x ({low:.2f} to {high:.2f}), {sure}; losses {trial.numerics}"


def loosest(ids: Sequence[str]) -> Promise:
    """Return the promise of several changes together: that of the one which changes the numbers most."""
    promises = (numerics.promise or "reduced" for numerics in map(_numerics, ids))
    return max(promises, key=list(ALLOWED).index, default="identical")


def _numerics(name: str) -> ChangedNumerics:
    """Return what a change does to the numbers; of the author's own edit nothing is promised."""
    return CHANGES[name].numerics if name in CHANGES else other_training("")


def _left_alone(run: TrialResult) -> list[str]:
    return [f"Left alone: {'; '.join(run.refused).rstrip('.')}."] if run.refused else []


def _skip_words(num: int | None) -> str:
    steps = "step was" if num == 1 else "steps were"
    return "" if num is None else f"{num} optimizer {steps} skipped, since gradients overflowed."


def _peaks(baselines: Sequence[TrialResult], variants: Sequence[TrialResult]) -> tuple[int, int] | None:
    before = [run.peak_bytes for run in baselines if run.peak_bytes is not None]
    after = [run.peak_bytes for run in variants if run.peak_bytes is not None]
    return (int(median(before)), int(median(after))) if before and after else None


class Parity(NamedTuple):
    """What the losses of all runs with a change show: what the worst of them does."""

    numerics: Numerics
    drift: float | None = None  # median relative distance
    worst_drift: float | None = None  # of the loss that is furthest away
    limits: tuple[float, float] | None = None  # of both
    note: str = ""
    run: int = 0  # which of the runs it was
    distance: float = math.inf  # of the losses, in units of the limits


class _Distance(NamedTuple):
    middle: float
    worst: float
    step: int  # of the worst, from 0


def _parity(
    ids: Sequence[str],
    unchanged: Sequence[Sequence[float]],
    variants: Sequence[TrialResult],
    baselines: Sequence[TrialResult],
) -> Parity:
    """Return what the losses show, as far as the changes draw the same random numbers as the script without them."""
    promise, numerics = loosest(ids), [_numerics(name) for name in ids]
    changed = [run.losses for run in variants]
    parity = compare_losses(unchanged, changed, promise)
    epochs = [run.first_epoch for run in (*baselines, *variants) if run.first_epoch is not None]
    if parity.drift is None or parity.numerics != "drifted":
        return parity
    if epochs and any(each.first_epoch for each in numerics):  # losses after the first epoch show nothing
        num = min(epochs)
        first = compare_losses([each[:num] for each in unchanged], [each[:num] for each in changed], promise)
        if first.numerics == "unknown":
            return parity._replace(numerics="unknown", note=f"{ONLY_FIRST} {first.note}")
        parity = first._replace(note=f"{first.note} {LATER_EPOCHS.format(num=num)}".strip())
    draw_samples = any(run.samples_draw for run in baselines)
    draws_otherwise = any(each.other_draws or (each.own_draws and draw_samples) for each in numerics)
    if draws_otherwise and parity.numerics == "drifted" and parity.drift is not None:
        return parity._replace(numerics="unknown", note=OTHER_DRAWS)
    return parity


def compare_losses(
    baselines: Sequence[Sequence[float]], variants: Sequence[Sequence[float]], promise: Promise
) -> Parity:
    """Evaluate the losses of every changed run; where the baseline differs from itself, its own spread is allowed too.

    Identical means bit by bit, over every loss that both have. Within means that over the first 30 losses the median
    distance is no larger than the change promises, and the largest no more than ten times that; or both no more than
    three times what the baseline differs from itself. The result is that of the run furthest from the baseline.
    """
    first = baselines[0]
    own = [_distance(first, other) for other in baselines[1:]] or [_Distance(0.0, 0.0, 0)]
    own_middle, own_worst = max(one.middle for one in own), max(one.worst for one in own)
    limits = max(ALLOWED[promise], 3 * own_middle), max(10 * ALLOWED[promise], 3 * own_worst)
    each = [_of_run(first, losses, limits)._replace(run=i) for i, losses in enumerate(variants)]
    worst = max(each, key=lambda parity: (FROM_BEST.index(parity.numerics), parity.distance))
    note = worst.note
    if note and len(each) > 1:
        alike = sum(one.numerics == worst.numerics for one in each)
        note = f"In {alike} of {len(each)} runs with the change: {note}"
    if own_worst and worst.numerics in ("within", "drifted"):
        note += f" Unchanged, it differs from itself by {own_middle:.1e} (median loss); that is allowed for."
    return worst._replace(note=note.strip())


def norms_apart(baseline: Sequence[float], variant: Sequence[float]) -> float | None:
    """Return the median relative distance of the first steps' gradient norms; infinite where only one is finite.

    None where either has none: an optimizer that is not torch's, or sparse gradients.
    """
    if not baseline or not variant:
        return None
    if any(math.isfinite(a) != math.isfinite(b) for a, b in zip(baseline, variant, strict=False)):
        return math.inf
    return _distance(baseline, variant).middle


def _of_run(first: Sequence[float], losses: Sequence[float], limits: tuple[float, float]) -> Parity:
    pairs = list(zip(first, losses, strict=False))
    if not first and not losses:
        return Parity("unknown", note="No loss was seen: backward was called on no scalar.")
    if len(pairs) < MIN_LOSSES:
        seen = f"{len(first)} unchanged, {len(losses)} with the change"
        return Parity("unknown", note=f"Too few losses to compare: {seen}, at least {MIN_LOSSES} are needed.")
    bad = next((i for i, (a, b) in enumerate(pairs) if math.isfinite(a) and not math.isfinite(b)), None)
    if bad is not None:
        return Parity("drifted", note=f"Loss {bad + 1} is not finite; unchanged it is.")
    found, note = _distance(first, losses), ""
    parity = Parity("identical", found.middle, found.worst, limits)
    parity = parity._replace(distance=max(found.middle / limits[0], found.worst / limits[1]))
    if all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs):
        return parity
    if found.middle > limits[0]:
        note = f"The median loss is {found.middle:.1e} away, of {limits[0]:.1e} allowed."
    elif found.worst > limits[1]:
        note = f"Loss {found.step + 1} is {found.worst:.1e} away, of {limits[1]:.1e} allowed."
    return parity._replace(numerics="drifted" if note else "within", note=note)


def _distance(a: Sequence[float], b: Sequence[float]) -> _Distance:
    """Return how far ``b`` is from ``a``, relative to it.

    For a single loss that is relative to the median one at least: a loss near 0 has no relative distance to speak of.
    """
    pairs = zip(a[:COMPARED_LOSSES], b[:COMPARED_LOSSES], strict=False)
    steps = [(i, abs(x), abs(x - y)) for i, (x, y) in enumerate(pairs) if math.isfinite(x) and math.isfinite(y)]
    if not steps:
        return _Distance(0.0, 0.0, 0)
    usual = median(size for _, size, _ in steps)
    worst, step = max((apart / max(size, usual, 1e-12), -i) for i, size, apart in steps)
    return _Distance(median(apart / max(size, 1e-12) for _, size, apart in steps), worst, -step)


NOTHING_TRIED = "The budget ended before any change could be tried; give --budget more."
INTERRUPTED = "It was interrupted before it was measured."
CUT_OFF = "The budget ended while it ran; give --budget more."
ALONE_IS_BEST = "Together the changes are not a certain gain; only the largest is."


@dataclass
class ProveResult:
    """What the runs showed."""

    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    best: tuple[str, ...] = ()  # ids whose gain is certain, applied together in the last trial
    nothing_tried: bool = False  # the budget ended before
    interrupted: bool = False  # by Ctrl-C: what was known until then is there

    def end(self, wanted: Sequence[str], left_out: Sequence[str]) -> None:
        """Note for which of the wanted changes there was no time, and choose the best of the others."""
        num_cut_off = sum(trial.failure == CUT_OFF for trial in self.trials)
        self.nothing_tried = bool(wanted) and num_cut_off + len(left_out) == len(wanted)
        self.notes += [NOTHING_TRIED] if self.nothing_tried else []
        if left_out:
            self.notes.append(f"The budget ended before {', '.join(left_out)} could be run; give --budget more.")
        self.best = gains(self.trials)

    def interrupt(self, chosen: Sequence[Candidate]) -> None:
        """Keep what is known of the changes after Ctrl-C."""
        self.interrupted = True
        known = {name for trial in self.trials for name in (trial.id, *trial.ids)}
        left = [replace(each, skip_reason=INTERRUPTED) for each in chosen if each.id not in known]
        self.trials += map(skipped, left)
        self.best = gains(self.trials)[:1]  # several have not been measured together to the end


def gains(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the changes that helped, the largest gain first; of those that change the same thing the best."""
    found = sorted((t for t in trials if t.kind == "single" and is_gain(t)), key=lambda t: -t.speed_up)
    return together([t.id for t in found])

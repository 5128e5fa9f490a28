"""From runs to trials: pairs of baseline and changed runs, evaluated for time and for numbers."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

from diagnose.changes import CHANGES
from diagnose.changes.common.change import Promise
from diagnose.model.diagnosis import Trial, shows_no_difference
from diagnose.model.limits import MAX_LOSSES
from diagnose.model.statistics import is_even, middle_step, noise_of, speed_up
from diagnose.trials.candidates import Candidate
from diagnose.trials.spec import TrialResult

__all__ = [
    "Parity",
    "TrialRuns",
    "compare_losses",
    "error_text",
    "evaluate",
    "is_certain",
    "is_gain",
    "is_inconclusive",
    "is_settled",
    "joined",
    "loosest",
    "norms_apart",
    "nothing_done",
    "of_first_epoch",
    "of_other_draws",
    "sentence",
    "skipped",
    "undecided",
    "with_note",
]

# What a script raised, as a part of a sentence, and what became of a trial.


def error_text(error: BaseException) -> str:
    """Return the exception's name and the first line of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return f"{type(error).__name__}: {lines[0].rstrip('.')}{_saved_file(error)}"


def _saved_file(error: BaseException) -> str:
    """Return the name of the file that torch.save could not open, which its error lacks."""
    if "open file failed" not in str(error):
        return ""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "save"]
    return next((f": {str(found['f'])!r}" for found in reversed(frames) if isinstance(found.get("f"), str | Path)), "")


def sentence(trial: Trial) -> str:
    """Return what became of a trial, for a line of progress."""
    if trial.failure:
        return f"{trial.id}: {trial.failure}"
    low, high = trial.interval
    even = "no difference" if shows_no_difference(trial) else "no difference that is certain"
    sure = "faster" if low > 1 else "slower" if high < 1 else even
    without = "without " if trial.kind == "without" else ""
    return f"{without}{trial.id}: {trial.speed_up:.2f} x ({low:.2f} to {high:.2f}), {sure}; losses {trial.numerics}"


# Whether a changed script still computes the same: the losses of its runs against the baseline's, step by step.

Numerics: TypeAlias = Literal["identical", "within", "drifted", "unknown"]

COMPARED_LOSSES = 30  # from the first on: later ones differ by the chaos of training, whatever the cause
MIN_LOSSES = 3  # fewer show nothing
# Median relative distance of the losses that a promise allows; roundings grow about tenfold in the first steps.
ALLOWED: dict[Promise, float] = {"identical": 1e-5, "rounding": 1e-3, "reduced": 2e-2}
WORST_STEP = 10.0  # times the allowed median: no single loss may be further away
SPREAD = 3.0  # times the distance between two runs of the baseline itself
OTHER_DRAWS = (
    "Other random numbers are drawn with the change, by samples or for dropout: losses cannot show whether the rest "
    "stays the same."
)
LATER_EPOCHS = (
    "Later epochs draw other random numbers with kept workers: only the {num} losses of the first are compared."
)
ONLY_FIRST = "Later epochs draw other random numbers with kept workers, so only the first can be compared."
_NUMERICS_ORDER: tuple[Numerics, ...] = ("identical", "within", "unknown", "drifted")


class Parity(NamedTuple):
    """What the losses of all runs with a change show: what the worst of them does."""

    numerics: Numerics
    drift: float | None = None  # median relative distance
    worst_drift: float | None = None  # of the loss that is furthest away
    limits: tuple[float, float] | None = None  # of both
    note: str = ""
    run: int = 0  # which of the runs it was


class _Distance(NamedTuple):
    middle: float
    worst: float
    step: int  # of the worst, from 0


def compare_losses(
    baselines: Sequence[Sequence[float]], variants: Sequence[Sequence[float]], promise: Promise
) -> Parity:
    """Evaluate the losses of every changed run; where the baseline differs from itself, its own spread is allowed too.

    Identical means bit by bit, over every loss that both have. Within means that over the first 30 losses the median
    distance is no larger than the change promises, and the largest no more than ten times that. The result is that of
    the run which is furthest from the baseline.
    """
    first = baselines[0]
    own = [_distance(first, other) for other in baselines[1:]]
    own_middle, own_worst = (max((getattr(one, name) for one in own), default=0.0) for name in ("middle", "worst"))
    limits = (max(ALLOWED[promise], SPREAD * own_middle), max(WORST_STEP * ALLOWED[promise], SPREAD * own_worst))
    each = [_of_run(first, losses, limits, i) for i, losses in enumerate(variants)]
    worst = max(each, key=_how_far)
    notes = [worst.note] if worst.note else []
    if notes and len(each) > 1:
        alike = sum(one.numerics == worst.numerics for one in each)
        notes = [f"In {alike} of {len(each)} runs with the change: {worst.note}"]
    if own_worst and worst.numerics in ("within", "drifted"):
        notes.append(f"Unchanged, it differs from itself by {own_middle:.1e} (median loss); that is allowed for.")
    return worst._replace(note=" ".join(notes))


def of_first_epoch(
    parity: Parity,
    baselines: Sequence[Sequence[float]],
    variants: Sequence[Sequence[float]],
    promise: Promise,
    num: int,
) -> Parity:
    """Return what losses show where those after the first ``num`` rest on other random numbers."""
    if parity.numerics != "drifted" or parity.drift is None:
        return parity
    first = compare_losses([each[:num] for each in baselines], [each[:num] for each in variants], promise)
    if first.numerics == "unknown":
        return parity._replace(numerics="unknown", note=f"{ONLY_FIRST} {first.note}")
    note = LATER_EPOCHS.format(num=num)
    return first._replace(note=" ".join([*([first.note] if first.note else []), note]))


def of_other_draws(parity: Parity) -> Parity:
    """Return what losses show where other random numbers were drawn: nothing, unless one is not finite."""
    if parity.numerics != "drifted" or parity.drift is None:
        return parity
    return parity._replace(numerics="unknown", note=OTHER_DRAWS)


def norms_apart(baseline: Sequence[float], variant: Sequence[float]) -> float | None:
    """Return the median relative distance of the first steps' gradient norms; infinite where only one is finite.

    None where either has none: an optimizer that is not torch's, or sparse gradients.
    """
    if not baseline or not variant:
        return None
    if any(math.isfinite(a) != math.isfinite(b) for a, b in zip(baseline, variant, strict=False)):
        return math.inf
    return _distance(baseline, variant).middle


def _how_far(parity: Parity) -> tuple[int, float]:
    if parity.drift is None or parity.worst_drift is None or parity.limits is None:
        return _NUMERICS_ORDER.index(parity.numerics), math.inf
    return _NUMERICS_ORDER.index(parity.numerics), max(
        parity.drift / parity.limits[0], parity.worst_drift / parity.limits[1]
    )


def _of_run(first: Sequence[float], losses: Sequence[float], limits: tuple[float, float], run: int) -> Parity:
    num = min(len(first), len(losses))
    if num < MIN_LOSSES:
        return Parity("unknown", note=_too_few(len(first), len(losses)), run=run)
    bad = next((i for i in range(num) if not math.isfinite(losses[i]) and math.isfinite(first[i])), None)
    if bad is not None:
        return Parity("drifted", note=f"Loss {bad + 1} is not finite; unchanged it is.", run=run)
    found = _distance(first, losses)
    if all(_same(first[i], losses[i]) for i in range(num)):
        return Parity("identical", found.middle, found.worst, limits, run=run)
    note = ""
    if found.middle > limits[0]:
        note = f"The median loss is {found.middle:.1e} away, of {limits[0]:.1e} allowed."
    elif found.worst > limits[1]:
        note = f"Loss {found.step + 1} is {found.worst:.1e} away, of {limits[1]:.1e} allowed."
    return Parity("drifted" if note else "within", found.middle, found.worst, limits, note, run)


def _too_few(unchanged: int, changed: int) -> str:
    """Return why so many losses are not compared."""
    if not unchanged and not changed:
        return "No loss was seen: backward was called on no scalar."
    seen = f"{unchanged} unchanged, {changed} with the change"
    return f"Too few losses to compare: {seen}, at least {MIN_LOSSES} are needed."


def _distance(a: Sequence[float], b: Sequence[float]) -> _Distance:
    """Return how far ``b`` is from ``a``, relative to it.

    For a single loss that is relative to the median one at least: a loss near 0 has no relative distance to speak of.
    """
    pairs = list(zip(a[:COMPARED_LOSSES], b[:COMPARED_LOSSES], strict=False))
    steps = [i for i, (x, y) in enumerate(pairs) if math.isfinite(x) and math.isfinite(y)]
    if not steps:
        return _Distance(0.0, 0.0, 0)
    usual = median(abs(pairs[i][0]) for i in steps)
    apart = {i: abs(pairs[i][0] - pairs[i][1]) for i in steps}
    worst = {i: apart[i] / max(abs(pairs[i][0]), usual, 1e-12) for i in steps}
    step = max(worst, key=worst.__getitem__)
    return _Distance(median(apart[i] / max(abs(pairs[i][0]), 1e-12) for i in steps), worst[step], step)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


_ORDER: tuple[Promise, ...] = ("identical", "rounding", "reduced")
INCONCLUSIVE = 1.25  # ends of an interval around 1 that are further apart than this do not show what a change does


class TrialRuns(NamedTuple):
    """The runs of one change."""

    ids: Sequence[str]
    baselines: Sequence[TrialResult]  # those beside the variants, which share the machine's mood
    variants: Sequence[TrialResult]
    all_baselines: Sequence[TrialResult]
    kind: Literal["single", "combination", "without"] = "single"


def joined(blocks: Sequence[TrialRuns], all_baselines: Sequence[TrialResult]) -> TrialRuns:
    """Return the runs of one change, measured several times, as if they were measured at once."""
    beside = {id(run): run for block in blocks for run in block.baselines}  # two blocks may share the run between them
    variants = [run for block in blocks for run in block.variants]
    return TrialRuns(blocks[0].ids, list(beside.values()), variants, all_baselines, blocks[0].kind)


def evaluate(candidate: Candidate, measured: TrialRuns) -> Trial:
    """Return what a change did to the time and to the losses, those of every run with it."""
    ids, baselines, variants, all_baselines, kind = measured
    good = [run for run in variants if run.step_ns]
    failure = next((run.failure for run in variants if run.failure), "")
    if not good or not any(run.step_ns for run in baselines):
        failed = skipped(replace(candidate, skip_reason=failure or "The unchanged run next to it failed."))
        return replace(failed, ids=tuple(ids), kind=kind)
    before = [run.step_ns for run in baselines if run.step_ns]
    after = [run.step_ns for run in good]
    noise = max(noise_of([run.step_ns for run in all_baselines if run.step_ns]), noise_of(after))
    faster = speed_up(before, after, noise)
    unchanged = [run.losses for run in all_baselines if run.losses] or [()]
    changed = [run.losses for run in good]
    parity = compare_losses(unchanged, changed, loosest(ids))
    same_draws = _first_epoch(ids, [*all_baselines, *good])
    if same_draws is not None:
        parity = of_first_epoch(parity, unchanged, changed, loosest(ids), same_draws)
    if _draws_otherwise(ids, all_baselines):
        parity = of_other_draws(parity)
    worst = good[parity.run]
    norms = [apart for run in good if (apart := norms_apart(baselines[0].grad_norms, run.grad_norms)) is not None]
    apart = max(norms, default=None)
    steps_ms = middle_step(before) / 1e6, middle_step(after) / 1e6
    predicted = candidate.predicted_ratio
    return Trial(
        id=candidate.id,
        title=candidate.title,
        ids=tuple(ids),
        kind=kind,
        baseline_ms=tuple(ns / 1e6 for run in before for ns in run),
        step_ms=tuple(ns / 1e6 for run in after for ns in run),
        speed_up=faster.ratio,
        interval=(faster.low, faster.high),
        numerics=parity.numerics,
        mean_ms=steps_ms,
        predicted_ms=predicted * steps_ms[0] if predicted is not None else None,
        noise=noise,
        peak_bytes=_peaks(baselines, good),
        skipped_steps=_skipped(baselines[0], good[0]),
        losses=(unchanged[0][:MAX_LOSSES], worst.losses[:MAX_LOSSES]),
        drift=parity.drift,
        worst_drift=parity.worst_drift,
        drift_limits=parity.limits,
        grad_norms=(baselines[0].grad_norms, worst.grad_norms),
        grad_drift=apart,
        note=" ".join([_note(good, parity.note, apart), *([f"One run with it failed. {failure}"] if failure else [])]),
    )


def skipped(candidate: Candidate) -> Trial:
    """Return the trial of a change of which nothing could be measured."""
    return Trial(
        candidate.id,
        (),
        (),
        1.0,
        (0.0, 0.0),
        "unknown",
        candidate.title,
        (candidate.id,),
        failure=candidate.skip_reason,
    )


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
    return not trial.failure and not is_certain(trial) and high > INCONCLUSIVE * low


def undecided(trial: Trial) -> Trial:
    """Return the trial with an interval that includes no difference."""
    low, high = trial.interval
    return replace(trial, interval=(min(low, 1.0), max(high, 1.0)))


def is_settled(trial: Trial) -> bool:
    """Return whether further runs are of no use: it is certain, or there is no difference worth having."""
    return is_certain(trial) or is_even(trial.interval)


def with_note(trial: Trial, sentence: str) -> Trial:
    """Return the trial with one more sentence in its note."""
    return replace(trial, note=f"{trial.note} {sentence}".strip())


def _draws_otherwise(ids: Sequence[str], baselines: Sequence[TrialResult]) -> bool:
    """Return whether other random numbers are drawn with one of the changes, by samples or by the model."""
    each = [CHANGES[name].numerics for name in ids]
    of_samples = any(run.samples_draw for run in baselines) and any(numerics.own_draws for numerics in each)
    return of_samples or any(numerics.other_draws for numerics in each)


def _first_epoch(ids: Sequence[str], runs: Sequence[TrialResult]) -> int | None:
    """Return after how many losses one of the changes draws other random numbers, None where it does not."""
    if not any(CHANGES[name].numerics.first_epoch for name in ids):
        return None
    return min((run.first_epoch for run in runs if run.first_epoch is not None), default=None)


def loosest(ids: Sequence[str]) -> Promise:
    """Return the promise of several changes together: that of the one which changes the numbers most."""
    promises = (CHANGES[name].numerics.promise or _ORDER[-1] for name in ids)
    return max(promises, key=_ORDER.index, default="identical")


def _left_alone(run: TrialResult) -> list[str]:
    return [f"Left alone: {'; '.join(run.refused).rstrip('.')}."] if run.refused else []


def _peaks(baselines: Sequence[TrialResult], variants: Sequence[TrialResult]) -> tuple[int, int] | None:
    before = [run.peak_bytes for run in baselines if run.peak_bytes is not None]
    after = [run.peak_bytes for run in variants if run.peak_bytes is not None]
    return (int(median(before)), int(median(after))) if before and after else None


def _skipped(baseline: TrialResult, variant: TrialResult) -> tuple[int, int] | None:
    if baseline.skipped_steps is None and variant.skipped_steps is None:
        return None
    return baseline.skipped_steps or 0, variant.skipped_steps or 0


def _note(runs: Sequence[TrialResult], parity: str, norms: float | None) -> str:
    first = runs[0]
    parts = [f"Applied: {'; '.join(first.applied)}.", *_left_alone(first)]
    if first.skipped_steps is not None:
        steps = "step was" if first.skipped_steps == 1 else "steps were"
        parts.append(f"{first.skipped_steps} optimizer {steps} skipped, since gradients overflowed.")
    if norms == inf:
        parts.append("A gradient's norm is not finite on one side only.")
    if not all(run.converged for run in runs):
        parts.append("Its step times had not settled before they were measured.")
    return " ".join([*parts, *([parity] if parity else [])])

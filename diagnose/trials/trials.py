"""From runs to trials: pairs of baseline and changed runs, evaluated for time and for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import Literal, NamedTuple

from diagnose.changes import CHANGES
from diagnose.changes.common.change import Promise
from diagnose.model.diagnosis import Trial
from diagnose.model.limits import MAX_LOSSES
from diagnose.model.statistics import is_even, middle_step, noise_of, speed_up
from diagnose.trials.candidates import Candidate
from diagnose.trials.numerics import compare_losses, norms_apart, of_first_epoch, of_other_draws
from diagnose.trials.spec import TrialResult

__all__ = [
    "TrialRuns",
    "evaluate",
    "is_certain",
    "is_gain",
    "is_inconclusive",
    "is_settled",
    "joined",
    "loosest",
    "nothing_done",
    "skipped",
    "undecided",
    "with_note",
]

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

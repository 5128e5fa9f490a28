"""Proves prescriptions: runs the script with each and without, in turns, then the best together, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import median
from typing import Literal, Protocol, TypeAlias

from diagnose.changes import any_compiles, patch_of
from diagnose.errors import CaptureError, OriginalsChangedError
from diagnose.model.diagnosis import Trial
from diagnose.trials.candidates import Candidate
from diagnose.trials.spec import Run
from diagnose.trials.trials import (
    Measured,
    evaluate,
    is_certain,
    is_gain,
    is_inconclusive,
    joined,
    nothing_done,
    refused,
    with_note,
)

__all__ = ["Proof", "Runs", "prove"]

Kind: TypeAlias = Literal["single", "combination", "without"]

TIMED_S = 2.0  # of timed steps in a run: long enough for a median, short beside starting a process
MAX_TIMED_STEPS, MIN_TIMED_STEPS = 200, 15
WARM_UP_SHARE = 3  # the warm-up is a third of the timed steps, at least MIN_WARM_UP_STEPS
MIN_WARM_UP_STEPS = 10
SLOW_STEP_NS = 1e9  # steps this long: a few must do
NUM_SLOW_STEPS = 6
MAX_BLOCKS = 3  # of runs with a change, where the first ones are inconclusive
SEEN_ONCE = "It was measured once only, for want of time; give --budget more to see it again."
NOT_AGAIN = "A second pair of runs was not as certain, so the first may have been chance."
TIMEOUT_FACTOR = 6.0  # times the first run: compiling takes long, hanging takes for ever
MIN_TIMEOUT_S = 60.0
COMPILING_SHARE = 2 / 3  # of what is left, for a run with a change that compiles: the first starts with an empty cache


class Runs(Protocol):
    """What runs the script."""

    warm_up: int
    timed: int

    def time(self, ids: Sequence[str], *, timeout_s: float) -> Run:
        """Run the script with patches; a failure is a result too."""


@dataclass
class Proof:
    """What the runs showed."""

    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    best: tuple[str, ...] = ()  # ids whose gain is certain, applied together in the last trial
    num_runs: int = 0


def prove(runs: Runs, chosen: Sequence[Candidate], budget_s: float, say: Callable[[str], None]) -> Proof:
    """Measure every candidate that the budget has room for, then the certain gains together and each left out.

    Order of the runs: unchanged, unchanged (its noise), then for each candidate changed, changed, unchanged; so every
    candidate stands between two baselines, and a drift of the machine falls on both. What was faster or slower is run
    once more in the same way, and is so only if it is again. What is inconclusive since runs were uneven is run again,
    the least certain first, while the budget lasts.

    Raises:
        CaptureError: what is unchanged could not be measured.
    """
    return _Proving(runs, budget_s, say).go(chosen)


class _Proving:
    def __init__(self, runs: Runs, budget_s: float, say: Callable[[str], None]) -> None:
        self._runs, self._say = runs, say
        self._began, self._budget_s = time.monotonic(), budget_s
        self._proof = Proof()
        self._baselines: list[Run] = []
        self._blocks: dict[str, list[Measured]] = {}  # of every candidate that was run by itself
        self._longest_s = 0.0

    def go(self, chosen: Sequence[Candidate]) -> Proof:
        try:
            self._go(chosen)
        except OriginalsChangedError as stopped:  # what was measured until then stays
            self._proof.notes.append(str(stopped))
            self._proof.best = ()
        return self._proof

    def _go(self, chosen: Sequence[Candidate]) -> None:
        if not all(candidate.refusal for candidate in chosen):
            self._calibrate()
            self._baseline()
        left_out = []
        for i, candidate in enumerate(chosen):
            if not self._has_time_for(3):
                left_out = [c.id for c in chosen[i:]]
                break
            self._try(candidate)
        if left_out:
            self._proof.notes.append(f"The budget ended before {', '.join(left_out)} could be run; give --budget more.")
        self._settle({c.id: c for c in chosen})
        self._combine(chosen)

    def _calibrate(self) -> None:
        """Run the unchanged script once and choose how many steps to time."""
        self._runs.warm_up, self._runs.timed = MIN_WARM_UP_STEPS, MIN_TIMED_STEPS
        first = self._run((), "once, to see how long its steps take")
        if not first.step_ns:
            raise CaptureError(f"The run without changes could not be measured. {first.failure}")
        step_ns = median(first.step_ns)
        fitting = ceil(TIMED_S * 1e9 / step_ns)
        timed = NUM_SLOW_STEPS if step_ns > SLOW_STEP_NS else min(max(fitting, MIN_TIMED_STEPS), MAX_TIMED_STEPS)
        self._runs.timed = timed
        self._runs.warm_up = (
            max(MIN_WARM_UP_STEPS, ceil(timed / WARM_UP_SHARE)) if step_ns <= SLOW_STEP_NS else NUM_SLOW_STEPS
        )

    def _baseline(self) -> None:
        for _ in range(2 if not self._baselines else 1):
            run = self._run((), "unchanged")
            if run.step_ns:
                self._baselines.append(run)
        if not self._baselines:
            raise CaptureError(f"The run without changes could not be measured a second time. {run.failure}")

    def _try(self, candidate: Candidate) -> None:
        trial = refused(candidate) if candidate.refusal else self._measured(candidate, (candidate.id,), "single")
        self._proof.trials.append(trial)
        self._say(_sentence(trial))

    def _measured(self, candidate: Candidate, ids: Sequence[str], kind: Kind) -> Trial:
        beside = [self._baselines[-1]]
        variants = [self._run(ids, f"with {' and '.join(ids)}")]
        if variants[0].step_ns and not variants[0].applied:
            return refused(replace(candidate, refusal=nothing_done(variants[0])))
        if variants[0].step_ns:
            variants.append(self._run(ids, f"with {' and '.join(ids)}, again"))
            self._baseline()
            beside.append(self._baselines[-1])
        first = Measured(ids, beside, variants, self._baselines, kind)
        trial = evaluate(candidate, first)
        if kind != "single":
            return trial
        self._blocks[candidate.id] = [first]
        if not is_certain(trial):
            return trial
        if not self._has_time_for(3):
            return with_note(trial, SEEN_ONCE)
        return self._seen_again(candidate, trial)

    def _seen_again(self, candidate: Candidate, first: Trial) -> Trial:
        """Measure a second time what was faster or slower: of many changes that do nothing, one is so by chance."""
        second = evaluate(candidate, self._run_again(candidate, "to see it again"))
        trial = self._evaluated(candidate)
        if is_certain(second) and (second.speed_up > 1) is (first.speed_up > 1):
            return trial
        low, high = trial.interval
        return with_note(replace(trial, interval=(min(low, 1.0), max(high, 1.0))), NOT_AGAIN)

    def _settle(self, candidates: dict[str, Candidate]) -> None:
        """Run again what is inconclusive, the widest interval first; what a combination needs is kept back."""
        while self._has_time_for(6):
            uncertain = [
                (trial.interval[1] / trial.interval[0], i)
                for i, trial in enumerate(self._proof.trials)
                if is_inconclusive(trial) and len(self._blocks[trial.id]) < MAX_BLOCKS
            ]
            if not uncertain:
                return
            _, i = max(uncertain)
            candidate = candidates[self._proof.trials[i].id]
            self._run_again(candidate, "since the runs were uneven")
            self._proof.trials[i] = self._evaluated(candidate)
            self._say(_sentence(self._proof.trials[i]))

    def _run_again(self, candidate: Candidate, why: str) -> Measured:
        beside = [self._baselines[-1]]
        variants = [self._run((candidate.id,), f"with {candidate.id}, {why}") for _ in range(2)]
        self._baseline()
        block = Measured((candidate.id,), [*beside, self._baselines[-1]], variants, self._baselines)
        self._blocks[candidate.id].append(block)
        return block

    def _evaluated(self, candidate: Candidate) -> Trial:
        return evaluate(candidate, joined(self._blocks[candidate.id], self._baselines))

    def _combine(self, chosen: Sequence[Candidate]) -> None:
        gains = sorted((t for t in self._proof.trials if is_gain(t)), key=lambda t: -t.speed_up)
        self._proof.best = _together([t.id for t in gains])
        if len(self._proof.best) < 2 or not self._has_time_for(3):  # one alone is no combination
            return
        best = self._proof.best
        whole = self._measured(Candidate("+".join(best), "All gains together"), best, "combination")
        self._proof.trials.append(whole)
        self._say(_sentence(whole))
        if not is_gain(whole):
            self._proof.best = best[:1]
            self._proof.notes.append("Together the changes are no certain gain; the largest alone is.")
            return
        self._leave_one_out(best, {c.id: c for c in chosen})

    def _leave_one_out(self, best: tuple[str, ...], known: dict[str, Candidate]) -> None:
        """Run the combination without each: what its part is beside the others."""
        for name in best if len(best) > 2 else ():  # without one of two: the other alone, run before
            if not self._has_time_for(3):
                self._proof.notes.append(f"The budget ended before the combination without {name} could be run.")
                return
            rest = tuple(other for other in best if other != name)
            part = self._measured(replace(known[name], predicted_ratio=None), rest, "without")
            self._proof.trials.append(part)
            self._say(_sentence(part))

    def _run(self, ids: Sequence[str], what: str) -> Run:
        left = self._budget_s - (time.monotonic() - self._began)
        self._say(f"running it {what} ({max(left, 0):.0f} s of the budget left)")
        share = 1.0 if not self._longest_s else COMPILING_SHARE if any_compiles(ids) else 0.0
        timeout = max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * self._longest_s, share * left)
        run = self._runs.time(ids, timeout_s=min(timeout, max(left, MIN_TIMEOUT_S)))
        self._proof.num_runs += 1
        if not ids:
            self._longest_s = max(self._longest_s, run.wall_s)
        return run

    def _has_time_for(self, num_runs: int) -> bool:
        return time.monotonic() - self._began + num_runs * self._longest_s <= self._budget_s


def _together(ids: Sequence[str]) -> tuple[str, ...]:
    """Leave out what changes the same thing as one before it."""
    groups = [patch.group if (patch := patch_of(name)) is not None else "" for name in ids]
    return tuple(name for i, name in enumerate(ids) if not groups[i] or groups[i] not in groups[:i])


def _sentence(trial: Trial) -> str:
    if trial.failure:
        return f"{trial.id}: {trial.failure}"
    low, high = trial.interval
    sure = "faster" if low > 1 else "slower" if high < 1 else "no difference that is certain"
    without = "without " if trial.kind == "without" else ""
    return f"{without}{trial.id}: {trial.speed_up:.2f} x ({low:.2f} to {high:.2f}), {sure}; losses {trial.numerics}"

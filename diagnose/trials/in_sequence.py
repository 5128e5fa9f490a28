"""Proves prescriptions one run after the other, where forms of a script cannot be alive at once.

Order of the runs: unchanged, unchanged (its noise), then for each candidate changed, changed, unchanged; so every
candidate stands between two baselines, and a drift of the machine falls on both. Unchanged runs take a third of the
budget at most while a change waits for its trial: those before have to do then. What was faster or slower is run once
more in the same way, and is so only if it is again. What is inconclusive since runs were uneven is run again, the least
certain first, while the budget lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple, Protocol

from diagnose.errors import CaptureError, OriginalsChangedError
from diagnose.model.diagnosis import Trial
from diagnose.model.statistics import mean_step, period_of
from diagnose.trials.by_turns import LiveRuns
from diagnose.trials.candidates import Candidate
from diagnose.trials.launch import patience_s
from diagnose.trials.measuring import TrialResult
from diagnose.trials.trials import (
    ALONE_IS_BEST,
    CUT_OFF,
    Kind,
    ProveResult,
    TrialRuns,
    doubted,
    evaluate,
    gains,
    is_certain,
    is_gain,
    is_inconclusive,
    joined,
    nothing_done,
    sentence,
    skipped,
)

RECORDED = (
    "There was no time for an unchanged run: the steps that the recording timed are used instead; give --budget more."
)


@dataclass(frozen=True)
class Schedule:
    """How long runs are, and how many of them a change gets."""

    timed_s: float = 2.0  # of timed steps in a run: long enough for a mean, short compared with starting a process
    max_steps: int = 200  # timed in a run
    min_steps: int = 20
    min_periods: int = 3  # of steps that recur, in a run
    min_warm_up: int = 10
    slow_step_ns: float = 1e9  # steps this long: a few must do
    slow_steps: int = 6
    min_known_steps: int = 2  # timed without a profiler: fewer do not show how long a run has to be
    max_blocks: int = 3  # of runs with a change, where the first ones are inconclusive
    baseline_share: float = 1 / 3  # of the budget that unchanged runs may take while changes wait
    kept_share: float = 1 / 3  # of what is left after the first recording, kept for the last one
    last_s: float = 1.0  # a run that is started may take this long, whatever is left


class Runs(Protocol):
    """What runs the script."""

    warm_up: int
    timed: int
    edits: bool  # whether changes can be made in the text of what runs
    diffs: Mapping[str, str]  # by which changes are made there, by id
    schedule: Schedule

    @property
    def turns(self) -> LiveRuns | None:
        """Return what makes forms that are alive at once, None where nothing can."""

    def time(self, ids: Sequence[str], *, timeout_s: float) -> TrialResult:
        """Run the script with patches; a failure is a result too."""


class Recorded(NamedTuple):
    """What the recording before the trials showed."""

    step_ns: Sequence[float] = ()  # of steps without a profiler
    took_s: float = 0.0  # with its analysis; 0 where it was made before


def in_sequence(
    runs: Runs,
    chosen: Sequence[Candidate],
    budget_s: float,
    report: Callable[[str], None],
    recorded: Recorded,
) -> ProveResult:
    """Measure every candidate that the budget has room for, then the certain gains together and each left out.

    ``recorded`` has the steps that a recording timed without a profiler; without them one more unchanged run shows how
    long steps take. Where there is less time than that recording took, about two runs, they stand in for an unchanged
    run, so that a change is tried at all.

    Raises:
        CaptureError: what is unchanged could not be measured.
    """
    proving = _Proving(runs, chosen, budget_s, report, recorded)
    try:
        proving.go()
    except KeyboardInterrupt:
        proving.result.interrupt(chosen)
    except OriginalsChangedError as stopped:  # what was measured until then stays
        proving.result.notes.append(str(stopped))
        proving.result.best = ()
    return proving.result


class _Proving:
    def __init__(
        self,
        runs: Runs,
        chosen: Sequence[Candidate],
        budget_s: float,
        report: Callable[[str], None],
        recorded: Recorded,
    ) -> None:
        self._runs, self._report, self._recorded, self._plan = runs, report, recorded, runs.schedule
        self._ends, self._budget_s = time.monotonic() + budget_s, budget_s
        self.result = ProveResult()
        self._chosen = {candidate.id: candidate for candidate in chosen}
        self._baselines: list[TrialResult] = []
        self._blocks: dict[str, list[TrialRuns]] = {}  # of every candidate that was run by itself
        self._longest_s = self._baseline_s = 0.0
        self._waiting = sum(not candidate.skip_reason for candidate in chosen)  # changes that were not tried yet
        self._num_tried = 0

    def go(self) -> None:
        self.result.trials += [skipped(each) for each in self._chosen.values() if each.skip_reason]
        wanted = [name for name, each in self._chosen.items() if not each.skip_reason]
        if wanted:
            self._measure_unchanged()
        for name in wanted:
            if not self._has_time_for(2 if self._num_tried else 1):
                break
            self._waiting -= 1
            self._add(self._measured(self._chosen[name], (name,)))
        self.result.end(wanted, wanted[self._num_tried :])
        self._settle()
        self._combine()

    def _measure_unchanged(self) -> None:
        """Choose how many steps a run times, about two seconds of them and whole periods, and run it unchanged."""
        plan, (step_ns, took_s) = self._plan, self._recorded
        is_known = len(step_ns) >= plan.min_known_steps
        if not is_known:
            self._runs.warm_up, self._runs.timed = plan.min_warm_up, plan.min_steps
            step_ns = _measured_steps(self._run((), "once, to see how long its steps take"))
        mean_ns, period = mean_step(step_ns), period_of(step_ns)
        least = max(plan.min_steps, plan.min_periods * period * (period > 1))
        timed = min(max(ceil(plan.timed_s * 1e9 / mean_ns), least), plan.max_steps) // period * period
        self._runs.timed, self._runs.warm_up = timed, max(plan.min_warm_up, ceil(timed / 3))
        if mean_ns > plan.slow_step_ns:
            self._runs.timed = self._runs.warm_up = plan.slow_steps
        if is_known and self._budget_s < took_s:  # no time for an unchanged run and for a change
            self._baselines.append(TrialResult(tuple(step_ns)))
            self._longest_s = self._budget_s / 2  # as long as a run may be, for the first change to be tried
            self.result.notes.append(RECORDED)
            return
        first = self._run_unchanged()
        if self._has_time_for(3):
            self._baseline()
        if not self._baselines:
            _measured_steps(first)

    def _run_unchanged(self) -> TrialResult:
        run = self._run((), "unchanged")
        self._baselines += [run] if run.step_ns else []
        return run

    def _baseline(self) -> list[TrialResult]:
        """Run it unchanged and return the run if it was measured.

        While a change waits for its trial, unchanged runs take no more than their share of the budget.
        """
        limit_s = self._plan.baseline_share * self._budget_s
        if self._waiting and self._baseline_s + self._longest_s > limit_s:
            return []
        run = self._run_unchanged()
        return [run] if run.step_ns else []

    def _add(self, trial: Trial) -> None:
        self.result.trials.append(trial)
        self._report(sentence(trial))

    def _replace(self, i: int, trial: Trial) -> None:
        self.result.trials[i] = trial
        self._report(sentence(trial))

    def _measured(self, candidate: Candidate, ids: Sequence[str], kind: Kind = "single") -> Trial:
        beside = self._baselines[-2:]
        self._num_tried += 1
        variants = [self._run(ids, f"with {' and '.join(ids)}")]
        if variants[0].step_ns and not variants[0].applied:
            return skipped(replace(candidate, skip_reason=nothing_done(variants[0])))
        if variants[0].step_ns and self._has_time_for(1):
            variants.append(self._run(ids, f"with {' and '.join(ids)}, again"))
            after = self._baseline() if self._has_time_for(1) else []
            beside = [beside[-1], *after] if after else beside
        first = TrialRuns(ids, beside, variants, self._baselines, kind)
        trial = evaluate(candidate, first)
        if not trial.failure and min(len(self._baselines), len(variants)) < 2:
            trial = doubted(trial, "noise not known")
        if kind != "single":
            return trial
        self._blocks[candidate.id] = [first]
        if not is_certain(trial):
            return trial
        if not self._has_time_for(3):
            return doubted(trial, "measured once")
        # Measured a second time: of many changes that do nothing, one is faster or slower by chance.
        second = evaluate(candidate, self._run_again(candidate, "to see it again"))
        is_repeated = is_certain(second) and (second.speed_up > 1) is (trial.speed_up > 1)
        trial = self._evaluated(candidate)
        return trial if is_repeated else doubted(trial, "not repeated")

    def _settle(self) -> None:
        """Run again what is inconclusive, the widest interval first; what a combination needs is kept back."""
        while self._has_time_for(6):
            uncertain = [
                (trial.interval[1] / trial.interval[0], i)
                for i, trial in enumerate(self.result.trials)
                if is_inconclusive(trial) and len(self._blocks[trial.id]) < self._plan.max_blocks
            ]
            if not uncertain:
                return
            i = max(uncertain)[1]
            candidate = self._chosen[self.result.trials[i].id]
            self._run_again(candidate, "since the runs were uneven")
            self._replace(i, self._evaluated(candidate))

    def _run_again(self, candidate: Candidate, why: str) -> TrialRuns:
        before = self._baselines[-2:]
        variants = [self._run((candidate.id,), f"with {candidate.id}, {why}") for _ in range(2)]
        after = self._baseline()
        block = TrialRuns((candidate.id,), [before[-1], *after] if after else before, variants, self._baselines)
        self._blocks[candidate.id].append(block)
        return block

    def _evaluated(self, candidate: Candidate) -> Trial:
        return evaluate(candidate, joined(self._blocks[candidate.id], self._baselines))

    def _combine(self) -> None:
        """Run the gains together, and the combination without each: what its part is next to the others."""
        best = self.result.best = gains(self.result.trials)
        if len(best) < 2 or not self._has_time_for(3):
            return
        self._add(self._measured(Candidate("+".join(best), "All gains together"), best, "combination"))
        if not is_gain(self.result.trials[-1]):
            self.result.best = best[:1]
            self.result.notes.append(ALONE_IS_BEST)
            return
        for name in best if len(best) > 2 else ():  # without one of two: the other one, run before
            if not self._has_time_for(3):
                self.result.notes.append(f"The budget ended before the combination without {name} could be run.")
                return
            rest = tuple(other for other in best if other != name)
            self._add(self._measured(replace(self._chosen[name], predicted_ratio=None), rest, "without"))

    def _run(self, ids: Sequence[str], what: str) -> TrialResult:
        plan, left = self._plan, self._ends - time.monotonic()
        self._report(f"running it {what}")
        patience = patience_s(ids, self._longest_s, left)
        timeout_s = min(patience, max(left, plan.last_s))
        run = self._runs.time(ids, timeout_s=timeout_s)
        if not ids:
            self._longest_s = max(self._longest_s, run.wall_s)
            self._baseline_s += run.wall_s
        if run.failure and timeout_s < patience and run.wall_s >= timeout_s:
            return replace(run, failure=CUT_OFF)
        return run

    def _has_time_for(self, num_runs: int) -> bool:
        return time.monotonic() + num_runs * self._longest_s <= self._ends


def _measured_steps(run: TrialResult) -> Sequence[float]:
    if not run.step_ns:
        raise CaptureError(f"The run without changes could not be measured. {run.failure}")
    return run.step_ns

"""Proves prescriptions: runs the script with each and without, in turns, then the best together, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Literal, TypeAlias

from diagnose.changes import any_compiles
from diagnose.errors import CaptureError, OriginalsChangedError
from diagnose.model.diagnosis import Trial
from diagnose.model.statistics import NOTHING_CERTAIN, mean_step, period_of
from diagnose.trials.candidates import Candidate, together
from diagnose.trials.measuring import ProveResult, Recorded, Runs
from diagnose.trials.sentences import sentence
from diagnose.trials.spec import TrialResult
from diagnose.trials.trials import (
    TrialRuns,
    evaluate,
    is_certain,
    is_gain,
    is_inconclusive,
    is_settled,
    joined,
    nothing_done,
    skipped,
    undecided,
    with_note,
)

__all__ = ["NOTHING_TRIED", "ProveResult", "Recorded", "Runs", "prove"]

Kind: TypeAlias = Literal["single", "combination", "without"]

TIMED_S = 2.0  # of timed steps in a run: long enough for a mean, short beside starting a process
MAX_TIMED_STEPS, MIN_TIMED_STEPS = 200, 20
MIN_PERIODS = 3  # of steps that recur, in a run
MIN_KNOWN_STEPS = 2  # timed without a profiler: fewer do not show how long a run has to be
WARM_UP_SHARE = 3  # the warm-up is a third of the timed steps, at least MIN_WARM_UP_STEPS
MIN_WARM_UP_STEPS = 10
SLOW_STEP_NS = 1e9  # steps this long: a few must do
NUM_SLOW_STEPS = 6
MAX_BLOCKS = 3  # of runs with a change, where the first ones are inconclusive
BASELINE_SHARE = 1 / 3  # of the budget that unchanged runs may take
NO_NOISE = f"There was time for one unchanged run only, {NOTHING_CERTAIN}; give --budget more."
RECORDED = "There was no time for an unchanged run: the steps that the recording timed stand in; give --budget more."
NOTHING_TRIED = "The budget ended before any change could be tried; give --budget more."
CUT_OFF = "The budget ended while it ran; give --budget more."
SEEN_ONCE = "It was measured once only, since the budget was used up; raise --budget to measure it again."
NOT_AGAIN = "A second pair of runs was not as certain, so the first may have been chance."
TIMEOUT_FACTOR = 6.0  # times the first run: compiling takes long, hanging takes for ever
MIN_TIMEOUT_S = 60.0
LAST_S = 1.0  # a run that is begun may take this long, whatever is left
COMPILING_SHARE = 2 / 3  # of what is left, for a run with a change that compiles: the first starts with an empty cache


def prove(
    runs: Runs,
    chosen: Sequence[Candidate],
    budget_s: float,
    report: Callable[[str], None],
    recorded: Recorded | None = None,
) -> ProveResult:
    """Measure every candidate that the budget has room for, then the certain gains together and each left out.

    Order of the runs: unchanged, unchanged (its noise), then for each candidate changed, changed, unchanged; so every
    candidate stands between two baselines, and a drift of the machine falls on both. Unchanged runs take a third of the
    budget at most while a change waits for its trial: those before have to do then. What was faster or slower is run
    once more in the same way, and is so only if it is again. What is inconclusive since runs were uneven is run again,
    the least certain first, while the budget lasts. ``recorded`` has the steps that a recording timed without a
    profiler; without them one more unchanged run shows how long steps take. Where there is less time than
    that recording took, about two runs, they stand in for an unchanged run, so that a change is tried at all. Where
    nothing is a gain, the time that is left goes to the best change that is open.

    Raises:
        CaptureError: what is unchanged could not be measured.
    """
    return _Proving(runs, budget_s, report, recorded or Recorded()).go(chosen)


class _Proving:
    def __init__(self, runs: Runs, budget_s: float, report: Callable[[str], None], recorded: Recorded) -> None:
        self._runs, self._report, self._recorded = runs, report, recorded
        self._began, self._budget_s = time.monotonic(), budget_s
        self._result = ProveResult()
        self._baselines: list[TrialResult] = []
        self._blocks: dict[str, list[TrialRuns]] = {}  # of every candidate that was run by itself
        self._longest_s = 0.0
        self._baseline_s = 0.0
        self._waiting = 0  # changes that were not tried yet
        self._num_tried = 0
        self._why_not = ""  # why the last unchanged run could not be measured

    def go(self, chosen: Sequence[Candidate]) -> ProveResult:
        try:
            self._go(chosen)
        except OriginalsChangedError as stopped:  # what was measured until then stays
            self._result.notes.append(str(stopped))
            self._result.best = ()
        return self._result

    def _go(self, chosen: Sequence[Candidate]) -> None:
        self._waiting = sum(not candidate.skip_reason for candidate in chosen)
        if self._waiting:
            step_ns, took_s, _kept_s = self._recorded
            is_known = len(step_ns) >= MIN_KNOWN_STEPS
            self._size_runs(step_ns if is_known else self._first_steps())
            if is_known and self._budget_s < took_s:
                self._take_recorded()
            else:
                self._first_baselines()
        left_out = []
        for i, candidate in enumerate(chosen):
            if not candidate.skip_reason and not self._has_time_for(2 if self._num_tried else 1):
                left_out = [c.id for c in chosen[i:]]
                break
            self._waiting -= not candidate.skip_reason
            self._try(candidate)
        self._note_what_is_missing(left_out)
        self._settle({c.id: c for c in chosen})
        self._combine(chosen)
        self._use_what_is_left({c.id: c for c in chosen})

    def _note_what_is_missing(self, left_out: Sequence[str]) -> None:
        cut_off = [trial.id for trial in self._result.trials if trial.failure == CUT_OFF]
        self._result.nothing_tried = bool(cut_off or left_out) and self._num_tried == len(cut_off)
        if self._result.nothing_tried:
            self._result.notes.append(NOTHING_TRIED)
        if left_out:
            self._result.notes.append(
                f"The budget ended before {', '.join(left_out)} could be run; give --budget more."
            )

    def _first_steps(self) -> Sequence[float]:
        """Run the unchanged script once, to see how long its steps take."""
        self._runs.warm_up, self._runs.timed = MIN_WARM_UP_STEPS, MIN_TIMED_STEPS
        first = self._run((), "once, to see how long its steps take")
        if not first.step_ns:
            raise CaptureError(f"The run without changes could not be measured. {first.failure}")
        return first.step_ns

    def _size_runs(self, step_ns: Sequence[float]) -> None:
        """Choose how many steps a run times: about two seconds of them, and whole periods of those that recur."""
        mean_ns, period = mean_step(step_ns), period_of(step_ns)
        is_slow = mean_ns > SLOW_STEP_NS
        least = max(MIN_TIMED_STEPS, MIN_PERIODS * period if period > 1 else 0)
        timed = min(max(ceil(TIMED_S * 1e9 / mean_ns), least), MAX_TIMED_STEPS) // period * period
        self._runs.timed = NUM_SLOW_STEPS if is_slow else timed
        self._runs.warm_up = NUM_SLOW_STEPS if is_slow else max(MIN_WARM_UP_STEPS, ceil(timed / WARM_UP_SHARE))

    def _take_recorded(self) -> None:
        """Take the steps of the recording for an unchanged run, since there is no time for one beside a change."""
        self._baselines.append(TrialResult((), tuple(self._recorded.step_ns)))
        self._longest_s = self._budget_s / 2  # as long as a run may be, for the first change to be tried
        self._result.notes.append(RECORDED)

    def _first_baselines(self) -> None:
        self._baseline()
        if self._has_time_for(3):
            self._baseline()
        if not self._baselines:
            raise CaptureError(f"The run without changes could not be measured. {self._why_not}")

    def _baseline(self) -> list[TrialResult]:
        """Run it unchanged and return the run if it was measured.

        While a change waits for its trial, unchanged runs take no more than their share of the budget.
        """
        limit_s = BASELINE_SHARE * self._budget_s
        if self._baselines and self._waiting and self._baseline_s + self._longest_s > limit_s:
            return []
        run = self._run((), "unchanged")
        self._why_not = run.failure
        found = [run] if run.step_ns else []
        self._baselines += found
        return found

    def _try(self, candidate: Candidate) -> None:
        trial = skipped(candidate) if candidate.skip_reason else self._measured(candidate, (candidate.id,), "single")
        self._result.trials.append(trial)
        self._report(sentence(trial))

    def _measured(self, candidate: Candidate, ids: Sequence[str], kind: Kind) -> Trial:
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
        if not trial.failure and (len(self._baselines) < 2 or len(variants) < 2):
            trial = with_note(undecided(trial), NO_NOISE)
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
        return with_note(undecided(trial), NOT_AGAIN)

    def _settle(self, candidates: dict[str, Candidate]) -> None:
        """Run again what is inconclusive, the widest interval first; what a combination needs is kept back."""
        while self._has_time_for(6):
            uncertain = [
                (trial.interval[1] / trial.interval[0], i)
                for i, trial in enumerate(self._result.trials)
                if is_inconclusive(trial) and len(self._blocks[trial.id]) < MAX_BLOCKS
            ]
            if not uncertain:
                return
            _, i = max(uncertain)
            candidate = candidates[self._result.trials[i].id]
            self._run_again(candidate, "since the runs were uneven")
            self._result.trials[i] = self._evaluated(candidate)
            self._report(sentence(self._result.trials[i]))

    def _run_again(self, candidate: Candidate, why: str) -> TrialRuns:
        before = self._baselines[-2:]
        variants = [self._run((candidate.id,), f"with {candidate.id}, {why}") for _ in range(2)]
        after = self._baseline()
        block = TrialRuns((candidate.id,), [before[-1], *after] if after else before, variants, self._baselines)
        self._blocks[candidate.id].append(block)
        return block

    def _evaluated(self, candidate: Candidate) -> Trial:
        return evaluate(candidate, joined(self._blocks[candidate.id], self._baselines))

    def _combine(self, chosen: Sequence[Candidate]) -> None:
        gains = sorted((t for t in self._result.trials if is_gain(t)), key=lambda t: -t.speed_up)
        self._result.best = together([t.id for t in gains])
        if len(self._result.best) < 2 or not self._has_time_for(3):  # one alone is no combination
            return
        best = self._result.best
        whole = self._measured(Candidate("+".join(best), "All gains together"), best, "combination")
        self._result.trials.append(whole)
        self._report(sentence(whole))
        if not is_gain(whole):
            self._result.best = best[:1]
            self._result.notes.append("Together the changes are not a certain gain; the largest alone is.")
            return
        self._leave_one_out(best, {c.id: c for c in chosen})

    def _leave_one_out(self, best: tuple[str, ...], known: dict[str, Candidate]) -> None:
        """Run the combination without each: what its part is beside the others."""
        for name in best if len(best) > 2 else ():  # without one of two: the other alone, run before
            if not self._has_time_for(3):
                self._result.notes.append(f"The budget ended before the combination without {name} could be run.")
                return
            rest = tuple(other for other in best if other != name)
            part = self._measured(replace(known[name], predicted_ratio=None), rest, "without")
            self._result.trials.append(part)
            self._report(sentence(part))

    def _use_what_is_left(self, candidates: dict[str, Candidate]) -> None:
        """Run the best change that is open, and the script without it, in pairs while one fits, if nothing is a gain.

        What makes it two unchanged runs, without which nothing is certain, comes first.
        """
        is_open = [
            (trial.speed_up, i)
            for i, trial in enumerate(self._result.trials)
            if trial.id in self._blocks and not trial.failure and not is_certain(trial) and NOT_AGAIN not in trial.note
        ]
        if self._result.best or not is_open:
            return
        self._budget_s += self._recorded.kept_s
        self._waiting = 0  # nothing else is tried any more
        i = max(is_open)[1]
        candidate = candidates[self._result.trials[i].id]
        while self._num_runs_with(candidate.id) < 2 * MAX_BLOCKS:
            trial = self._result.trials[i]
            alone = len(self._baselines) < 2
            settled = is_settled(trial) and not alone and SEEN_ONCE not in trial.note
            if settled or not self._has_time_for(1 if alone else 2):
                break
            self._result.trials[i] = self._measured_further(candidate, alone=alone)
            if self._result.trials[i].failure:
                break
            self._report(sentence(self._result.trials[i]))
        gains = [t for t in self._result.trials if is_gain(t)]
        self._result.best = together([t.id for t in gains])

    def _num_runs_with(self, name: str) -> int:
        return sum(len(block.variants) for block in self._blocks[name])

    def _measured_further(self, candidate: Candidate, *, alone: bool) -> Trial:
        variants = [] if alone else [self._run((candidate.id,), f"with {candidate.id}, in the time that is left")]
        block = TrialRuns((candidate.id,), self._baseline(), variants, self._baselines)
        self._blocks[candidate.id].append(block)
        trial = self._evaluated(candidate)
        num = self._num_runs_with(candidate.id)
        if len(self._baselines) < 2 or num < 2:
            return with_note(undecided(trial), NO_NOISE)
        return with_note(trial, SEEN_ONCE) if is_certain(trial) and num == 2 else trial

    def _run(self, ids: Sequence[str], what: str) -> TrialResult:
        left = self._budget_s - (time.monotonic() - self._began)
        self._report(f"running it {what} ({max(left, 0):.0f} s of the budget left)")
        share = 1.0 if not self._longest_s else COMPILING_SHARE if any_compiles(ids) else 0.0
        patience = max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * self._longest_s, share * left)
        timeout_s = min(patience, max(left, LAST_S))
        run = self._runs.time(ids, timeout_s=timeout_s)
        self._result.num_runs += 1
        if not ids:
            self._longest_s = max(self._longest_s, run.wall_s)
            self._baseline_s += run.wall_s
        if run.failure and timeout_s < patience and run.wall_s >= timeout_s:
            return replace(run, failure=CUT_OFF)
        return run

    def _has_time_for(self, num_runs: int) -> bool:
        return time.monotonic() - self._began + num_runs * self._longest_s <= self._budget_s

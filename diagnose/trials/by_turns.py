"""Proves prescriptions by turns: forms of a script are alive at once, and one at a time runs (`diagnose.trials.turns`).

A team is the script unchanged, unchanged once more as its control, and the candidates that memory and time have room
for; the others come in a later team. Then the certain gains together take turns with the largest alone and with each of
them left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from statistics import fmean, median
from typing import NamedTuple, Protocol

from diagnose.errors import CaptureError
from diagnose.model.diagnosis import Trial
from diagnose.trials.candidates import Candidate
from diagnose.trials.launch import patience_s
from diagnose.trials.measuring import TrialResult
from diagnose.trials.trials import (
    ALONE_IS_BEST,
    CUT_OFF,
    INTERRUPTED,
    Kind,
    ProveResult,
    Times,
    TrialRuns,
    doubted,
    evaluate,
    gains,
    is_gain,
    nothing_done,
    sentence,
    skipped,
)
from diagnose.trials.turn_process import available_bytes, room_for, start_all
from diagnose.trials.turn_statistics import MIN_INSTANCES, MIN_ROUNDS, estimate
from diagnose.trials.turns import Block, LiveForm, ScriptEndedError, TurnPlan, TurnResult, take_turns

UNCHANGED = (0, 1)  # numbers in a team
NO_CONTROL = "A second unchanged copy of the script had no room, so nothing shows whether the machine was disturbed."


@dataclass(frozen=True)
class TurnSchedule:
    """How the budget is spent."""

    rounds_s: float = 20.0  # for each form of a team; what is certain earlier ends earlier
    long_s: float = 60.0  # of rounds: from here on every form lives three times instead of twice
    kept_share: float = 1 / 3  # of the budget, for the gains together, where several changes are tried
    kept_from_s: float = 80.0  # where each of them by itself has more than this
    report_s: float = 10.0  # between lines of progress


class LiveRuns(Protocol):
    """What prepares processes of a script that can be alive at once."""

    changed: str  # which of the user's files have changed: nothing further is started

    @property
    def why_no_turns(self) -> str:
        """Return why forms cannot be alive at once, "" if they can."""

    def live(self, number: int, ids: Sequence[str], *, timeout_s: float) -> LiveForm:
        """Prepare a process with a copy of the working folder that is its own; raises OriginalsChangedError."""

    def num_copies(self) -> float:
        """Return for how many copies of the working folder the disk has room."""


class NoTurnsError(CaptureError):
    """Forms of this script cannot be alive at once, or not for long enough; the sentence says why."""


class _Wanted(NamedTuple):
    candidate: Candidate
    ids: tuple[str, ...]
    kind: Kind = "single"


def by_turns(
    runs: LiveRuns,
    chosen: Sequence[Candidate],
    budget_s: float,
    report: Callable[[str], None],
    step_ns: Sequence[float] = (),
) -> ProveResult:
    """Measure every candidate that the budget has room for, then the certain gains together and each left out.

    Args:
        runs: What runs the script.
        chosen: What is tried, the most promising first.
        budget_s: For everything.
        report: Takes lines of progress.
        step_ns: That a recording has timed.

    Raises:
        NoTurnsError: the unchanged script cannot take turns; nothing was measured.
    """
    proving = _ByTurns(runs, budget_s, report, step_ns)
    try:
        proving.go(chosen)
    except KeyboardInterrupt:  # while no team takes turns
        proving.result.interrupted = True
    if proving.result.interrupted:
        proving.result.interrupt(chosen)
    return proving.result


class _ByTurns:
    def __init__(
        self,
        runs: LiveRuns,
        budget_s: float,
        report: Callable[[str], None],
        step_ns: Sequence[float],
    ) -> None:
        self._runs, self._report, self._plan = runs, report, TurnSchedule()
        self._ends = time.monotonic() + budget_s
        self._step_s = fmean(step_ns) / 1e9 if step_ns else 0.0
        self.result = ProveResult()

    def go(self, chosen: Sequence[Candidate]) -> None:
        for candidate in chosen:
            if candidate.skip_reason:
                self.result.trials.append(skipped(candidate))
        wanted = [_Wanted(each, (each.id,)) for each in chosen if not each.skip_reason]
        if not wanted:
            return
        if self._runs.why_no_turns:
            raise NoTurnsError(self._runs.why_no_turns)
        left_s = self._ends - time.monotonic()
        if left_s < _least_s(len(UNCHANGED) + 1, self._step_s):
            raise NoTurnsError("There is too little time to take turns, so runs follow one another.")
        kept_s = left_s * self._plan.kept_share if len(wanted) > 1 else 0.0
        has_time = left_s - kept_s >= max(self._plan.kept_from_s, _least_s(len(UNCHANGED) + len(wanted), self._step_s))
        left_out = self._measure_each(wanted, self._ends - kept_s * has_time)
        if has_time and not self._is_stopped and len(gains(self.result.trials)) < 2:  # there is nothing to combine
            left_out = self._measure_each([*self._cut_short(wanted), *left_out], self._ends)
        if not self._is_stopped:
            self.result.end([each.candidate.id for each in wanted], [each.candidate.id for each in left_out])
            if len(self.result.best) > 1:
                self._combine({each.candidate.id: each.candidate for each in wanted})
        if self._runs.changed:
            self.result.notes.append(self._runs.changed)
            self.result.best = ()

    def _measure_each(self, wanted: Sequence[_Wanted], ends: float) -> Sequence[_Wanted]:
        """Measure every candidate, in as many teams as it takes; return those for which there was no time."""
        is_first = True
        while wanted and not self._is_stopped and (is_first or time.monotonic() < ends):
            try:
                team, taken = self._measured(wanted, ends)
            except NoTurnsError:
                if is_first and time.monotonic() < ends and not self._runs.changed:
                    raise
                break  # no time is left, or nothing further may start
            for number, each in enumerate(wanted[:taken], len(UNCHANGED)):
                self._add(team.trial(number, each), has_more_time=ends < self._ends)
            wanted, is_first = wanted[taken:], False
        return wanted

    def _cut_short(self, wanted: Sequence[_Wanted]) -> list[_Wanted]:
        """Return what had too little time for a certain answer, as far as there is enough now, without its trials."""
        short = {trial.id for trial in self.result.trials if _is_cut_short(trial)}
        again = [each for each in wanted if each.candidate.id in short]
        while again and self._ends - time.monotonic() < _least_s(len(UNCHANGED) + len(again), self._step_s):
            again.pop()
        ids = {each.candidate.id for each in again}
        self.result.trials = [trial for trial in self.result.trials if trial.id not in ids]
        return again

    def _measured(self, wanted: Sequence[_Wanted], ends: float) -> tuple[_Team, int]:
        """Let a team take turns; return how many of what is wanted had room in it."""
        team = _Team(self._runs, self._plan, ends, self._report)
        names = ", ".join("+".join(each.ids) for each in wanted)
        self._report(f"starting the script unchanged, again unchanged as a control, and with {names}")
        try:
            taken = team.start([each.ids for each in wanted], self._step_s)
            team.take_turns(len(wanted) - taken)
        except KeyboardInterrupt:
            self.result.interrupted = True
            self._report("interrupted: ending the runs; what is known so far follows")
            taken = team.interrupt()
        finally:
            team.kill()
        self.result.notes += [note for note in team.notes if note not in self.result.notes]
        return team, taken

    def _combine(self, candidates: Mapping[str, Candidate]) -> None:
        """Let the gains together take turns with the largest alone, and with each of them left out."""
        best = self.result.best
        wanted = [
            _Wanted(Candidate("+".join(best), "All gains together"), best, "combination"),
            _Wanted(candidates[best[0]], best[:1]),
        ]
        for name in best if len(best) > 2 else ():  # without one of two: the other one, which was measured
            rest = tuple(other for other in best if other != name)
            wanted.append(_Wanted(replace(candidates[name], predicted_ratio=None), rest, "without"))
        try:
            team, taken = self._measured(wanted, self._ends)
        except NoTurnsError:
            taken = 0
        if not taken:
            self.result.notes.append("The budget ended before the gains could be run together; give --budget more.")
            self.result.best = best[:1]
            return
        rows = list(enumerate(wanted[:taken], len(UNCHANGED)))
        for number, each in rows:
            if each.kind != "single":
                self._add(team.trial(number, each))
        if self.result.interrupted:
            return
        whole = next(trial for trial in self.result.trials if trial.kind == "combination")
        better = [(team.ratio(number), each) for number, each in rows if team.beats(number, rows[0][0])]
        if not is_gain(whole) or any(each.kind == "single" for _, each in better):
            self.result.best = best[:1]
            self.result.notes.append(ALONE_IS_BEST)
        elif better:
            each = max(better, key=lambda one: one[0])[1]
            self.result.best = each.ids
            self.result.notes.append(f"Without {each.candidate.id} the others give more, so it is left out.")
        for each in wanted[taken:]:
            self.result.notes.append(f"The combination without {each.candidate.id} had no room, so it was not run.")

    @property
    def _is_stopped(self) -> bool:
        return bool(self._runs.changed) or self.result.interrupted

    def _add(self, trial: Trial, *, has_more_time: bool = False) -> None:
        self.result.trials.append(trial)
        if not (has_more_time and _is_cut_short(trial)):
            self._report(sentence(trial))


def _is_cut_short(trial: Trial) -> bool:
    return trial.failure == CUT_OFF or trial.doubt == "noise not known"


def _turn_s(step_s: float) -> float:
    """Return how long one turn takes: with one step that is dropped at least, and one that is timed."""
    return max(TurnPlan.long_block_s, step_s) + max(0.01, step_s)


def _least_s(num_forms: int, step_s: float) -> float:
    """Return how long the steps of some forms take at least, of two processes each."""
    return MIN_INSTANCES * num_forms * (15 * step_s + MIN_ROUNDS * _turn_s(step_s))  # warm-up at least


@dataclass
class _Member:
    """A form, and what its processes have measured."""

    ids: tuple[str, ...]
    process: LiveForm | None = None
    results: list[TrialResult] = field(default_factory=list)

    def block(self, seconds: float) -> Block:
        """Run a block in the present process; one that fails has ended afterwards."""
        assert self.process is not None, "a form that did not start has no turn"
        try:
            return self.process.block(seconds)
        except ScriptEndedError:
            raise
        except CaptureError as error:
            failed, self.process = self.process.failed(str(error)), None
            raise CaptureError(failed.failure) from error


class _Team:
    def __init__(self, runs: LiveRuns, plan: TurnSchedule, ends: float, report: Callable[[str], None]) -> None:
        self._runs, self._plan, self._ends, self._report = runs, plan, ends, report
        self._members = [_Member(()) for _ in UNCHANGED]
        self._failed: dict[int, str] = {}
        self._random = random.Random(0)
        self._step_s = self._ready_s = self._started_s = 0.0
        self._found, self._is_new, self._why_none = TurnResult(), True, CUT_OFF
        self._num_decided, self._reported_at = 0, time.monotonic()
        self._is_taking_turns = False  # else a process may be one that has not warmed up
        self.notes: list[str] = []

    def start(self, wanted: Sequence[tuple[str, ...]], step_s: float) -> int:
        """Start the unchanged script and what has room beside it; return how many of what is wanted that is.

        Raises:
            NoTurnsError: the script could not be started, or not twice.
        """
        began, self._step_s = time.monotonic(), step_s
        self._members += [_Member(ids) for ids in wanted]
        numbers = range(len(self._members))
        # In random order: the first to start was slower than the others in seven of seven measurements on a GPU.
        pair = [0, len(UNCHANGED)]
        waiting = [1, *numbers[len(UNCHANGED) + 1 :]]
        self._random.shuffle(pair)
        for number in pair:
            self._begin([number])
        if 0 in self._failed:
            raise NoTurnsError(
                f"Unchanged, the script cannot take turns, so runs follow one another. {self._failed[0]}"
            )
        while waiting and len(self._ready()) < 2:
            self._begin([waiting.pop(0)])
        if len(self._ready()) == 2:
            room = min(room_for(self._ready(), available_bytes()), self._runs.num_copies() - 2, self._num_in_time() - 2)
            room = max(int(min(room, len(waiting))), 0)
            self._begin(self._random.sample(waiting[:room], room))
            waiting = waiting[room:]
        if 1 in self._failed:
            why = "A second copy of the script cannot run together with the first, so runs follow one another."
            raise NoTurnsError(f"{why} {self._failed[1]}")
        if 1 in waiting:
            self.notes.append(NO_CONTROL)
        self._started_s = time.monotonic() - began
        del self._members[min((number for number in waiting if number > 1), default=len(self._members)) :]
        return len(self._members) - len(UNCHANGED)

    def take_turns(self, num_later: int) -> None:
        """Measure the members; every process has ended afterwards.

        Raises:
            NoTurnsError: the unchanged script ended at once.
        """
        unchanged = [number for number in UNCHANGED if self._members[number].process is not None]
        # Without a control there is half of what shows how far processes of one form differ.
        seconds, instances = self._seconds(num_later, 2 if len(unchanged) > 1 else 4)
        plan = TurnPlan(
            seconds, instances=instances, seen=lambda found: self._progress(found, seconds), ends=self._ends
        )
        self._found = take_turns(self._members, unchanged, plan, self._renew, time.monotonic)
        self._failed |= self._found.failed
        if not self._found.estimates[len(UNCHANGED)].num_rounds and 0 in self._found.failed and not self._runs.changed:
            raise NoTurnsError(f"{self._found.failed[0]} So runs follow one another.")
        self._end()

    def interrupt(self) -> int:
        """End every process after Ctrl-C, with what it has measured in its turns; return how many changes there are."""
        self._why_none = INTERRUPTED
        if self._is_taking_turns:
            self._end()
        self.kill()
        return len(self._members) - len(UNCHANGED)

    def trial(self, number: int, wanted: _Wanted) -> Trial:
        """Return what a member did."""
        candidate, ids, kind = wanted
        member, known = self._members[number], self._found.estimates.get(number)
        results = [run for run in member.results if run.step_ns]
        failure = self._failed.get(number, "")
        if failure == CUT_OFF and results:
            failure = ""
        if not failure and (known is None or not known.num_rounds or not results):
            failure = next((run.failure for run in member.results if run.failure), self._why_none)
        if not failure and ids and not any(run.applied for run in results):
            failure = nothing_done(results[-1])
        if failure or known is None:
            return replace(skipped(replace(candidate, skip_reason=failure)), ids=ids, kind=kind)
        unchanged = [run for each in UNCHANGED for run in self._members[each].results if run.step_ns]
        low, high = known.low, known.high
        if known.verdict not in ("better", "worse") and not low <= 1 <= high:
            low, high = min(known.surely_low, 1.0), max(known.surely_high, 1.0)
        times = self._times(number, known.ratio, (low, high))
        trial = evaluate(candidate, TrialRuns(ids, unchanged, results, unchanged, kind), times)
        if self._found.disturbed:
            return doubted(trial, "disturbed")
        if self._why_none == INTERRUPTED and known.verdict == "open":
            return doubted(trial, "interrupted")
        return doubted(trial, "noise not known") if known.num_instances < MIN_INSTANCES else trial

    def ratio(self, number: int) -> float:
        """Return the speed-up of a member."""
        return self._found.estimates[number].ratio

    def beats(self, number: int, other: int) -> bool:
        """Return whether one member is faster than another for certain."""
        if number in self._failed or other in self._failed:
            return False
        return estimate(self._found.rounds, number, (other,), self._found.num_instances).verdict == "better"

    def kill(self) -> None:
        """Kill whatever is left of the members."""
        for member in self._members:
            if member.process is not None:
                member.process.kill()

    def _times(self, number: int, ratio: float, interval: tuple[float, float]) -> Times:
        rounds = [each.step_ns for each in self._found.rounds if number in each.step_ns and 0 in each.step_ns]
        before = [sqrt(each[0] * each.get(1, each[0])) / 1e6 for each in rounds]
        control = self._found.estimates.get(1)
        noise = None if control is None or not control.num_rounds else abs(control.ratio - 1)
        middle = median(before)
        after = tuple(each[number] / 1e6 for each in rounds)
        return Times(tuple(before), after, ratio, interval, noise, (middle, middle / ratio))

    def _ready(self) -> list[LiveForm]:
        return [member.process for member in self._members if member.process is not None]

    def _num_in_time(self) -> float:
        """Return how many forms there is time for, each with two processes."""
        each_s = 2 * (self._ready_s + MIN_ROUNDS * _turn_s(self._step_s))
        return max((self._ends - time.monotonic() + 2 * self._ready_s) / each_s, len(UNCHANGED) + 1)

    def _seconds(self, num_later: int, instances: int) -> tuple[float, int]:
        """Return how many seconds of rounds there are, and how many processes each form has in them."""
        plan, num_forms, left_s = self._plan, len(self._ready()), self._ends - time.monotonic()
        share_s = left_s / (1 + ceil(num_later / max(len(self._members) - len(UNCHANGED), 1)))
        least_s = (MIN_ROUNDS + 1) * num_forms * _turn_s(self._step_s)  # of rounds with the same processes
        rounds_s = max(plan.rounds_s * num_forms, MIN_INSTANCES * least_s)
        for num, time_s, long_s in (
            (instances + 1, share_s, plan.long_s),
            (instances, share_s, 0.0),
            (instances, left_s, 0.0),  # what comes later has to wait
            (MIN_INSTANCES, left_s, 0.0),
        ):
            seconds = min(rounds_s, time_s - (num - 1) * self._started_s)
            if seconds >= max(num * least_s, long_s):
                return seconds, num
        return max(min(rounds_s, left_s), 0.0), 1

    def _begin(self, numbers: Sequence[int]) -> None:
        """Start processes of some members, one after the other as far as they work.

        Raises:
            NoTurnsError: the user's files have changed.
        """
        if self._runs.changed:
            raise NoTurnsError(self._runs.changed)
        starting: dict[int, LiveForm] = {}
        for number in numbers:
            member = self._members[number]
            member.process = starting[number] = self._runs.live(
                number, member.ids, timeout_s=self._timeout_s(member.ids)
            )
            member.process.ends = self._ends
        began = time.monotonic()
        failed = start_all(starting)
        is_over = time.monotonic() >= self._ends
        for number, why in failed.items():
            self._members[number].process = None
            self._failed[number] = CUT_OFF if is_over else why
        if len(numbers) == 1 and not failed:
            self._ready_s = max(self._ready_s, time.monotonic() - began)

    def _timeout_s(self, ids: Sequence[str]) -> float:
        left_s = max(self._ends - time.monotonic(), 1.0)
        return min(left_s, patience_s(ids, self._ready_s, left_s))

    def _renew(self, numbers: Sequence[int]) -> dict[int, str]:
        """Start new processes in the place of those that have run; those of the first time are there."""
        if self._is_new:
            self._is_new = False
            self._is_taking_turns = True
            return {number: self._failed.get(number, "") for number in numbers if self._members[number].process is None}
        self._end()
        if self._runs.changed:
            return dict.fromkeys(UNCHANGED, self._runs.changed)
        if time.monotonic() + self._started_s > self._ends:
            return dict.fromkeys(numbers, CUT_OFF)
        self._is_taking_turns = False
        for number in numbers:
            member = self._members[number]
            if member.ids and member.results[-1].step_ns and not member.results[-1].applied:
                self._failed[number] = nothing_done(member.results[-1])
        self._begin([number for number in numbers if number not in self._failed])
        self._is_taking_turns = True
        return {number: self._failed[number] for number in numbers if number in self._failed}

    def _end(self) -> None:
        """End every process and keep what it has measured."""
        for process in self._ready():  # at once, since each takes a moment
            process.stop()
        for member in self._members:
            if member.process is not None:
                member.results.append(member.process.end())
                member.process = None

    def _progress(self, found: TurnResult, seconds: float) -> None:
        self._found = found
        num, now = len(self._members) - len(UNCHANGED), time.monotonic()
        if num - found.num_open != self._num_decided or now - self._reported_at >= self._plan.report_s:
            self._num_decided, self._reported_at = num - found.num_open, now
            members = range(len(UNCHANGED), len(self._members))
            known = [(self._members[n], found.estimates[n]) for n in members if n not in found.failed]
            so_far = ", ".join(
                f"{'+'.join(member.ids)} {f'{e.ratio:.2f} x so far' if e.num_rounds else 'not known yet'}"
                for member, e in known
            )
            left_s = max(seconds - found.seconds, 0)
            self._report(f"{self._num_decided} of {num} decided, at most {left_s:.0f} s of turns left: {so_far}")

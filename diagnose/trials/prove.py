"""Proves prescriptions within a budget: each change against the script without it, then the best together."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from diagnose.answer.screen import answer
from diagnose.changes.edits.source_edits import OWN_EDIT
from diagnose.errors import UsageError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.events import Note
from diagnose.trials.by_turns import NoTurnsError, by_turns
from diagnose.trials.candidates import Candidate, announced, candidates, not_run
from diagnose.trials.in_sequence import Recorded, Runs, Schedule, in_sequence
from diagnose.trials.trials import ProveResult, skipped

NO_TIME_AFTER = (
    "The budget was used up before the steps with the changes could be recorded; raise it to see what limits them."
)
OWN_RANKS = (
    "The script starts its ranks itself, and a trial measures the process that it starts; once torchrun starts them, "
    "pass --launcher 'torchrun --standalone --nproc-per-node N'."
)
NOTHING_TO_RUN = "No prescription of this diagnosis can be applied from outside, so nothing was run."


def parse_budget(text: str, *, name: str = "--budget") -> float:
    """Return seconds from 90, 90s, 10m or 1h; ``name`` is what the option is called.

    Raises:
        UsageError: it is none of these, or not above zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"Invalid {name} '{text}': use 90s, 10m or 1h.")
    return seconds


class Budget:
    """Seconds, counted from now on, for the recording before the trials, the trials, and the recording after.

    The last recording is expected to take as long as the first one, with its analysis; this time is kept for it, unless
    it is more than a third of what is left: then the trials get everything.
    """

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self.recording_s = 0.0  # that the first recording took, with its analysis
        self.analysis_s = 0.0  # that this analysis took: the last one comes after its recording

    @property
    def left(self) -> float:
        """Return the seconds that are left, not below 0."""
        return max(self._ends - time.monotonic(), 0.0)

    @property
    def for_recording(self) -> float:
        """Return the seconds that the last recording may take."""
        return max(self.left - self.analysis_s, 0.0)

    @property
    def left_text(self) -> str:
        """Return how long is left, in words."""
        return f"{self.left:.0f} s of the budget left"

    @property
    def for_trials(self) -> float:
        """Return the seconds that trials may take."""
        left = self.left
        return left - self.recording_s * (self.recording_s <= Schedule.kept_share * left)

    def records(self, best: Sequence[str], notes: list[str]) -> bool:
        """Return whether the best changes are recorded at the end; where only time forbids it, a note states so."""
        has_time = self.for_recording > 0 and self.left >= self.recording_s
        if best and not has_time:
            notes.append(NO_TIME_AFTER)
        return bool(best) and has_time

    @contextmanager
    def analysis(self) -> Iterator[None]:
        """Time the analysis of the first recording."""
        began = time.monotonic()
        yield
        self.analysis_s = time.monotonic() - began

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Time the first recording."""
        began = time.monotonic()
        yield
        self.recording_s = time.monotonic() - began


def proven(
    runs: Runs, diagnosis: Diagnosis, asked: Sequence[str], budget: Budget, report: Callable[[str], None]
) -> ProveResult:
    """Run what was asked for, or what the diagnosis prescribes, after a line for each of them.

    Raises:
        CaptureError: what is unchanged could not be measured.
    """
    screen = answer(diagnosis)
    cards = [card.prescription.id for card in screen.cards]
    chosen = candidates(diagnosis, asked, edits=runs.edits, diffs=runs.diffs, cards=cards)
    for line in announced(chosen):
        report(line)
    if not {*cards[:1]} <= {each.id for each in chosen} and OWN_EDIT not in asked:
        report(f"not trying change 1: {screen.cards[0].prescription.title}. Other changes were asked for.")
    if runs.edits and screen.measure_own and OWN_EDIT not in asked:
        report(f"to measure your own edit of the script: {screen.measure_own}")
    if not any(not each.skip_reason for each in chosen):
        report(f"nothing is tried: {NOTHING_TO_RUN}")
        return ProveResult([skipped(each) for each in chosen], notes=[NOTHING_TO_RUN])
    recorded = Recorded(diagnosis.source.unprofiled_step_ns, budget.recording_s)
    return prove(runs, chosen, budget.for_trials, lambda text: report(f"{text} ({budget.left_text})"), recorded)


def starts_own_ranks(diagnosis: Diagnosis, launcher: Sequence[str]) -> bool:
    """Return whether several ranks were recorded although nothing but the script was there to start them."""
    return len(diagnosis.ranks) > 1 and not launcher


def with_trials(
    diagnosis: Diagnosis, result: ProveResult, asked: Sequence[str] = (), *, edits: bool = False
) -> Diagnosis:
    """Return the diagnosis with the trials, and with a note for what was not run; ``asked`` are the ids asked for."""
    tried = [trial.id for trial in result.trials]
    notes = [*result.notes, *not_run(diagnosis, asked, edits=edits, tried=tried)]
    return replace(diagnosis, trials=tuple(result.trials), trust=(*diagnosis.trust, *map(Note, notes)))


def prove(
    runs: Runs,
    chosen: Sequence[Candidate],
    budget_s: float,
    report: Callable[[str], None],
    recorded: Recorded | None = None,
) -> ProveResult:
    """Measure the candidates, then the certain gains together and each left out: by turns, or else in sequence.

    Raises:
        CaptureError: what is unchanged could not be measured.
    """
    ends, recorded, notes = time.monotonic() + budget_s, recorded or Recorded(), []
    if runs.turns is not None:
        try:
            return by_turns(runs.turns, chosen, budget_s, report, recorded.step_ns)
        except NoTurnsError as why:
            report(str(why))
            notes.append(str(why))
    result = in_sequence(runs, chosen, max(ends - time.monotonic(), 0.0), report, recorded)
    result.notes[:0] = notes
    return result

"""From a diagnosis to one with trials: chooses what to run, has it run, and puts the results in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from diagnose.model.diagnosis import Diagnosis, Facts
from diagnose.model.events import Note
from diagnose.trials.budget import Budget
from diagnose.trials.candidates import candidates, not_run
from diagnose.trials.prove import ProveResult, Recorded, Runs, prove

__all__ = ["OWN_RANKS", "arguments_for_edits", "arguments_of", "lines_of", "proven", "starts_own_ranks", "with_trials"]

OWN_RANKS = (
    "The script starts its ranks itself, and a trial measures the process that it starts; once torchrun starts them, "
    "pass --launcher 'torchrun --standalone --nproc-per-node N'."
)
NOTHING = "No prescription of this diagnosis can be applied from outside, so nothing was run."


def proven(
    runs: Runs, diagnosis: Diagnosis, asked: Sequence[str], budget: Budget, report: Callable[[str], None]
) -> ProveResult:
    """Run what was asked for, or what the diagnosis prescribes.

    Raises:
        CaptureError: what is unchanged could not be measured.
    """
    chosen = candidates(diagnosis, asked, edits=runs.edits)
    budget_s = budget.for_trials
    recorded = Recorded(diagnosis.source.unprofiled_step_ns, budget.recording_s, kept_s=budget.left - budget_s)
    return prove(runs, chosen, budget_s, report, recorded) if chosen else ProveResult(notes=[NOTHING])


def starts_own_ranks(diagnosis: Diagnosis, launcher: Sequence[str]) -> bool:
    """Return whether several ranks were recorded although nothing but the script was there to start them."""
    return len(diagnosis.ranks) > 1 and not launcher


def with_trials(
    diagnosis: Diagnosis, result: ProveResult, asked: Sequence[str] = (), *, edits: bool = False
) -> Diagnosis:
    """Return the diagnosis with the trials, and with a note for what was not run; ``asked`` are the ids asked for."""
    notes = [*result.notes, *not_run(diagnosis, asked, edits=edits)]
    return replace(diagnosis, trials=tuple(result.trials), trust=(*diagnosis.trust, *(Note(text) for text in notes)))


def arguments_of(diagnosis: Diagnosis) -> dict[str, Facts]:
    """Return what the diagnosis wants its prescriptions applied with, by id."""
    return {p.id: p.arguments for p in (*diagnosis.also_possible, *diagnosis.prescriptions) if p.arguments}


def arguments_for_edits(diagnosis: Diagnosis, script: Path) -> dict[str, Facts]:
    """Return the same for changes of the script's text: with the type of its device and the lines of their findings."""
    device = "cuda" if diagnosis.queue else "cpu"
    prescribed = (*diagnosis.also_possible, *diagnosis.prescriptions)
    return {p.id: {**p.arguments, "device": device, "lines": lines_of(diagnosis, p.rule, script)} for p in prescribed}


def lines_of(diagnosis: Diagnosis, rule: str, script: Path) -> tuple[int, ...]:
    """Return the lines of the script that the rule's finding names, and those of its examples."""
    found = [f for f in (diagnosis.findings) if f.rule == rule]
    places = [place for f in found for place in (*f.where, *(e.where for e in f.examples))]
    return tuple(sorted({p.line for p in places if p.line and p.file and _is_end_of(Path(p.file), script.resolve())}))


def _is_end_of(named: Path, path: Path) -> bool:
    """Return whether a trace's name of a file, which is data and no pattern, can be that of ``path``."""
    return path.parts[-len(named.parts) :] == named.parts

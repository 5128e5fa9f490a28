"""From a diagnosis to one with trials: chooses what to run, has it run, and puts the results in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from diagnose.model.diagnosis import Diagnosis, Facts
from diagnose.model.events import Note
from diagnose.trials.candidates import candidates, not_run
from diagnose.trials.prove import ProveResult, Runs, prove

__all__ = ["arguments_of", "proven", "with_trials"]

NOTHING = "No prescription of this diagnosis can be applied from outside, so nothing was run."


def proven(
    runs: Runs, diagnosis: Diagnosis, asked: Sequence[str], budget_s: float, say: Callable[[str], None]
) -> ProveResult:
    """Run what was asked for, or what the diagnosis prescribes.

    Raises:
        CaptureError: what is unchanged could not be measured.
    """
    chosen = candidates(diagnosis, asked)
    known = diagnosis.source.unprofiled_step_ns
    return prove(runs, chosen, budget_s, say, known) if chosen else ProveResult(notes=[NOTHING])


def with_trials(diagnosis: Diagnosis, result: ProveResult) -> Diagnosis:
    """Return the diagnosis with the trials, and with a note for what was not run."""
    notes = [*result.notes, *not_run(diagnosis)]
    return replace(diagnosis, trials=tuple(result.trials), trust=(*diagnosis.trust, *(Note(text) for text in notes)))


def arguments_of(diagnosis: Diagnosis) -> dict[str, Facts]:
    """Return what the diagnosis wants its prescriptions applied with, by id."""
    return {p.id: p.arguments for p in diagnosis.prescriptions if p.arguments}

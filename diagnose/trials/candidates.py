"""Which prescriptions of a diagnosis are to be run: those that can be applied from outside, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnose.errors import UsageError
from diagnose.model.diagnosis import Diagnosis, Prescription
from diagnose.trials.patches import BY_HAND, PATCHES

__all__ = ["Candidate", "by_hand", "candidates", "check_ids", "left_of_step"]

NO_GPU = "It needs a GPU, and these steps used none."
_AT_START = "sets environment variables, which torch reads when it starts"


@dataclass(frozen=True)
class Candidate:
    """A patch to be tried, with what the diagnosis predicts of it."""

    id: str
    title: str
    predicted_ratio: float | None = None  # of the step then to the step now
    refusal: str = ""  # why it is not even tried


def candidates(diagnosis: Diagnosis, asked: Sequence[str]) -> tuple[Candidate, ...]:
    """Return what to run: the ids asked for, or without any every prescription that can be applied from outside."""
    prescribed = {p.id: p for p in diagnosis.prescriptions}
    has_gpu = diagnosis.queue is not None
    wanted = asked or [name for name in prescribed if name in PATCHES and (has_gpu or not PATCHES[name].needs_gpu)]
    # What recording cost goes without any change, and savings leave it out already.
    now = diagnosis.step_ns - diagnosis.recording_ns
    found = (_candidate(name, prescribed.get(name), now) for name in dict.fromkeys(wanted))
    return tuple(c if has_gpu or not PATCHES[c.id].needs_gpu else replace(c, refusal=NO_GPU) for c in found)


def check_ids(asked: Sequence[str], *, own_process: bool = True) -> None:
    """Refuse what cannot be run.

    Raises:
        UsageError: an id is unknown, names a change that only the author can make, or one that takes effect only
            where a process begins, which ``own_process`` says every run does.
    """
    for name in asked:
        if name in BY_HAND:
            raise UsageError(f"{name} cannot be applied from outside: {BY_HAND[name]}. Make the change by hand.")
        if name not in PATCHES:
            raise UsageError(f"There is no change {name} that can be applied; there are {', '.join(sorted(PATCHES))}.")
        if PATCHES[name].environment and not own_process:
            raise UsageError(f"{name} {_AT_START}; run the script with diagnose prove.")


def by_hand(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return a sentence for each prescription that cannot be run."""
    return tuple(
        f"{p.id} was not run: {BY_HAND.get(p.id, 'it cannot be applied from outside the script')}."
        for p in diagnosis.prescriptions
        if p.id not in PATCHES
    )


def left_of_step(saves: Sequence[float], now: float) -> float:
    """Return the step after a change over the step ``now``, from what the change saves at least and at most."""
    return 1 - min(max(sum(saves) / 2 / now, 0.0), 1.0)


def _candidate(name: str, prescription: Prescription | None, now_ns: float) -> Candidate:
    ratio = None
    if prescription and prescription.predicted_step_ns is not None and now_ns > 0:
        ratio = left_of_step(prescription.saves_ns, now_ns)
    return Candidate(name, prescription.title if prescription else PATCHES[name].title, ratio)

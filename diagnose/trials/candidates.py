"""Which prescriptions of a diagnosis are to be run: those that can be applied from outside, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnose.changes import CHANGES, any_compiles, edits_script, group_of, patch_of, trial_method
from diagnose.errors import UsageError
from diagnose.model.diagnosis import Diagnosis, Prescription

__all__ = ["Candidate", "candidates", "check_ids", "not_run", "together"]

NO_GPU = "It needs a GPU, and these steps used none."
NOT_COMPILED = (
    "compile-model was not run: no finding of this recording prescribes it; asked for by name (--apply compile-model) "
    "it is tried."
)
_AT_START = "sets environment variables, which torch reads when it starts"


@dataclass(frozen=True)
class Candidate:
    """A change to be tried, with what the diagnosis predicts of it."""

    id: str
    title: str
    predicted_ratio: float | None = None  # of the step after the change to the step before
    skip_reason: str = ""  # why it is not even tried


def candidates(diagnosis: Diagnosis, asked: Sequence[str], *, edits: bool = False) -> tuple[Candidate, ...]:
    """Return what to run: the ids asked for, or without any every prescription that a trial can make.

    With ``edits`` those count too that are made in the text of the script. What is only also possible runs where it is
    asked for. What is predicted to save most comes first, so that a short budget is spent on it; then the rest.
    """
    prescribed = {p.id: p for p in diagnosis.prescriptions}
    has_gpu = diagnosis.queue is not None
    made = [name for name in prescribed if patch_of(name) is not None or (edits and edits_script(name))]
    wanted = asked or [name for name in made if has_gpu or not _needs_gpu(name)]
    found = (_candidate(name, prescribed.get(name), diagnosis) for name in dict.fromkeys(wanted))
    known = [c if has_gpu or not _needs_gpu(c.id) else replace(c, skip_reason=NO_GPU) for c in found]
    return tuple(sorted(known, key=lambda c: 1.0 if c.predicted_ratio is None else c.predicted_ratio))


def check_ids(asked: Sequence[str], *, own_process: bool = True) -> None:
    """Refuse what cannot be run.

    Raises:
        UsageError: an id is unknown, names a change that only the author can make, or one that takes effect only
            where a process begins, which ``own_process`` says every run does.
    """
    for name in asked:
        patch = patch_of(name)
        if name not in CHANGES and name not in _advised():
            known = ", ".join(one for one in CHANGES if trial_method(one) != "by hand")
            raise UsageError(f"Invalid change {name}: use one of {known}.")
        if trial_method(name) == "by hand":
            raise UsageError(f"{name} is advice that no trial can apply. Make the change by hand.")
        if patch is None and not own_process:
            raise UsageError(f"{name} is made in the text of a script; run the script with diagnose prove.")
        if patch is not None and patch.environment and not own_process:
            raise UsageError(f"{name} {_AT_START}; run the script with diagnose prove.")


def not_run(diagnosis: Diagnosis, asked: Sequence[str] = (), *, edits: bool = False) -> tuple[str, ...]:
    """Return a sentence for each prescription that cannot be run, and for compiling where nothing prescribes it."""
    left = [p.id for p in diagnosis.prescriptions if patch_of(p.id) is None and not (edits and edits_script(p.id))]
    whys = [f"{name} was not run: no trial can apply it." for name in left]
    compiles = any_compiles([p.id for p in diagnosis.prescriptions])
    return tuple(whys) if asked or compiles else (*whys, NOT_COMPILED)


def _advised() -> set[str]:
    from diagnose.analyzers import ADVICE  # which a trial's process does not need

    return {name for entries in ADVICE.values() for name in entries}


def _needs_gpu(name: str) -> bool:
    patch = patch_of(name)
    return patch is not None and patch.needs_gpu


def _candidate(name: str, prescription: Prescription | None, diagnosis: Diagnosis) -> Candidate:
    ratio = None
    if prescription and prescription.predicted_step_ns is not None and diagnosis.step_ns > 0:
        ratio = min(max(prescription.predicted_step_ns / diagnosis.step_ns, 0.0), 1.0)
    by_hand = prescription.arguments.get("by_hand") if prescription else None
    skip_reason = f"It is made by hand: {by_hand}." if by_hand else ""
    return Candidate(name, prescription.title if prescription else CHANGES[name].title, ratio, skip_reason)


def together(ids: Sequence[str]) -> tuple[str, ...]:
    """Leave out what changes the same thing as one before it."""
    groups = [group_of(name) for name in ids]
    return tuple(name for i, name in enumerate(ids) if not groups[i] or groups[i] not in groups[:i])

"""Which prescriptions of a diagnosis are run: those that can be applied from outside, the best first, and with what."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.changes import CHANGES, any_compiles, group_of, patch_of, trial_method
from diagnose.changes.edits.source_edits import OWN_EDIT, lines_of
from diagnose.errors import UsageError
from diagnose.model.diagnosis import Diagnosis, Facts, Prescription

IN_TEXT = "It is made in the text of a script, so it is tried only if a script is named by its file."
NO_GPU = "It needs a GPU, and these steps used none."
NOT_COMPILED = (
    "compile-model was not run: no finding of this recording prescribes it; asked for by name (--apply compile-model) "
    "it is tried."
)


@dataclass(frozen=True)
class Candidate:
    """A change to be tried, with what the diagnosis predicts of it."""

    id: str
    title: str
    predicted_ratio: float | None = None  # of the step after the change to the step before
    skip_reason: str = ""  # why it is not even tried
    card: int = 0  # its number on the first screen, 0 where it is not there

    @property
    def named(self) -> str:
        """Return which change it is, by its number on the first screen."""
        if self.card:
            return f"change {self.card}: {self.title}"
        return f"{self.id}, which is not on the first screen: {self.title}"


def candidates(
    diagnosis: Diagnosis,
    asked: Sequence[str],
    *,
    edits: bool = False,
    diffs: Collection[str] = (),
    cards: Sequence[str] = (),
) -> tuple[Candidate, ...]:
    """Return what to run: the ids asked for, or without any every prescription that a trial can make.

    With ``edits`` those count too that are made in the text of the script. What is only also possible runs where it is
    asked for; of what only a trial judges, settings of the environment run, for which no script changes. What is
    predicted to save most comes first, so that a short budget is spent on it; then the rest.

    Args:
        diagnosis: Has the prescriptions.
        asked: Ids.
        edits: Whether the text of the script can be edited.
        diffs: Ids of the prescriptions that are made by their printed diff.
        cards: Ids on the first screen, in their order. Without ``asked``, one of them that no trial can make is a
            candidate that is skipped.
    """
    prescribed = {p.id: p for p in diagnosis.prescriptions}
    patches = {name: patch for name in (*asked, *prescribed) if (patch := patch_of(name)) is not None}
    lacks_gpu = {name for name, patch in patches.items() if patch.needs_gpu and diagnosis.queue is None}
    found = []
    made = {name for name in prescribed if name in diffs or _is_made(name, edits=edits)}
    settings = [n for n in diagnosis.to_try if (patch := patch_of(n)) is not None and patch.environment]
    wanted = [*(n for n in prescribed if n in cards or (n in made and n not in lacks_gpu)), *settings]
    for name in dict.fromkeys(asked or wanted):
        p, ratio = prescribed.get(name), None
        if p is not None and p.predicted_step_ns is not None and diagnosis.step_ns > 0:
            ratio = min(max(p.predicted_step_ns / diagnosis.step_ns, 0.0), 1.0)
        is_left = p is not None and (name not in made or p.arguments.get("by_hand"))
        reason = NO_GPU if name in lacks_gpu else _why_left(p, edits=edits) if p is not None and is_left else ""
        title = p.title if p is not None else "Your edit of the script" if name == OWN_EDIT else CHANGES[name].title
        card = cards.index(name) + 1 if name in cards else 0
        found.append(Candidate(name, title, ratio, reason, card))
    return tuple(sorted(found, key=lambda c: 1.0 if c.predicted_ratio is None else c.predicted_ratio))


def _why_left(p: Prescription, *, edits: bool) -> str:
    """Return why a prescription is not tried."""
    why = p.arguments.get("by_hand")
    if not why and not edits and trial_method(p.id) == "edited copy":
        return IN_TEXT
    return f"It is yours to make: {why}." if why else "It is yours to make."


def announced(chosen: Sequence[Candidate]) -> Iterator[str]:
    """Yield a line for each change that is tried and for each card that is not, the first card first."""
    for each in sorted(chosen, key=lambda c: c.card or len(chosen) + 1):
        named = each.named if each.card or each.id != OWN_EDIT else "your edit"
        yield f"not trying {named}. {each.skip_reason}" if each.skip_reason else f"trying {named}"


def check_ids(asked: Sequence[str], *, own_process: bool = True) -> None:
    """Refuse what cannot be run.

    Raises:
        UsageError: an id is unknown, names a change that only the author can make, or one that takes effect only
            where a process begins, which ``own_process`` says every run does.
    """
    for name in asked:
        if name not in CHANGES and name not in _advised():
            known = ", ".join(one for one in CHANGES if trial_method(one) != "by hand")
            raise UsageError(f"Invalid change {name}: use one of {known}.")
        if trial_method(name) == "by hand":
            raise UsageError(f"{name} is advice that no trial can apply. Make the change by hand.")
        if own_process:
            continue
        patch = patch_of(name)
        if patch is None:
            raise UsageError(f"{name} is made in the text of a script; run the script with diagnose prove.")
        if patch.environment:
            raise UsageError(
                f"{name} sets environment variables, which torch reads when it starts; run the script with diagnose "
                "prove."
            )


def not_run(
    diagnosis: Diagnosis, asked: Sequence[str] = (), *, edits: bool = False, tried: Collection[str] = ()
) -> tuple[str, ...]:
    """Return a sentence for each prescription that cannot be run, and for compiling where nothing prescribes it.

    Those that were ``tried``, or skipped with a reason, have none.
    """
    prescribed = [p.id for p in diagnosis.prescriptions]
    left = [name for name in prescribed if name not in tried and not _is_made(name, edits=edits)]
    whys = [f"{name} was not run: no trial can apply it." for name in left]
    return tuple(whys) if asked or any_compiles(prescribed) else (*whys, NOT_COMPILED)


def together(ids: Sequence[str]) -> tuple[str, ...]:
    """Leave out what changes the same thing as one before it."""
    firsts: dict[str, str] = {}
    for name in ids:
        firsts.setdefault(group_of(name) or name, name)
    return tuple(firsts.values())


def arguments_of(diagnosis: Diagnosis) -> dict[str, Facts]:
    """Return what the diagnosis wants its prescriptions applied with, by id."""
    return {p.id: p.arguments for p in (*diagnosis.also_possible, *diagnosis.prescriptions) if p.arguments}


def arguments_for_edits(diagnosis: Diagnosis, script: Path, asked: Sequence[str] = ()) -> dict[str, Facts]:
    """Return the same for changes of the script's text, and for those asked for by name.

    They are given the type of the device, and the lines of their findings.
    """
    device = "cuda" if diagnosis.queue else "cpu"
    prescribed = (*diagnosis.also_possible, *diagnosis.prescriptions)
    known: dict[str, Facts] = {
        p.id: {**p.arguments, "device": device, "lines": lines_of(diagnosis, p.rule, script)} for p in prescribed
    }
    of_others: dict[str, Facts] = {name: {"device": device, "lines": ()} for name in asked}
    return of_others | known


def _is_made(name: str, *, edits: bool) -> bool:
    """Return whether a trial can make the change: by a patch, or in the script's text if that can be edited."""
    if trial_method(name) != "edited copy":
        return trial_method(name) == "patch"
    return edits and CHANGES[name].edit is not None  # else by the diff of a prescription


def _advised() -> set[str]:
    from diagnose.analyzers import ADVICE  # which a trial's process does not need

    return {name for entries in ADVICE.values() for name in entries}

"""From a finding to its prescriptions, and from a prescription to what it does to the recorded steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from diagnose.analyzers import META
from diagnose.changes import CHANGES, trial_method
from diagnose.changes.common.call_edits import (
    EditedCall,
    calls_in,
    diff_of,
    edited,
    other_classes_of,
    passed_by,
    settings_of,
)
from diagnose.changes.common.change import Advice, Change, Numerics, Patch, SetArguments
from diagnose.changes.common.memory import batch_that_fits
from diagnose.model.diagnosis import Finding, Prescription, Where, middle_ns
from diagnose.replay.effects import Effect, effect_of_share
from diagnose.replay.transforms import transfer_share
from diagnose.tables import Tables
from diagnose.tables.program import UNKNOWN, Program
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration

__all__ = [
    "also_possible",
    "compiles_model",
    "effect_of",
    "further",
    "is_worth_showing",
    "prescribe",
    "recording_first",
    "without_savings",
]


MIN_FREED_BYTES = 5_000_000  # reads as 0.01 GB
_LOSSES = r"compare the (first losses|loss\b[^;]*)"

MAX_WAITING = 0.5  # of a finding: beyond it no change of the exchange is what helps


def prescribe(finding: Finding, step_ns: float, program: Program = UNKNOWN) -> list[Prescription]:
    """Return the changes that the finding's rule names and that fit the program, in the order of its META.

    What they save is bounded here by shares of what the finding costs. Nothing is named where most of that is waiting
    for other ranks: what those do decides it.
    """
    waiting = finding.facts.get("awaits_ranks")
    if META[finding.rule].cause == "collective" and isinstance(waiting, float) and waiting > MAX_WAITING:
        return []
    made = (_prescription(CHANGES[name], finding, step_ns, program) for name in META[finding.rule].changes)
    return [prescription for prescription in made if prescription is not None]


def also_possible(finding: Finding, step_ns: float, program: Program = UNKNOWN) -> list[Prescription]:
    """Return the further changes of the finding's rule that fit the program, those that free most memory first.

    Of two that free as much, the one that costs less time comes first.
    """
    advised = [(CHANGES[name], CHANGES[name].advice_for(finding, step_ns, program)) for name in META[finding.rule].also]
    fitting = [(change, advice) for change, advice in advised if advice is not None]
    fitting.sort(key=lambda pair: (-pair[1].frees_bytes, sum(pair[1].costs_ns or (0.0, 0.0))))
    return [_prescribed(change, finding, step_ns, program, advice) for change, advice in fitting]


def further(
    found: Sequence[Finding], shown: Sequence[Prescription], step_ns: float, program: Program
) -> tuple[Prescription, ...]:
    """Return the further changes for the findings, each once and none that is prescribed anyway.

    What they save is not predicted: several do the same in other ways, and a report names them in a line.
    """
    each = {p.id: p for finding in reversed(found) for p in reversed(also_possible(finding, step_ns, program))}
    prescribed = {p.id for p in shown}
    return without_savings([p for p in reversed(each.values()) if p.id not in prescribed])


def _prescription(change: Change, finding: Finding, step_ns: float, program: Program) -> Prescription | None:
    advice = change.advice_for(finding, step_ns, program)
    return None if advice is None else _prescribed(change, finding, step_ns, program, advice)


def _prescribed(change: Change, finding: Finding, step_ns: float, program: Program, advice: Advice) -> Prescription:
    least, most = _of_few(finding, advice)
    costs_ns = finding.lost_ns * transfer_share(finding)
    least_ns, most_ns = costs_ns * least, costs_ns * most
    edits = _edits(change, finding, advice)
    return Prescription(
        rule=finding.rule,
        id=change.id,
        title=(advice.title or change.title) + _freed(finding, advice, program.batch_size),
        before="\n".join(edit.shown_before for edit in edits) or advice.before,
        after=("\n".join(edit.shown_after for edit in edits) or advice.after) + advice.beside,
        saves_ns=(least_ns, most_ns),
        predicted_step_ns=middle_ns(step_ns - most_ns, step_ns - least_ns) if advice.most > 0 else None,
        safety=_safety(advice.numerics or change.numerics, program),
        promise=(advice.numerics or change.numerics).promise or "other",
        needs="; ".join([*filter(None, [advice.needs]), *_settings(change, advice, edits)]),
        remedy=change.remedy,
        arguments=advice.arguments,
        edits=tuple(dict.fromkeys(Where(edit.call.file, edit.call.begin[0], code=edit.line) for edit in edits)),
        trial_method="by hand" if advice.arguments.get("by_hand") else trial_method(change.id),
        diff=diff_of(edits) if advice.is_whole else "",
        records_again=change.records is not None,
        records_more=change.records == "more",
        mean_step_ns=finding.lost_ns / finding.share if finding.share and advice.most > 0 else None,
    )


def _of_few(finding: Finding, advice: Advice) -> tuple[float, float]:
    """Return which share of the cost a change saves: as much wider as the cost of what comes now and then may differ.

    A longer run may have more of it than the watched steps, so the upper end lies above what it costs in those. A run
    with so much more has longer steps too: what is stated is as large a part of the watched step as of those.
    """
    factor = finding.facts.get("cost_factor")
    if not isinstance(factor, float) or factor <= 1 or not finding.share:
        return advice.least, advice.most
    return advice.least / factor, advice.most * factor / (1 + (factor - 1) * finding.share)


def _freed(finding: Finding, advice: Advice, batch_size: int | None) -> str:
    """Return what a title adds where the memory that a change frees is known: bytes, the batch, what a step costs."""
    freed = advice.frees_bytes
    if freed < MIN_FREED_BYTES:
        return ""
    fits = batch_that_fits(finding, batch_size, freed, spares_samples=advice.spares_samples)
    clauses = [f"fits at batch {fits}"] if fits and batch_size and fits >= batch_size else []
    if advice.costs_ns is not None:
        least, most = advice.costs_ns
        clauses.append(f"costs {f'{duration(least)} to' if least else 'up to'} {duration(most)} a step")
    return f" (up to {freed / 1e9:.2f} GB less at the peak{': ' if clauses else ''}{', '.join(clauses)})"


def _edits(change: Change, finding: Finding, advice: Advice) -> list[EditedCall]:
    """Return the calls of the script that the change sets arguments of, where the capture holds them all."""
    if advice.edits:
        return list(advice.edits)
    if advice.by_hand or not isinstance(change.edit, SetArguments):
        return []
    calls = calls_in(finding.facts, change.edit.of)
    asked = [(call, *change.edit.of_call(passed_by(call), advice.arguments)) for call in calls]
    made = [edited(call, values) for call, values, why in asked if not why]
    return [edit for edit in made if edit is not None]


def _settings(change: Change, advice: Advice, edits: Sequence[EditedCall]) -> list[str]:
    """Return clauses for what the script's own settings and variables decide about the edited calls."""
    if not isinstance(change.edit, SetArguments):
        return []
    return [*settings_of(edits, change.edit.values(advice.arguments)), *other_classes_of(edits)]


def _safety(numerics: Numerics, program: Program) -> str:
    """Return the words of a prescription; inference has outputs to compare in the place of losses."""
    return re.sub(_LOSSES, "compare the outputs", numerics.safety) if program.trains is False else numerics.safety


def compiles_model(prescription: Prescription) -> bool:
    """Return whether a change compiles the model, which is not one that keeps a compiled one from compiling again."""
    change = CHANGES.get(prescription.id)
    patch = change.patch if change is not None else None
    return isinstance(patch, Patch) and patch.compiles and META[prescription.rule].cause != "compilation"


def is_worth_showing(prescription: Prescription, finding: Finding, step_ns: float) -> bool:
    """Return whether a change saves enough to be shown; one that predicts nothing is shown for what it is."""
    if prescription.predicted_step_ns is None or finding.lost_ns <= 0:
        return True
    return max(prescription.saves_ns) >= THRESHOLDS.naming_share * step_ns


def recording_first(
    prescribed: Sequence[Prescription],
    found: Sequence[Finding],
    step_ns: float,
    program: Program,
    *,
    is_incomplete: bool,
) -> tuple[Prescription, ...]:
    """Return the prescriptions with that of a better recording first, where this one cannot carry the others.

    Args:
        prescribed: for the findings, those that save most first.
        found: the findings, the one that answers first.
        step_ns: the step's length.
        program: what is known of the program.
        is_incomplete: whether the recording lacks too much for any claim.
    """
    again = [p for p in prescribed if CHANGES[p.id].records]
    if is_incomplete and not again:
        change = next(change for change in CHANGES.values() if change.records == "more")
        made = _prescription(change, found[0], step_ns, program) if found else None
        again = [made] if made else []
    if not is_incomplete and not (found and found[0].rule in {p.rule for p in again}):
        return tuple(prescribed)
    return (*again, *(p for p in prescribed if p not in again))


def without_savings(prescribed: Sequence[Prescription]) -> tuple[Prescription, ...]:
    """Return the prescriptions without what they would save: a recording that is cold or lacks work cannot show it."""
    return tuple(
        replace(p, saves_ns=(0.0, 0.0), predicted_step_ns=None, basis="bound", assumes="", mean_step_ns=None)
        for p in prescribed
    )


def effect_of(t: Tables, finding: Finding, prescription: Prescription) -> Effect | None:
    """Return what a prescription does to the recorded steps, None where no graph shows it.

    That is the change's own model, where it has one, and otherwise the part of the finding's cause that it takes away.
    """
    if META[finding.rule].kind == "run":
        return None  # the recorded steps are the others
    change = CHANGES.get(prescription.id)
    model = change.effect if change is not None and t.device_id >= 0 else None
    effect = model(t, finding) if model is not None else None
    if effect is not None or finding.lost_ns <= 0:
        return effect
    least, most = (min(max(saved / finding.lost_ns, 0.0), 1.0) for saved in prescription.saves_ns)
    return effect_of_share(t, finding, META[finding.rule].cause, (least, most)) if most > 0 else None

"""From a finding to its prescriptions, and from a prescription to what it does to the recorded steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from diagnose.analyzers import ADVICE, META
from diagnose.analyzers.common.advice import Advice
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
from diagnose.changes.common.change import Change, Numerics, Patch, Proposal, SetArguments
from diagnose.changes.common.memory import batch_that_fits, freed_by, num_ranks
from diagnose.model.diagnosis import Finding, Prescription, Where, middle_ns
from diagnose.model.locations import at_line, own_place
from diagnose.model.own_source import by_place
from diagnose.replay.effects import Effect, effect_of_share
from diagnose.replay.transforms import transfer_share
from diagnose.tables import Tables
from diagnose.tables.program import UNKNOWN, Program
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, percent

_LOSSES = r"compare the (first losses|loss\b[^;]*)"


def prescribe(finding: Finding, step_ns: float, program: Program = UNKNOWN) -> list[Prescription]:
    """Return the changes that the finding's rule names and that fit the program, in the order of its META.

    What they save is bounded here by shares of what the finding costs. Nothing is named where most of that is waiting
    for other ranks: what those do decides it.
    """
    waiting = finding.facts.get("awaits_ranks")
    # Of a finding: beyond it no change of the exchange is what helps.
    if META[finding.rule].cause == "collective" and isinstance(waiting, float) and waiting > 0.5:
        return []
    made = (_made(name, finding, step_ns, program) for name in META[finding.rule].changes)
    return [one.prescription for one in made if one is not None]


def also_possible(finding: Finding, step_ns: float, program: Program = UNKNOWN) -> list[Prescription]:
    """Return the further changes of the finding's rule that fit the program, those that free most memory first."""
    made = (_made(name, finding, step_ns, program) for name in META[finding.rule].also)
    fitting = [one for one in made if one is not None]
    fitting.sort(key=lambda one: -one.frees_bytes)
    return [one.prescription for one in fitting]


def further(
    found: Sequence[Finding], shown: Sequence[Prescription], step_ns: float, program: Program
) -> tuple[Prescription, ...]:
    """Return the further changes for the findings, each once and none that is prescribed anyway.

    What they save is not predicted: several do the same in other ways, and a report names them in a line.
    """
    each = {p.id: p for finding in reversed(found) for p in reversed(also_possible(finding, step_ns, program))}
    prescribed = {p.id for p in shown}
    return without_savings([p for p in reversed(each.values()) if p.id not in prescribed])


class _Made(NamedTuple):
    prescription: Prescription
    frees_bytes: int


def _made(name: str, finding: Finding, step_ns: float, program: Program) -> _Made | None:
    """Return what the finding's rule names as it fits here, None where it does not."""
    if name in ADVICE[finding.rule]:
        return _advised(ADVICE[finding.rule][name], finding, step_ns, program)
    change = CHANGES[name]
    proposal = change.proposal_for(finding, step_ns, program)
    if proposal is None:
        return None
    return _Made(_prescribed(change, finding, step_ns, program, proposal), proposal.frees_bytes)


def _advised(entries: Sequence[Advice], finding: Finding, step_ns: float, program: Program) -> _Made | None:
    """Return the first entry that fits, with its texts filled in."""
    advice = next((each for each in entries if each.when is None or each.when(finding, program)), None)
    if advice is None or finding.lost_ns < advice.min_share * step_ns:
        return None
    values = _values(finding, program)
    part = values.get(advice.of, 1.0)
    part = float(part) if isinstance(part, int | float) else 1.0
    most = advice.most * part
    if advice.is_ahead:
        most = min(most, max(step_ns - finding.lost_ns, 0.0) / max(finding.lost_ns, 1.0))
    frees = freed_by(finding, advice.frees, advice.frees_share)
    proposal = Proposal(
        after=_filled(advice.after, values),
        least=advice.least * part,
        most=most,
        frees_bytes=frees,
        spares_samples="activations" in advice.frees,
    )
    least_ns, most_ns = _saved_ns(finding, proposal)
    prescription = Prescription(
        rule=finding.rule,
        id=advice.id,
        title=_filled(advice.title, values) + _freed(finding, proposal, program.batch_size),
        before=_filled(advice.before, values) if advice.after else "",
        after=proposal.after,
        saves_ns=(least_ns, most_ns),
        predicted_step_ns=middle_ns(step_ns - most_ns, step_ns - least_ns) if most > 0 else None,
        safety=_safety(advice.numerics, program),
        promise=advice.numerics.promise or "other",
        needs=_filled(advice.needs, values),
        remedy=advice.remedy,
        trial_method="by hand",
        is_advice=True,
        records_again=advice.records_again,
        records_more=advice.records_more,
        mean_step_ns=finding.lost_ns / finding.share if finding.share and proposal.most > 0 else None,
    )
    return _Made(prescription, frees)


def _values(finding: Finding, program: Program) -> dict[str, object]:
    """Return what fills in the templates of an advice (``diagnose.analyzers.common.advice``)."""
    values: dict[str, object] = {}
    for name, value in finding.facts.items():
        values |= (
            {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    place = own_place(finding.where)
    size = finding.facts.get("batch_size") or program.batch_size
    period = finding.facts.get("period") if finding.facts.get("regular") is not False else None
    return values | {
        "line": (place.code or "") if place else "",
        "at": f" at {at_line(place)}" if place else "",
        "there": f" ({at_line(place)})" if place else "",
        "script": "infer.py" if program.trains is False else "train.py",
        "batch": size or "batch_size",
        "twice": 2 * size if isinstance(size, int) else "2 * batch_size",
        "half_as_often": 2 * period if isinstance(period, int) and period > 1 else "(2 * every)",
        "ranks": num_ranks(finding),
    }


def _filled(template: str, values: Mapping[str, object]) -> str:
    """Return a template with the values that it names; braces around anything else are code."""
    return re.sub(
        r"\{([\w.]+)(?::([^{}\s]+))?\}",
        lambda m: _written(values[m[1]], m[2] or "") if m[1] in values else m[0],
        template,
    )


def _written(value: object, form: str) -> str:
    return percent(value, 0) if form == "share" and isinstance(value, float) else format(value, form)


def _prescribed(change: Change, finding: Finding, step_ns: float, program: Program, proposal: Proposal) -> Prescription:
    least_ns, most_ns = _saved_ns(finding, proposal)
    numerics = proposal.numerics or change.numerics
    edits = _edits(change, finding, proposal)
    diff = diff_of(edits) if proposal.is_whole else ""
    is_theirs = bool(proposal.arguments.get("by_hand")) or (change.edits_expressions and not diff)
    return Prescription(
        rule=finding.rule,
        id=change.id,
        title=(proposal.title or change.title) + _freed(finding, proposal, program.batch_size),
        before=by_place((edit.call.begin[0], edit.shown_before) for edit in edits) or proposal.before,
        after=(by_place((edit.call.begin[0], edit.shown_after) for edit in edits) or proposal.after) + proposal.beside,
        saves_ns=(least_ns, most_ns),
        predicted_step_ns=middle_ns(step_ns - most_ns, step_ns - least_ns) if proposal.most > 0 else None,
        safety=_safety(numerics, program),
        promise=numerics.promise or "other",
        needs="; ".join([*filter(None, [proposal.needs]), *_settings(change, proposal, edits)]),
        remedy=change.remedy,
        arguments=proposal.arguments,
        edits=tuple(dict.fromkeys(Where(edit.call.file, edit.call.begin[0], code=edit.line) for edit in edits)),
        trial_method="by hand" if is_theirs else "edited copy" if diff else trial_method(change.id),
        diff=diff,
        mean_step_ns=finding.lost_ns / finding.share if finding.share and proposal.most > 0 else None,
    )


def _saved_ns(finding: Finding, proposal: Proposal) -> tuple[float, float]:
    costs_ns = finding.lost_ns * transfer_share(finding)
    least, most = _of_few(finding, proposal)
    return costs_ns * least, costs_ns * most


def _of_few(finding: Finding, proposal: Proposal) -> tuple[float, float]:
    """Return which share of the cost a change saves: as much wider as the cost of what comes now and then may differ.

    A longer run may have more of it than the watched steps, so the upper end lies above what it costs in those. A run
    with so much more has longer steps too: what is stated is as large a part of the watched step as of those.
    """
    factor = finding.facts.get("cost_factor")
    if not isinstance(factor, float) or factor <= 1 or not finding.share:
        return proposal.least, proposal.most
    return proposal.least / factor, proposal.most * factor / (1 + (factor - 1) * finding.share)


def _freed(finding: Finding, proposal: Proposal, batch_size: int | None) -> str:
    """Return what a title adds where the memory that a change frees is known: bytes, the batch, what a step costs."""
    freed = proposal.frees_bytes
    if freed < 5_000_000:  # reads as 0.01 GB
        return ""
    fits = batch_that_fits(finding, batch_size, freed, spares_samples=proposal.spares_samples)
    clauses = [f"fits at batch {fits}"] if fits and batch_size and fits >= batch_size else []
    if proposal.costs_ns is not None:
        least, most = proposal.costs_ns
        clauses.append(f"costs {f'{duration(least)} to' if least else 'up to'} {duration(most)} a step")
    return f" (up to {freed / 1e9:.2f} GB less at the peak{': ' if clauses else ''}{', '.join(clauses)})"


def _edits(change: Change, finding: Finding, proposal: Proposal) -> list[EditedCall]:
    """Return the calls of the script that the change sets arguments of, where the capture holds them all."""
    if proposal.edits:
        return list(proposal.edits)
    if proposal.by_hand or not isinstance(change.edit, SetArguments):
        return []
    calls = calls_in(finding.facts, change.edit.of)
    asked = [(call, *change.edit.of_call(passed_by(call), proposal.arguments)) for call in calls]
    made = [edited(call, values) for call, values, why in asked if not why]
    return [edit for edit in made if edit is not None]


def _settings(change: Change, proposal: Proposal, edits: Sequence[EditedCall]) -> list[str]:
    """Return clauses for what the script's own settings and variables decide about the edited calls."""
    if not isinstance(change.edit, SetArguments):
        return []
    return [*settings_of(edits, change.edit.values(proposal.arguments)), *other_classes_of(edits)]


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
    again = [p for p in prescribed if p.records_again]
    if is_incomplete and not again and found:
        entries = [a for each in ADVICE.values() for listed in each.values() for a in listed if a.records_more]
        made = _advised(entries, found[0], step_ns, program)
        again = [made.prescription] if made is not None else []
    if not is_incomplete and not (found and found[0].rule in {p.rule for p in again}):
        return tuple(prescribed)
    return (*again, *(p for p in prescribed if p not in again))


def without_savings(prescribed: Sequence[Prescription]) -> tuple[Prescription, ...]:
    """Return the prescriptions without what they would save: a recording that is cold or lacks work cannot show it."""
    return tuple(
        replace(p, saves_ns=(0.0, 0.0), predicted_step_ns=None, basis="bound", assumes="", mean_step_ns=None)
        for p in prescribed
    )


def is_moved(prescription: Prescription) -> bool:
    """Return whether what takes the time is done all the same, elsewhere."""
    change = CHANGES.get(prescription.id)
    return change.is_moved if change is not None else any(a.is_moved for a in _entries(prescription))


def _entries(prescription: Prescription) -> Sequence[Advice]:
    return ADVICE.get(prescription.rule, {}).get(prescription.id, ())


def effect_of(t: Tables, finding: Finding, prescription: Prescription) -> Effect | None:
    """Return what a prescription does to the recorded steps, None where no graph shows it.

    That is its own model, where it has one, and otherwise the part of the finding's cause that it takes away.
    """
    if finding.share is not None:
        return None  # the recorded steps are the others
    change, program = CHANGES.get(prescription.id), t.program
    fitting = (a for a in _entries(prescription) if a.when is None or a.when(finding, program))
    described = change or next(fitting, None)
    model = described.effect if described is not None and t.device_id >= 0 else None
    effect = model(t, finding) if model is not None else None
    if effect is not None or finding.lost_ns <= 0:
        return effect
    least, most = (min(max(saved / finding.lost_ns, 0.0), 1.0) for saved in prescription.saves_ns)
    return effect_of_share(t, finding, META[finding.rule].cause, (least, most)) if most > 0 else None

"""The changes for what was found in one rank: each once, and those alone that are worth showing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.changes import group_of
from diagnose.changes.common.prescribe import compiles_model, is_worth_showing, prescribe, without_savings
from diagnose.model.diagnosis import Finding, Prescription
from diagnose.model.events import Note
from diagnose.pipeline.noting import noting
from diagnose.tables.program import Program

if TYPE_CHECKING:
    from diagnose.model.forecast import Waterfall

__all__ = ["one_compilation", "prescriptions_of", "worth_showing"]


def prescriptions_of(
    found: list[Finding], step_ns: float, program: Program, notes: list[Note]
) -> tuple[Prescription, ...]:
    """Collect the changes, those that save most first; one that several findings ask for is listed once.

    Of a change for steps that are long now and then the whole run shows what it saves; what the recorded steps hold of
    them is chance.
    """
    listed: dict[str, Prescription] = {}
    for finding in found:
        given: list[Prescription] = []
        with noting(finding.rule, notes):
            given = prescribe(finding, step_ns, program)
        for p in given:
            if p.id not in listed or _weight(p) > _weight(listed[p.id]):
                listed[p.id] = p
    return tuple(sorted(listed.values(), key=lambda p: -sum(p.saves_ns)))


def worth_showing(
    found: list[Finding], prescribed: tuple[Prescription, ...], steps_after: Waterfall | None, step_ns: float
) -> tuple[Prescription, ...]:
    """Leave out what saves little, alone and behind what the waterfall changes before it.

    So is a change for some steps only whose object another one changes for all: workers that go need not be kept.
    """
    by_rule = {f.rule: f for f in found}
    together = steps_after.forecasts[-1].ids if steps_after else ()
    shown = [p for p in prescribed if p.id in together or is_worth_showing(p, by_rule[p.rule], step_ns)]
    changed = {group_of(p.id) for p in shown if p.mean_step_ns is None}
    return tuple(p for p in shown if p.mean_step_ns is None or not group_of(p.id) or group_of(p.id) not in changed)


def one_compilation(
    shown: tuple[Prescription, ...], steps_after: Waterfall | None
) -> tuple[tuple[Prescription, ...], tuple[Prescription, ...]]:
    """Return the prescriptions with one at most that compiles the model, and for what the others were prescribed.

    They are ways of one edit, and one is chosen: that of the forecast, else what saves most. It stands in the place of
    the others for their findings, without a saving of its own there.
    """
    together = steps_after.forecasts[-1].ids if steps_after else ()
    compiling = [p for p in shown if compiles_model(p)]
    if len(compiling) < 2:
        return shown, ()
    kept = next((p for p in compiling if p.id in together), max(compiling, key=lambda p: sum(p.saves_ns)))
    others = [p for p in compiling if p is not kept and p.rule != kept.rule]
    instead = without_savings([replace(kept, rule=p.rule) for p in others])
    return tuple(p for p in shown if p is kept or p not in compiling), instead


def _weight(prescription: Prescription) -> tuple[bool, float]:
    return prescription.mean_step_ns is not None, sum(prescription.saves_ns)

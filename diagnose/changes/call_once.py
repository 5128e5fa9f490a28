"""Call once, before the loop, what walks the model's modules.

What it does
    Makes `model.state_dict()`, or a list of parameters or modules, before the loop. The loop uses the result.

What to watch
    The loop must not add, remove or replace modules and parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Proposal, identical
from diagnose.changes.common.statements import STATEMENTS, of_statements
from diagnose.model.locations import at_line, own_place
from diagnose.model.numerics import number

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    known, place = finding.facts.get("unchanging"), own_place(finding.where)
    if not isinstance(known, Mapping):
        return None
    title, part = f"Call {known['call']} once, before the loop", number(finding.facts, "not_computing")
    title += f" at {at_line(place)}" if place else ""
    return of_statements(known["edits"], title=title, least=0.1 * part, most=part)


CHANGE = Change(
    id="call-once",
    title="Call once, before the loop, what walks the model's modules",
    numerics=identical("if the loop's body does not add, remove or replace modules and parameters"),
    edit=STATEMENTS,
    proposal=_proposal,
)

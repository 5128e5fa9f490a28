"""Remove .contiguous() before operators that accept strided tensors.

What it does
    Changes `x.transpose(1, 2).contiguous() @ w` to `x.transpose(1, 2) @ w`. Products, attention and norms accept the
    view.

What to watch
    If a `view` follows, replace it by `reshape`. Otherwise the script raises an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, EditLoop, Proposal, rounding
from diagnose.model.locations import in_library

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    if finding.facts["is_conversion"] or "cast_to" in finding.facts or finding.facts.get("around_graphs"):
        return None
    return Proposal(
        least=0.1,
        needs="a following operator that accepts strides; `view` needs `reshape` or another order of dimensions",
    )


def _applies(_program: Program, finding: Finding) -> bool:
    return not in_library(finding.where)


CHANGE = Change(
    id="no-contiguous",
    title="Remove .contiguous() before operators that accept strided tensors",
    numerics=rounding("an operator may read a view in another order and round differently; compare the first losses"),
    edit=EditLoop("without_contiguous", "lines", ()),
    proposal=_proposal,
    applies=_applies,
)

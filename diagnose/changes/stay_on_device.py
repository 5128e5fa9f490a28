"""Keep shapes and branches independent of values on the device.

What it does
    Changes `x[mask].mean()` to `masked_mean(x, mask)`, and `if mask.any():` to `torch.where`. The CPU then does not
    wait for a value.

What to watch
    Masked elements are computed too; with many of them that may take longer than the wait. A trial rewrites sums, means
    and masked assignments. You edit other lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_shapes_and_branches, waits_for
from diagnose.changes.common.change import Change, EditLoop, Proposal, rounding
from diagnose.model.locations import at_line, own_place

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    place, waits = own_place(finding.where), waits_for(finding)
    title = "Avoid shapes that depend on values on the device"
    needs = "an upper bound of their number; a torch whose nonzero_static has a kernel for the device"
    if waits == "exchange":
        title = "Exchange a fixed number of rows, so that no rank reads sizes back"
        needs = "an upper bound of the rows for each rank; the rows that fill up are exchanged too"
    elif waits == "branch":
        title = "Keep the branch on the device: choose between results there"
        needs = "both sides of the branch cheap enough to compute"
    return Proposal(title=f"{title} ({at_line(place)})" if place else title, needs=needs, least=0.2)


CHANGE = Change(
    id="stay-on-device",
    title="Keep shapes and branches independent of values on the device",
    numerics=rounding("padding adds up in another order; compare the first results"),
    edit=EditLoop("with_masked_results", "lines", (), "from diagnose.kernels import indexing"),
    proposal=_proposal,
    applies=to_shapes_and_branches,
    remedy="diagnose.kernels.indexing",
)

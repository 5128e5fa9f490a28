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
    place = own_place(finding.where)
    at = f" ({at_line(place)})" if place else ""
    code = (place.code or "") if place else ""
    if waits_for(finding) == "exchange":
        return Proposal(
            title=f"Exchange a fixed number of rows, so that no rank reads sizes back{at}",
            before=code or "splits = counts.tolist()\ndist.all_to_all_single(out, x, received, splits)",
            after="from diagnose.kernels.indexing import compact\n\n"
            "parts = [compact(x, target == rank, capacity=capacity)[0] for rank in range(world_size)]\n"
            "out = x.new_empty(world_size * capacity, *x.shape[1:])\n"
            "dist.all_to_all_single(out, torch.cat(parts))   # equal splits; mask what does not count",
            least=0.2,
            needs="an upper bound of the rows for each rank; the rows that fill up are exchanged too",
        )
    if waits_for(finding) == "branch":
        return Proposal(
            title=f"Keep the branch on the device: choose between results there{at}",
            before=code or "if mask.any():\n    x = x * scale",
            after="x = torch.where(mask.any(), x * scale, x)   # both are computed, nothing is read back",
            least=0.2,
            needs="both sides of the branch cheap enough to compute",
        )
    return Proposal(
        title=f"Avoid shapes that depend on values on the device{at}",
        before=code or "mean = x[mask].mean()\nx[mask] = 0\nrows = x[keep]\nids = torch.nonzero(mask)",
        after="from diagnose.kernels.indexing import assign_where, compact, masked_mean\n\n"
        "mean = masked_mean(x, mask)                       # in place of x[mask].mean()\n"
        "x = assign_where(x, mask, 0.0)                    # in place of x[mask] = 0\n"
        "rows, count = compact(x, keep, capacity=len(x))   # in place of x[keep]: a fixed number of rows, filled up\n"
        "ids = torch.nonzero_static(mask, size=mask.numel(), fill_value=-1)   # where indices are",
        least=0.2,
        needs="an upper bound of their number; a torch whose nonzero_static has a kernel for the device",
    )


CHANGE = Change(
    id="stay-on-device",
    title="Keep shapes and branches independent of values on the device",
    numerics=rounding("padding adds up in another order; compare the first results"),
    edit=EditLoop("with_masked_results", "lines", (), "from diagnose.kernels import indexing"),
    proposal=_proposal,
    applies=to_shapes_and_branches,
    remedy="diagnose.kernels.indexing",
)

"""Write the slow line in a faster form that gives the same.

What it does
    Rewrites a slow line with the script's own names. Known forms: draws by weights, lists that are cut at their front
    or searched, rows of pandas, and arrays that grow by copies. Also files read and patterns made at each call, a sort
    for a few items, and tensors made of lists of arrays. If other code would change too, you edit the script.

What to watch
    Each form states what it needs, such as weights that stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Proposal, identical, other_training
from diagnose.changes.common.statements import STATEMENTS, of_statements
from diagnose.model.locations import Where, at_line
from diagnose.model.numerics import Numerics, number, redrawn, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

LARGE_BATCH = 1024  # where a batch's size is not known
_PROMISES: Mapping[str, Callable[[str], Numerics]] = {
    "identical": identical,
    "rounding": rounding,
    "redrawn": redrawn,
    "other": other_training,
}
NORMAL_95 = 1.96  # standard errors of a share, 95 %


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal | None:
    idiom = finding.facts.get("idiom")
    if not isinstance(idiom, Mapping) or finding.facts.get("restart_share"):
        return None
    of_line, around = float(idiom["share"]), float(idiom["share_around"])
    part = number(finding.facts, "order_share") if finding.facts.get("order_line") else 1.0
    batch_ns, size = number(finding.facts, "batch_ns"), number(finding.facts, "batch_size") or program.batch_size
    is_sure = not finding.facts.get("order_line") or part * batch_ns >= idiom["sure_from_ns"] * (size or LARGE_BATCH)
    numerics = _PROMISES[str(idiom["promise"])](str(idiom["condition"]))
    return of_statements(
        idiom["edits"],
        title=f"{idiom['title']} ({at_line(Where(idiom['file'], idiom['line']))})",
        needs=str(idiom["needs"]),
        numerics=numerics,
        least=float(idiom["least"]) * of_line * part if is_sure else 0.0,
        most=share_at_most(around, float(idiom["samples"])) * part,
    )


def share_at_most(share: float, samples: float) -> float:
    """Return the upper end of a share that so many samples show."""
    return min(share + NORMAL_95 * math.sqrt(share * (1 - share) / max(samples, 1.0)), 1.0)


CHANGE = Change(
    id="cheaper-line",
    title="Write the slow line in a faster form",
    numerics=identical(),
    edit=STATEMENTS,
    proposal=_proposal,
    is_within_share=True,
)

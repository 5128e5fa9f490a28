"""Keep the work of a step from growing with the run.

What it does
    Works on what the step draws or adds, and not on all that was stored before.

What to watch
    What reads the whole history on purpose, such as a statistic over all of it, needs a running total in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, own_place, to_kind
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_SAVED_SHARE = 0.7  # of what steps take longer than the first; what the place took there goes as well, or stays

_AFTER = """from collections import deque

history = torch.zeros(1000, 8)
used = history[torch.randint(len(history), (256,))]   # only what the step uses, by index: no copy of all that is stored
recent = deque(maxlen=1000)                           # or a history of bounded length"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    place = own_place(finding)
    at = f" at {at_line(place)}" if place else ""
    return Advice(
        title=f"Keep the work{at} from growing: use what is drawn or new, not all that is stored",
        before=(place.code or "") if place else "",
        after=_AFTER,
        least=MIN_SAVED_SHARE,
        needs="a step that does not use all of what is stored",
    )


_WHY = "what the step needs of what is stored only the script's author knows"
CHANGE = Change(
    id="bound-work",
    title="Keep the work of a step from growing with the run",
    numerics=identical("where the step uses the same values"),
    advice=_advice,
    applies=to_kind("growing"),
    patch=ByHand(_WHY),
    edit=ByHand(_WHY),
    without_remedy="a line of the script's own Python",
)

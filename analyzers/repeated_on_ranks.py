"""Every rank does the work of all ranks, and keeps its own part.

What it looks for
    A value that each rank computes as a whole. Each rank then reads a different part of it, and nothing else.

Why it costs
    With N ranks, each of them throws away all but 1/N of that work.

What to do
    Take the rank's part of the indices first, and compute only for these.

How sure
    High: the recorded data flow shows which part of a value is read. Needs `diagnose trace` of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration

if TYPE_CHECKING:
    from diagnose.ranks.comparison import Comparison

META = RuleMeta(
    id="repeated-on-ranks",
    kind="rank",
    order=6,
    changes=("cut-first",),
    needs=("all ranks", "data flow"),
)
ADVICE = (
    Advice(
        id="cut-first",
        title="Take the rank's part before the work{there}, not after it",
        numerics=identical("if each item is computed by itself, and random draws depend on the item"),
        after="""mine = batch[rank::world_size]   # the part first: of the indices, if the items are made from these
features = model(mine)           # in place of model(batch)[rank::world_size]
# a draw for each item: from a generator seeded with the item, so that the batch stays the same""",
        needs="work that treats each item by itself",
        least=0.7,
    ),
)


def find_in_all(c: Comparison) -> list[Finding]:
    """Name the work of which each rank keeps another part."""
    whole = c.whole
    if whole is None or whole.saved_ns < THRESHOLDS.naming_share * c.step_ns:
        return []
    num = len(c.ranks)
    return [
        Finding(
            rule=META.id,
            title="Every rank does the work of all ranks, and keeps its own part",
            lost_ns=whole.saved_ns,
            total_ns=int(whole.saved_ns * c.num_steps),
            evidence=(
                f"Each of {num} ranks takes {duration(whole.whole_ns)} a step for the whole, and reads 1/{num} of it: "
                "another part on each rank.",
            ),
            where=whole.where,
            confidence="high",
        )
    ]

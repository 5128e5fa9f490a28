"""One rank works while all others wait for it.

What it looks for
    Lines that run on one rank only, and as much waiting of every other rank at a collective. It counts all steps of the
    run, so that work of one step in many is seen too.

Why it costs
    Mining, evaluation, saving or logging on rank 0 leaves all other devices idle until the next collective.

What to do
    Split the work over the ranks and gather the results. Or run it in the background, if no rank needs its result at
    once.

How sure
    High. Needs `diagnose trace` of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.model.diagnosis import Finding
from diagnose.model.line_calls import SAVES, calls
from diagnose.model.rules import RuleMeta
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.ranks.comparison import Comparison

META = RuleMeta(
    id="lone-rank",
    kind="rank",
    order=5,
    changes=("save-in-background", "split-over-ranks"),
    needs=("all ranks", "steps of the whole run"),
)
ADVICE = (
    Advice(
        id="split-over-ranks",
        title="Split the work{there} over the ranks, and gather the results",
        numerics=identical("if each part is computed as the whole was"),
        after="""with torch.no_grad():
    mine = model(batch[rank::world_size])            # in place of model(batch) on one rank
parts = [torch.empty_like(mine) for _ in range(world_size)]
dist.all_gather(parts, mine)                         # parts of one size: pad the last one
whole = torch.stack(parts, 1).flatten(0, 1)          # in the order of the batch, on all ranks
# a mean or a count, as of an evaluation: all_reduce the sums in place of all_gather
# files and plots, which no rank waits for by itself: on a thread, with a copy of what they show""",
        needs="work that can be cut into parts",
        when=lambda f, _: not calls(f, SAVES),
        least=0.5,
    ),
)


def find_in_all(c: Comparison) -> list[Finding]:
    """Name the work that one rank does alone, and where the others wait for it."""
    lone = c.lone
    if lone is None or lone.waited_share < THRESHOLDS.naming_share:
        return []
    lost_ns, rank = lone.waited_share * c.step_ns, c.ranks[lone.rank].rank
    return [
        Finding(
            rule=META.id,
            title=f"Rank {rank} works while all others wait for it",
            lost_ns=lost_ns,
            total_ns=int(lost_ns * c.num_steps),
            evidence=(
                f"Lines that no other rank runs take {percent(lone.work_share, 0)} of rank {rank}'s time over all "
                f"steps; each other rank spends {percent(lone.waited_share, 0)} more of it at a collective.",
            ),
            where=(*lone.lines, *lone.waiting)[:4],
            confidence="high",
            facts={"late_rank": rank},
        )
    ]

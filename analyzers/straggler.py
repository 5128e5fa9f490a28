"""Ranks wait for one that comes late to the collectives.

What it looks for
    The same collectives in the traces of all ranks: whoever is inside for the shortest time came last, and what the
    others were inside for longer they waited. Waiting that no computation hides, of the rank in the middle, at least
    5 % of the step.

Why it costs
    A collective ends for all when the last rank has come. The step of every rank is as long as that of the slowest.

What to do
    Look at the late rank: its own findings name its bottleneck. Where another rank is late each time, share the
    work out evenly and let logging, checkpoints and the garbage collector run at the same step on all ranks.

How sure
    High for the waiting, which needs no common clock. Nothing is found where the ranks' collectives do not match, or
    the trace of one rank only is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyzers.common.locate import sampled_lines
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.skew import Skew

META = RuleMeta(
    id="straggler",
    kind="rank",
    order=10,
    changes=("even-out-ranks",),
    also=("balance-ranks", "local-sgd"),
)
MIN_SHARE = 0.05  # of the step
MAX_NAMED_RANKS = 8


def find(_t: Tables) -> list[Finding]:
    """Find nothing: one rank does not see what the others do."""
    return []


def find_in_all(ranks: Sequence[Tables], skew: Skew) -> list[Finding]:
    """Name the waiting for late ranks."""
    step_ns = max(t.steps.step_ns for t in ranks)
    if skew.lost_ns < MIN_SHARE * step_ns:
        return []
    is_one, late = skew.late is not None, skew.last_most
    share, number = float(skew.last[late]), ranks[late].trace.rank
    wait = f"the others wait {skew.lost_ns / 1e6:.2f} ms a step"
    waits = [f"rank {t.trace.rank} {ns / 1e6:.2f}" for t, ns in zip(ranks, skew.waits_ns.tolist(), strict=True)]
    more = f", and {len(waits) - MAX_NAMED_RANKS} more" if len(waits) > MAX_NAMED_RANKS else ""
    return [
        Finding(
            rule=META.id,
            title=f"Rank {number} comes late: {wait} for it" if is_one else "Ranks take turns in coming late",
            lost_ns=skew.lost_ns,
            count=skew.num_collectives,
            total_ns=int(skew.lost_ns * ranks[late].steps.num),
            median_ns=int(skew.lost_ns),
            evidence=(
                f"Of the waiting in {skew.num_collectives} collectives a step, {share:.0%} is for rank {number}.",
                f"Waiting that nothing hides, ms a step: {', '.join(waits[:MAX_NAMED_RANKS])}{more}.",
            ),
            where=_where(ranks, skew),
            confidence="high",
            facts={"late_rank": number if is_one else None, "is_exchange": False},
        )
    ]


def _where(ranks: Sequence[Tables], skew: Skew) -> tuple[Where, ...]:
    """Return the lines at which the rank that waits most was sampled; a GPU waits while its host is somewhere else."""
    most = int(skew.waits_ns.argmax())
    if ranks[most].device_id >= 0:
        return ()
    return tuple(where for where, _ in sampled_lines(ranks[most], skew.waiting[most], most=1))

"""Balance work across ranks and align their pauses.

What it does
    Gives every rank as many samples of like lengths, and lets pauses such as garbage collection and saving fall on the
    same step everywhere.

What to watch
    The cause on the late rank is named by its own findings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical, other_training

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

_PAUSES = """from diagnose.kernels.gc_schedule import scheduled_gc

with scheduled_gc() as collect:   # Python collects at another step on every rank; this does on all at the same
    ...
    collect.step()                # at the end of each step"""


_EVEN = """# the same number of samples, of like lengths, on every rank
sampler = DistributedSampler(dataset, shuffle=True)"""
_TAKEN_OVER = """# as many samples in all as now, on every rank the same number of like lengths: the others take over
# what this one has too many. A DistributedSampler shares a dataset out like that; sizes that the script
# computes from the rank become the same on all: num = total // world_size"""

_OTHER_SHARES = other_training("gradients are averaged over ranks, so that a sample counts more the fewer its rank has")

# links, what lies before the recording, and pauses on another rank each step have changes of their own
_NOT_OF_THE_WORK = frozenset({"slow-group", "late-begin", "turns"})
_SLOWER = frozenset(
    {"slower-device", "slower-host", "slower-rank", "no-core"}
)  # as much work, which takes longer there


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if finding.facts.get("kind") in _NOT_OF_THE_WORK or finding.facts.get("cause") in _SLOWER:
        return None
    cause, num = str(finding.facts.get("cause") or ""), finding.facts.get("num_ranks")
    if program.trains is not False and (cause == "more-work" or cause.startswith("compute-")):
        return Advice(
            title=f"Give rank {finding.facts.get('late_rank')} as much work as the others: samples, and their lengths",
            after=_TAKEN_OVER,
            numerics=_OTHER_SHARES,
            most=1 - 1 / num if isinstance(num, int) and num > 1 else 1.0,  # the others then have what it no longer has
            needs="what the script gives each rank: how many samples, of which lengths, by a branch on the rank",
        )
    needs = "the cause on the late rank, which its own findings name"
    if program.trains is False:
        after = f"# requests of like lengths, and as many of them, on every rank\n{_PAUSES}"
        return Advice(after=after, needs=needs)
    return Advice(
        before="if rank == 0 and step % 10 == 0:\n    save(model)",
        after=f"{_EVEN}\n{_PAUSES}",
        needs=needs,
    )


CHANGE = Change(
    id="even-out-ranks",
    title="Balance work across ranks; align periodic pauses",
    numerics=identical("where the samples stay the same"),
    patch=ByHand("how the work is shared among the ranks is the script's own"),
    edit=ByHand("how the work is shared among the ranks is the script's own"),
    advice=_advice,
    remedy="diagnose.kernels.gc_schedule",
)

"""Find out why everything takes longer on one rank: its clocks, its temperature, and what else runs there.

What it does
    Shows under load what holds a GPU's clocks down (power, heat, a limit that somebody set) and which other programs
    use it; and on the host which programs share the rank's cores, how fast these run and how many threads the rank
    starts itself.

What to watch
    Compare with a rank that is not late, at the same moment: clocks that all GPUs lower are no reason. A rank that
    stays slower for good can be given smaller batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

SLOWER: Final = frozenset(  # causes of a late rank: all takes longer
    {"slower-device", "slower-host", "slower-rank", "no-core"}
)

_DEVICE = """nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE,POWER   # under load: SM clock, and what slows it down
nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv   # another program on this GPU
nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER      # errors that this GPU corrects"""
_HOST = """top -b -n 1 -H | head -30              # other programs; threads of this rank beyond its cores
grep MHz /proc/cpuinfo                 # under load: cores that run slower than on other hosts
taskset -cp PID; numactl -s            # the cores that the rank may use: not those of another rank
echo $OMP_NUM_THREADS                  # cores of the host / ranks on it, at most"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    cause, late = finding.facts.get("cause"), finding.facts.get("late_rank")
    if finding.facts.get("kind") != "late" or cause not in SLOWER:
        return None
    hosts = cast("Sequence[str]", finding.facts.get("hosts", ()))
    looks = {"slower-device": (_DEVICE,), "slower-host": (_HOST,), "no-core": (_HOST,)}.get(
        str(cause), (_DEVICE, _HOST)
    )
    begin = f"# on {', '.join(hosts)}, where rank {late} runs, and where another one does\n" if hosts else ""
    return Advice(
        title=f"Find out what else runs on the cores of rank {late}"
        if cause == "no-core"
        else f"Find out why everything takes longer on rank {late}: its clocks, and what else runs there",
        after=begin + "\n".join(looks),
        least=0.0,
        needs="the job under way, or another load on the same rank",
    )


CHANGE = Change(
    id="check-slow-rank",
    title="Find out why everything takes longer on one rank: its clocks, and what else runs there",
    numerics=identical(),
    patch=ByHand("clocks and other programs are not part of a script"),
    edit=ByHand("clocks and other programs are not part of a script"),
    advice=_advice,
    without_remedy="a clock, a fan or a neighbour of the node",
)

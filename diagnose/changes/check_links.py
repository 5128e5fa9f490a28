"""Check the links of a group of ranks whose transfers are slow.

What it does
    Where one rank alone was recorded, compares it with the others first: a late rank looks like a slow link. Measures
    the same collective among these ranks alone and among others, and shows which links NCCL takes: a GPU whose
    NVLink is down, a port that trained at half its width, a network card on the other socket, sockets in place of
    InfiniBand.

What to watch
    Run it while the job does not run: its own traffic makes every link look slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MAX_NAMED_HOSTS = 4
MAX_DEVICES = 8  # of a host

_WITHIN = """nvidia-smi topo -m                     # NV# between these GPUs; PIX, NODE or SYS: no NVLink
nvidia-smi nvlink --status             # a link that is inactive, or slower than its neighbours
nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv   # under load"""
_BETWEEN = """nvidia-smi topo -m                     # the network card of a GPU: PIX or PXB; SYS crosses the socket
ibstat                                 # State: Active, and the rate that the card is sold for
ethtool eth0 | grep Speed              # without InfiniBand; eth0: the card that NCCL names below
cat /sys/class/infiniband/*/ports/*/counters/{symbol_error,link_downed}   # grows: a cable or a transceiver"""
_NCCL = """NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET   # in the job; NET/Socket: no InfiniBand was found"""


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if "bus_gbps" in finding.facts:
        return _of_one_rank(finding, program)
    if finding.facts.get("kind") != "slow-group":
        return None
    members = cast("Sequence[int]", finding.facts.get("members", ()))
    hosts = cast("Sequence[str]", finding.facts.get("hosts", ()))
    named = ",".join(hosts[:MAX_NAMED_HOSTS]) or "HOSTS"
    num = max(len(members), 2)
    test = "all_reduce_perf -b 8M -e 256M -f 2 -g"  # of nccl-tests
    measure = (
        f"{test} {num}   # of nccl-tests: with CUDA_VISIBLE_DEVICES of these ranks, then of others"
        if len(hosts) == 1
        else f"mpirun -H {named} -N {max(num // max(len(hosts), 1), 1)} {test} 1   # of nccl-tests; then on others"
    )
    looks = _WITHIN if len(hosts) == 1 else _BETWEEN
    where = f" on {named}" if hosts else ""
    return Advice(
        title=f"Check the links of the slow group{where}: measure it against another one",
        after=f"{measure}\n{looks}\n{_NCCL}",
        least=0.0,
        needs="a moment without the job on these nodes",
    )


def _of_one_rank(finding: Finding, program: Program) -> Advice:
    """Return how to tell a late rank from a slow link, which one rank's recording does not."""
    world, rate = finding.facts.get("world_size"), finding.facts["bus_gbps"]
    num = min(world, MAX_DEVICES) if isinstance(world, int) and world > 1 else 2
    record = f"torchrun --nproc-per-node gpu -m diagnose trace {script_of(program)}"
    return Advice(
        title=f"Find out why collectives move only {rate:.1f} GB/s: compare all ranks, then measure the links",
        after=f"{record}   # all ranks: the report names one that comes late\n"
        f"all_reduce_perf -b 8M -e 256M -f 2 -g {num}   # of nccl-tests or rccl-tests, without the job\n{_NCCL}",
        most=0.0,
        needs="the recordings of all ranks at the same steps",
    )


CHANGE = Change(
    id="check-links",
    title="Check the links of the slow group: measure it against another one",
    numerics=identical(),
    patch=ByHand("links are not part of a script"),
    edit=ByHand("links are not part of a script"),
    advice=_advice,
    without_remedy="a cable, a slot or a setting of the node",
)

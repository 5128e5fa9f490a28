"""Ranks wait for one that comes late to the collectives.

What it looks for
    The collectives that the ranks share, and each rank's own time: what of a step, up to its last collective, it does
    not spend in collectives. A rank is late where its own time exceeds that of its equals (ranks that exchange alike)
    by 1 % of the step or more, in seven of ten steps, and by five times what ranks and steps differ by anyway, or where
    steps by themselves or the time of hundreds of operators show it; or where two thirds of the waiting is for it in
    more steps than by chance, or 95 % of waiting that takes 5 % of the step. Ranks that are late in turns, a group
    whose links are slow, a rank that begins the window late, bubbles of a pipeline and an uneven all-to-all are named.

Why it costs
    A collective ends for all when the last rank has come. The step of every rank is as long as that of the slowest.

What to do
    The cause is what the late rank spends more time on than its equals do, and not its own largest cost; the line is
    where that difference is largest. Where everything is slower there, look at its clocks, its temperature and what
    else runs on it. Where ranks take turns, let logging, checkpoints and the garbage collector run at the same step on
    all ranks.

How sure
    High for the waiting, which needs no common clock; medium with fewer than five steps, low with one, and where the
    late rank lacked a core for half of that. Nothing is found where ranks share no collectives, or half a group lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnose.analyzers.common.advice import Advice, identical, in_data_parallel, other_training, rounding
from diagnose.model.diagnosis import Confidence, Facts, Finding, Where
from diagnose.model.rules import RuleMeta
from diagnose.ranks.usable import MAX_LISTED, in_order, listed
from diagnose.tables import Tables
from diagnose.text.numbers import duration, percent, plural

if TYPE_CHECKING:
    from diagnose.ranks.comparison import Comparison
    from diagnose.ranks.late_causes import Reason

META = RuleMeta(
    id="straggler",
    kind="rank",
    order=10,
    changes=("even-out-ranks", "check-slow-rank", "check-links", "align-pauses", "begin-together"),
    also=("balance-ranks", "local-sgd", "group-lengths"),
    needs=("all ranks",),
)
_SLOWER = ("slower-device", "slower-host", "slower-rank", "no-core")  # as much work, which takes longer there
_COLLECT = """from diagnose.kernels.gc_schedule import scheduled_gc

with scheduled_gc() as collect:   # gc.disable(), and one collection on all ranks at the same step
    for step, batch in enumerate(loader):
        ...
        collect.step()            # at the end of each step"""
_CORES = """# in each rank, before the loader is made; nvidia-smi topo -m has the cores next to its GPU
cores = sorted(os.sched_getaffinity(0))
share = len(cores) // local_world_size
os.sched_setaffinity(0, cores[local_rank * share : (local_rank + 1) * share])
torch.set_num_threads(max(share - num_workers, 1))
# or from outside: numactl --cpunodebind=0 --membind=0 …; under Slurm srun --cpu-bind=cores --cpus-per-task N"""


def _is_of_work(finding: Finding) -> bool:
    """Return whether the late rank has work of another kind or amount: not its links, its start, or slower parts."""
    kind, cause = finding.facts.get("kind"), finding.facts.get("cause")
    return kind not in ("slow-group", "late-begin", "turns") and cause not in _SLOWER


def _has_more(finding: Finding) -> bool:
    cause = str(finding.facts.get("cause") or "")
    return cause == "more-work" or cause.startswith("compute-")


ADVICE = (
    Advice(
        id="even-out-ranks",
        title="Give rank {late_rank} as much work as the others: samples, and their lengths",
        numerics=other_training(
            "gradients are averaged over ranks, so that a sample counts more the fewer its rank has"
        ),
        before="",
        after="""# as many samples in all as now, on every rank the same number of like lengths: the others take over
# what this one has too many. A DistributedSampler shares a dataset out like that; sizes that the script
# computes from the rank become the same on all: num = total // world_size""",
        needs="what the script gives each rank: how many samples, of which lengths, by a branch on the rank",
        when=lambda f, p: p.trains is not False and _is_of_work(f) and _has_more(f),
        of="others_share",  # which then have what this one no longer has
    ),
    Advice(
        id="even-out-ranks",
        title="Balance work across ranks; align periodic pauses",
        numerics=identical("where the samples stay the same"),
        before="if rank == 0 and step % 10 == 0:\n    save(model)",
        after="# the same number of samples, of like lengths, on every rank\n"
        f"sampler = DistributedSampler(dataset, shuffle=True)\n{_COLLECT}",
        needs="the cause on the late rank, which its own findings name",
        when=lambda f, _: _is_of_work(f),
        remedy="diagnose.kernels.gc_schedule",
    ),
    Advice(
        id="check-slow-rank",
        title="Find out why everything takes longer on rank {late_rank}: its clocks, and what else runs there",
        numerics=identical(),
        before="",
        after="""nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE,POWER   # under load: SM clock, and what slows it down
nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv   # another program on this GPU
nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER      # errors that this GPU corrects
top -b -n 1 -H | head -30              # other programs; threads of this rank beyond its cores
grep MHz /proc/cpuinfo                 # under load: cores that run slower than on other hosts
taskset -cp PID; numactl -s            # the cores that the rank may use: not those of another rank
echo $OMP_NUM_THREADS                  # cores of the host / ranks on it, at most""",
        needs="the job under way, or another load on the same rank",
        watch="Compare with a rank that is not late, at the same moment: clocks that all GPUs lower are no reason.",
        when=lambda f, _: f.facts.get("kind") == "late" and f.facts.get("cause") in _SLOWER,
    ),
    Advice(
        id="check-links",
        title="Check the links of the slow group: measure it against another one",
        numerics=identical(),
        before="",
        after="""all_reduce_perf -b 8M -e 256M -f 2 -g 2   # of nccl-tests: on these ranks, then others
nvidia-smi topo -m                     # NV# between GPUs of a host; the network card of a GPU: PIX or PXB, not SYS
nvidia-smi nvlink --status             # a link that is inactive, or slower than its neighbours
ibstat                                 # between hosts: State: Active, and the rate that the card is sold for
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET   # in the job; NET/Socket: no InfiniBand was found""",
        needs="a moment without the job on these nodes",
        watch="Run it while the job does not run: its own traffic makes every link look slow.",
        when=lambda f, _: f.facts.get("kind") == "slow-group",
    ),
    Advice(
        id="align-pauses",
        title="Align periodic pauses across ranks, and give each rank cores of its own",
        numerics=identical(),
        before="",
        after=f"{_COLLECT}\n\n{_CORES}",
        needs="pauses of the kind that the finding names",
        watch="Memory grows between two collections: leave as many steps between them as it allows.",
        when=lambda f, _: f.facts.get("kind") == "turns",
        of="turns_share",
        remedy="diagnose.kernels.gc_schedule",
    ),
    Advice(
        id="begin-together",
        title="Find what rank {begins_late_rank} does before its step, and do it on all ranks or outside the loop",
        numerics=identical(),
        before="if rank == {begins_late_rank}:\n    evaluate(model)   # or save, log: all others wait",
        after="""# first: diagnose trace --skip 50 --steps 20 train.py
# a wait that does not come again was the start of the run
began = time.perf_counter()
torch.distributed.barrier()                    # once, before the steps
print(rank, time.perf_counter() - began)       # the rank that waits for nobody is the late one: what did it do before?
for batch in loader: ...""",
        needs="a look at what lies before the recorded steps, which no recording of them shows",
        when=lambda f, _: f.facts.get("begins_late_rank") is not None,
        of="begin_share",
    ),
    Advice(
        id="balance-ranks",
        title="Give rank {late_rank} smaller batches, by measured speed",
        numerics=rounding("gradients equal the whole batch's to 1e-6, of samples that other ranks see"),
        before="",
        after="""from diagnose.kernels.distributed.uneven import Balance, LossWeights, UnevenBatches

sampler = UnevenBatches(len(dataset), batch_size * dist.get_world_size())   # batch_size: of one rank, as before
loader = DataLoader(dataset, batch_sampler=sampler)   # without DistributedSampler; workers and collate_fn as before
weights, balance = LossWeights(ddp), Balance(ddp, sampler, every=50)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        factor = weights.factor(len(y))   # before the forward; len(y): what the loss is a mean over
        (criterion(ddp(x), y) * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
        balance.after_step(len(y))""",
        needs="a rank whose device or host is slower for good",
        watch="The loss must be a mean over the rank's samples, or over the number that ``factor`` is given.",
        when=lambda f, p: f.facts.get("late_rank") is not None and in_data_parallel(f, p),
        remedy="diagnose.kernels.distributed.uneven",
    ),
)


MIN_STEP_SHARE = 0.01  # of the step
MIN_EXCHANGE_SHARE = 0.05  # of the step, waited in all-to-alls or between the stages of a pipeline
MIN_IMBALANCE = 1.2  # of the bytes of the mean rank
MIN_STEPS_HIGH, SURE_SIGMAS = 5, 10.0  # compared, for high confidence
_FROM_BEGIN = frozenset({"late-begin", "turns"})  # findings that name a late begin, where there is one
MAX_DIFFERENCES = 3
MIN_DIFFERENCE = 0.1  # of the lateness; smaller ones are not worth a word


def find(_t: Tables) -> list[Finding]:
    """Find nothing: one rank does not see what the others do."""
    return []


def find_in_all(c: Comparison) -> list[Finding]:
    """Name what makes ranks wait: a late rank, a slow group, ranks that take turns, a late begin."""
    if len(c.ranks) < 2 or not c.matches.num:
        return []
    found = [f for f in (_late(c), _slow_links(c), _bubbles(c), _uneven_exchange(c)) if f is not None]
    begin = _late_begin(c)
    turns = _turns(c, begin) if not found else None
    return [f for f in (*found, turns or begin) if f is not None and f.lost_ns >= MIN_STEP_SHARE * c.step_ns]


def _late(c: Comparison) -> Finding | None:
    lateness = c.lateness
    if not lateness.late:
        return None
    numbers = [c.ranks[i].rank for i in lateness.late]
    who = listed(numbers).capitalize()
    come, there = ("comes", "there") if len(numbers) == 1 else ("come", "on them")
    once = f" in {lateness.num_late} of {c.num_steps} steps" if lateness.num_late < c.num_steps else ""
    once = " in the one recorded step" if c.num_steps == 1 else once
    waits = f"the others wait {duration(c.saved_ns)} a step"
    waiting = _Waiting(
        title=f"{who} {come} late{once}: {waits}; {_because(c.reason, there)}",
        lost_ns=c.saved_ns,
        where=c.reason.where,
        evidence=(_shares(c, numbers), _compared(c.reason, who), *_clocks(c.reason), *_cores(c.reason)),
        confidence="low" if c.reason.cause == "no-core" else None,
        kind="late",
        late=numbers[0],
        facts={"hosts": _hosts(c, numbers)},
    )
    return _finding(c, waiting)


def _slow_links(c: Comparison) -> Finding | None:
    slow = c.slow_group
    if slow is None:
        return None
    rates = f": {slow.bus_gbps:.1f} GB/s against {slow.others_gbps:.1f}" if slow.bus_gbps else ""
    of = f" of group {slow.use}" if slow.use and slow.use != "undefined" else ""
    others = "the other group" if slow.num_others == 1 else f"the {slow.num_others} other groups"
    waiting = _Waiting(
        title=f"Slow links among {listed(slow.members)}: transfers take {slow.ratio:.1f} × as long as elsewhere",
        lost_ns=slow.more_ns,
        evidence=(
            f"Collectives{of} among {listed(slow.members)} transfer {duration(slow.more_ns)} a step longer than the "
            f"same in {others}{rates}.",
        ),
        kind="slow-group",
        facts={"members": list(slow.members), "hosts": _hosts(c, slow.members)},
    )
    return _finding(c, waiting)


def _hosts(c: Comparison, members: Sequence[int]) -> list[str]:
    """Return the machines that these ranks ran on, as far as they were recorded."""
    return sorted({p.host for p in c.ranks if p.rank in members and p.host})


def _bubbles(c: Comparison) -> Finding | None:
    """Name what the stages of a pipeline wait for each other's activations and gradients."""
    waited = sum(k.exposed_waiting_ns for k in c.collectives if k.purpose == "pipeline")
    if waited < MIN_EXCHANGE_SHARE * c.step_ns:
        return None
    waiting = _Waiting(
        title=f"Stages of the pipeline wait for each other: bubbles of {duration(waited)} a step",
        lost_ns=waited,
        evidence=(f"Sends and receives wait {duration(waited)} a step, mean of the ranks.",),
        kind="bubbles",
    )
    return _finding(c, waiting)


def _uneven_exchange(c: Comparison) -> Finding | None:
    """Name an all-to-all to which one rank contributes clearly more than the mean."""
    waited = sum(k.exposed_waiting_ns for k in c.collectives if k.name == "all_to_all")
    most = c.exchanged
    if most is None or most[1] < MIN_IMBALANCE or waited < MIN_EXCHANGE_SHARE * c.step_ns:
        return None
    rank, ratio = c.ranks[most[0]].rank, most[1]
    waiting = _Waiting(
        title=f"All-to-all is uneven: rank {rank} exchanges {ratio:.1f} × as much as the mean",
        lost_ns=waited,
        evidence=(
            f"Rank {rank} exchanges {ratio:.1f} times the bytes of the mean rank; all-to-alls wait "
            f"{duration(waited)} a step, mean of the ranks.",
        ),
        confidence="medium",  # who computes more before it comes late as well
        kind="uneven-exchange",
        late=rank,
        facts={"is_exchange": True},
    )
    return _finding(c, waiting)


def _late_begin(c: Comparison) -> Finding | None:
    late = c.lateness.begins_late
    if late is None:
        return None
    number = c.ranks[late].rank
    waited = c.waits.first.sum() / max(len(c.ranks) - 1, 1) / c.num_steps
    share = f"{percent(c.waits.first_share, 0)} of the waiting is in the first collective"
    waiting = _Waiting(
        title=f"{share}: rank {number} begins its step {duration(c.lateness.begins_late_ns)} late",
        lost_ns=float(waited),
        count=1,
        evidence=(
            f"{share} ({percent(_of_communication(c), 0)} of the time in communication that nothing hides), for rank "
            f"{number}: its first step begins {duration(c.lateness.begins_late_ns)} after the "
            "median of the others. Why lies before the recorded window.",
        ),
        confidence="medium" if c.num_steps == 1 else "low",  # what recurs, the steps behind the first one show
        kind="late-begin",
        late=number,
    )
    return _finding(c, waiting)


def _of_communication(c: Comparison) -> float:
    from diagnose.ranks.profile import COMMUNICATION

    spent = sum(int(p.spent[p.causes.index(COMMUNICATION)].sum()) for p in c.ranks if COMMUNICATION in p.causes)
    spent += sum(int(p.collectives.unlaunched.sum()) for p in c.ranks)
    return float(c.waits.first.sum()) / max(spent, 1)


def _turns(c: Comparison, begin: Finding | None) -> Finding | None:
    lateness = c.lateness
    if not lateness.in_turns:
        return None
    names = in_order([c.ranks[i].rank for i in lateness.taking_turns])
    cause = f"; {_because(c.reason, 'on whichever is late')}" if c.reason.cause else ""
    title = f"Ranks {names} take turns in coming late{cause}"
    lost_ns = lateness.saved_ns + (begin.lost_ns if begin else 0.0)
    begin_share = begin.lost_ns / lost_ns if begin and lost_ns else 0.0
    waiting = _Waiting(
        title=f"{begin.title}; otherwise ranks {names} take turns" if begin else title,
        lost_ns=lost_ns,
        own_ns=lateness.saved_ns,
        evidence=(
            *(begin.evidence[:1] if begin else ()),
            f"Of the {'other ' if begin else ''}waiting {_attributed(c)}.",
            *((_compared(c.reason, "Whichever is late"),) if c.reason.differences else ()),
        ),
        confidence="medium" if begin else None,
        kind="turns",
        facts={"begin_share": begin_share, "turns_share": 1 - begin_share},
    )
    return _finding(c, waiting)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What the reasons that ranks wait for differ in."""

    kind: str
    title: str
    lost_ns: float
    evidence: tuple[str, ...]
    late: int | None = None  # the rank
    own_ns: float | None = None  # of a step, of this reason alone; ``lost_ns`` where that is all
    count: int | None = None  # of the collectives unless given
    where: tuple[Where, ...] = ()
    confidence: Confidence | None = None  # as the number of compared steps has it unless given
    facts: Facts = field(default_factory=dict)


def _finding(c: Comparison, waiting: _Waiting) -> Finding:
    own_ns = waiting.lost_ns if waiting.own_ns is None else waiting.own_ns
    return Finding(
        rule=META.id,
        title=waiting.title,
        lost_ns=waiting.lost_ns,
        count=c.matches.num if waiting.count is None else waiting.count,
        total_ns=int(own_ns * c.num_steps),
        median_ns=int(own_ns),
        where=waiting.where,
        evidence=(*waiting.evidence, _waited(c)),
        confidence=waiting.confidence or _confidence(c),
        facts={**_facts(c, waiting.kind, waiting.late), **waiting.facts},
    )


def _because(reason: Reason, there: str) -> str:
    """Return the cause as a clause."""
    more, slower = duration(reason.more_ns), f"{reason.ratio:.2f} × as long {there}"
    known = {
        "slower-device": f"every kernel takes {slower}",
        "slower-host": f"everything on the host takes {slower}",
        "slower-rank": f"everything takes {slower}, kernels and host alike",
        "slower-kernel": f"the kernel {reason.kernel} takes {slower}",
        "more-work": f"{more} more work {there}"
        + (f", on inputs {reason.ratio:.2f} × as large" if reason.ratio > 1 else ""),
        "no-core": f"its thread had no core for {more} of each step more than theirs for as much work",
    }
    if reason.cause.startswith("compute-"):
        return f"the {reason.cause.removeprefix('compute-')} computes {more} longer {there}"
    other = f"{more} more {reason.cause} {there}" if reason.cause else "no recorded cause explains it"
    return known.get(reason.cause, other)


def _compared(reason: Reason, who: str) -> str:
    """Return the differences to the equals, the largest first."""
    least = MIN_DIFFERENCE * max((abs(ns) for ns in reason.differences.values()), default=0.0)
    kept = [(cause, ns) for cause, ns in reason.differences.items() if ns >= least and ns > 0][:MAX_DIFFERENCES]
    if not kept:
        return f"{who} recorded nothing that the others have less of: no recorded cause explains it."
    texts = ", ".join(f"{cause} {ns / 1e6:+.2f}" for cause, ns in kept)
    none = "" if reason.cause else "; none of it explains the waiting"
    return f"{who} against the median of its equals, ms a step: {texts}{none}."


def _clocks(reason: Reason) -> tuple[str, ...]:
    own, others = reason.clock_mhz
    return (f"Its SM clock is {own:,.0f} MHz, the others' {others:,.0f} MHz.",) if own else ()


def _cores(reason: Reason) -> tuple[str, ...]:
    """State that the late rank had no core: any of its lines may wait then."""
    own, others = reason.ready_shares
    text = (
        f"It was runnable but not scheduled for {percent(own, 0)} of the time, the others for {percent(others, 0)}: "
        "other programs or too many threads on its cores may be all that makes it late."
    )
    return (text,) if reason.cause == "no-core" else ()


def _shares(c: Comparison, numbers: list[int]) -> str:
    attributed = c.waits.attributed_ns
    share = float(attributed[list(c.lateness.late)].sum()) / max(float(attributed.sum()), 1.0)
    steps = "the one step" if c.num_steps == 1 else f"{c.num_steps} steps"
    return (
        f"Of the waiting in {plural(c.matches.num, 'collective')} of {steps}, {percent(share, 0)} is for "
        f"{listed(numbers)}, late by {duration(c.lateness.late_ns)}."
    )


def _attributed(c: Comparison) -> str:
    attributed = c.waits.attributed_ns / max(float(c.waits.attributed_ns.sum()), 1.0)
    named = [f"{percent(attributed[i], 0)} is for rank {c.ranks[i].rank}" for i in c.lateness.taking_turns[:MAX_LISTED]]
    return ", ".join(named)


def _waited(c: Comparison) -> str:
    waits = sorted(c.waits_ns.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"rank {rank} {ns / 1e6:.2f}" for rank, ns in sorted(waits[:MAX_LISTED]))
    more = f", and {len(waits) - MAX_LISTED} that wait less" if len(waits) > MAX_LISTED else ""
    return f"Waiting that nothing hides, ms a step: {shown}{more}."


def _confidence(c: Comparison) -> Confidence:
    if c.num_steps == 1:
        return "low"
    is_sure = c.num_steps >= MIN_STEPS_HIGH and (not c.lateness.late or c.lateness.sigmas >= SURE_SIGMAS)
    return "high" if is_sure else "medium"


def _facts(c: Comparison, kind: str, late: int | None) -> Facts:
    late_begin = c.lateness.begins_late
    return {
        "kind": kind,
        "late_rank": late,
        "begins_late_rank": c.ranks[late_begin].rank if kind in _FROM_BEGIN and late_begin is not None else None,
        "cause": c.reason.cause,
        "cause_ms": c.reason.more_ns / 1e6,
        "slower_by": c.reason.ratio,
        "slower_kernel": c.reason.kernel,
        "num_ranks": len(c.ranks),
        "others_share": 1 - 1 / len(c.ranks),
    }

"""Ranks wait for one that comes late to the collectives.

What it looks for
    A rank whose time outside collectives exceeds that of similar ranks by 1% of the step, in seven of ten steps. Also
    ranks that take turns, slow links and late starts.

Why it costs
    A collective ends when the last rank arrives, so all ranks are as slow as the slowest.

What to do
    Look at the reported line: the late rank spends more time there than the others. If everything is slower, check
    clocks, temperature and other processes. If ranks take turns, run logging, checkpoints and garbage collection at the
    same step on all ranks.

How sure
    High with five or more steps, low with one. Needs traces of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.analyzers.common.advice import Advice, identical, in_data_parallel, other_training, rounding
from diagnose.model.diagnosis import Confidence, Finding
from diagnose.model.rules import RuleMeta
from diagnose.ranks.usable import MAX_LISTED, in_order, listed
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, percent, plural

if TYPE_CHECKING:
    from diagnose.ranks.comparison import Comparison
    from diagnose.ranks.late_causes import Reason
    from diagnose.ranks.sizes import UnevenSizes

META = RuleMeta(
    id="straggler",
    kind="rank",
    order=10,
    changes=(
        "draw-alike",
        "even-batches",
        "even-out-ranks",
        "check-slow-rank",
        "check-links",
        "align-pauses",
        "begin-together",
    ),
    also=("balance-ranks", "local-sgd", "group-lengths"),
    needs=("all ranks",),
)
_SLOWER = ("slower-device", "slower-host", "slower-rank", "no-core")  # as much work, which takes longer there
_ONE_STEP_DOUBT = "one recorded step does not show whether the rank is late in every step"
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
    is_uneven = kind in ("slow-group", "late-begin", "turns") or finding.facts.get("sizes")
    return not is_uneven and cause not in _SLOWER


ADVICE = (
    Advice(
        id="draw-alike",
        title="Draw the size{there} alike on all ranks, from a generator with one seed",
        numerics=identical("of each rank's distribution; other random draws are not touched"),
        after="""import random

sizes = random.Random(0)               # one seed on all ranks, and no other draws
size = sizes.choice([96, 112, 128])    # in each step: all ranks draw the same one
# draws that all cost the same (flips, noise) keep the generator of their rank""",
        needs="sizes that may be the same on all ranks in a step",
        when=lambda f, _: f.facts.get("sizes") == "drawn",
    ),
    Advice(
        id="even-batches",
        title="Give all ranks batches of like sizes in a step",
        numerics=other_training("which samples are in a batch together changes"),
        before="",
        after="""sizes = [len(dataset[i]) for i in range(len(dataset))]   # once
# one order on all ranks, sorted by size within chunks of some hundred batches
order = sorted(range(len(dataset)), key=sizes.__getitem__)
own = order[rank::world_size]    # neighbours in the order are of like sizes: one for each rank""",
        needs="sizes that are known before loading",
        when=lambda f, p: f.facts.get("sizes") == "batches" and p.trains is not False,
        most=0.9,
    ),
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
        needs="what the script gives each rank: number and lengths of samples, branches on the rank",
        when=lambda f, p: (
            p.trains is not False
            and _is_of_work(f)
            and str(f.facts.get("cause") or "").startswith(("more-work", "compute-"))
        ),
        of="others_share",  # which then have what this one no longer has
    ),
    Advice(
        id="even-out-ranks",
        title="Balance work across ranks; align periodic pauses",
        numerics=identical("if the samples stay the same"),
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
        watch="Compare with a rank that is not late at the same moment: it may have lower clocks too.",
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
        title="Align periodic pauses across ranks, and give each rank its own cores",
        numerics=identical(),
        before="",
        after=f"{_COLLECT}\n\n{_CORES}",
        needs="pauses of the kind that the finding names",
        watch="Memory grows between two collections: leave as many steps between them as it allows.",
        when=lambda f, _: f.facts.get("kind") == "turns" and not f.facts.get("sizes"),
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
print(rank, time.perf_counter() - began)       # the rank that does not wait is the late one: what did it do before?
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


MIN_EXCHANGE_SHARE = 0.05  # of the step, waited in all-to-alls or between the stages of a pipeline


def find_in_all(c: Comparison) -> list[Finding]:
    """Name what makes ranks wait: a late rank, a slow group, ranks that take turns, a late begin."""
    if len(c.ranks) < 2 or not c.matches.num:
        return []
    found = [*_late(c), *_slow_links(c), *_bubbles(c), *_uneven_exchange(c)]
    begin = _late_begin(c)
    found = found + begin if found else _turns(c, begin) or begin
    found = [_of_sizes(f, c.uneven) if c.uneven is not None else f for f in found]
    return [f for f in found if f.lost_ns >= THRESHOLDS.naming_share * c.step_ns]


def _finding(
    c: Comparison,
    kind: str,
    title: str,
    lost_ns: float,
    *evidence: str,
    confidence: Confidence | None = None,
    **facts: object,
) -> Finding:
    """Return a finding of waiting; the confidence is that of the number of compared steps unless given."""
    begin = c.lateness.begins_late
    is_sure = c.num_steps >= 5 and (not c.lateness.late or c.lateness.sigmas >= 10)
    usual: Confidence = "low" if c.num_steps == 1 else "high" if is_sure else "medium"
    waits = sorted(c.waits_ns.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"rank {rank} {ns / 1e6:.2f}" for rank, ns in sorted(waits[:MAX_LISTED]))
    more = f", and {len(waits) - MAX_LISTED} that wait less" if len(waits) > MAX_LISTED else ""
    return Finding(
        rule=META.id,
        title=title,
        lost_ns=lost_ns,
        count=c.matches.num,
        total_ns=int(lost_ns * c.num_steps),
        median_ns=int(lost_ns),
        evidence=(*evidence, f"Waiting that nothing hides, ms per step: {shown}{more}."),
        confidence=confidence or usual,
        doubt="" if confidence or usual != "low" else _ONE_STEP_DOUBT,
        facts={
            "kind": kind,
            "late_rank": None,
            "begins_late_rank": c.ranks[begin].rank if begin is not None and kind in ("late-begin", "turns") else None,
            "cause": c.reason.cause,
            "cause_ms": c.reason.more_ns / 1e6,
            "others_share": 1 - 1 / len(c.ranks),
            **facts,
        },
    )


def _late(c: Comparison) -> list[Finding]:
    lateness, reason = c.lateness, c.reason
    if not lateness.late:
        return []
    numbers = [c.ranks[i].rank for i in lateness.late]
    who = listed(numbers).capitalize()
    come, there = ("comes", "there") if len(numbers) == 1 else ("come", "on them")
    once = f" in {lateness.num_late} of {c.num_steps} steps" if lateness.num_late < c.num_steps else ""
    once, steps = (" in the one recorded step", "the one step") if c.num_steps == 1 else (once, f"{c.num_steps} steps")
    attributed = c.waits.attributed_ns
    share = float(attributed[list(lateness.late)].sum()) / max(float(attributed.sum()), 1.0)
    (own_mhz, others_mhz), (own, others) = reason.clock_mhz, reason.ready_shares
    no_core = (
        f"It was runnable but not scheduled for {percent(own, 0)} of the time, the others for {percent(others, 0)}: "
        "other programs or too many threads on its cores may be all that makes it late."
    )
    found = _finding(
        c,
        "late",
        f"{who} {come} late{once}: the others wait {duration(c.saved_ns)} a step; {_because(reason, there)}",
        c.saved_ns,
        f"Of the waiting in {plural(c.matches.num, 'collective')} of {steps}, {percent(share, 0)} is for "
        f"{listed(numbers)}, late by {duration(lateness.late_ns)}.",
        _compared(reason, who),
        *([f"Its SM clock is {own_mhz:,.0f} MHz, the others' {others_mhz:,.0f} MHz."] if own_mhz else []),
        *([no_core] if reason.cause == "no-core" else []),
        late_rank=numbers[0],
        confidence="low" if reason.cause == "no-core" else None,
    )
    doubt = "other programs on its cores may be all that makes it late" if reason.cause == "no-core" else found.doubt
    return [replace(found, where=reason.where, doubt=doubt)]


def _of_sizes(finding: Finding, uneven: UnevenSizes) -> Finding:
    """Return a finding of late ranks with the sizes that make them late; another finding as it is."""
    if finding.facts["kind"] not in ("late", "turns"):
        return finding
    title = "Batches differ in size from rank to rank: all wait for the largest"
    if uneven.is_drawn:
        title = "Each rank draws its own sizes: all wait for the largest"
    larger = f"Whichever rank has most computes on {percent(uneven.share, 0)} more elements than the others."
    return replace(
        finding,
        title=title,
        evidence=(larger, finding.title + ".", *finding.evidence),
        where=uneven.where,
        facts={**finding.facts, "sizes": "drawn" if uneven.is_drawn else "batches"},
    )


def _slow_links(c: Comparison) -> list[Finding]:
    slow = c.slow_group
    if slow is None:
        return []
    who, more = listed(slow.members), duration(slow.more_ns)
    rates = f": {slow.bus_gbps:.1f} GB/s against {slow.others_gbps:.1f}" if slow.bus_gbps else ""
    of = f" of group {slow.use}" if slow.use and slow.use != "undefined" else ""
    others = "the other group" if slow.num_others == 1 else f"the {slow.num_others} other groups"
    return [
        _finding(
            c,
            "slow-group",
            f"Slow links among {who}: transfers take {slow.ratio:.1f} × as long as elsewhere",
            slow.more_ns,
            f"Collectives{of} among {who} transfer {more} a step longer than the same in {others}{rates}.",
            members=list(slow.members),
        )
    ]


def _bubbles(c: Comparison) -> list[Finding]:
    """Name what the stages of a pipeline wait for each other's activations and gradients."""
    waited = sum(k.exposed_waiting_ns for k in c.collectives if k.purpose == "pipeline")
    if waited < MIN_EXCHANGE_SHARE * c.step_ns:
        return []
    title = f"Stages of the pipeline wait for each other: bubbles of {duration(waited)} a step"
    text = f"Sends and receives wait {duration(waited)} a step, mean of the ranks."
    return [_finding(c, "bubbles", title, waited, text)]


def _uneven_exchange(c: Comparison) -> list[Finding]:
    """Name an all-to-all to which one rank contributes a fifth more than the mean; it may compute more as well."""
    waited = sum(k.exposed_waiting_ns for k in c.collectives if k.name == "all_to_all")
    most, ratio = c.exchanged or (0, 0.0)
    if ratio < 1.2 or waited < MIN_EXCHANGE_SHARE * c.step_ns:
        return []
    rank = c.ranks[most].rank
    text = (
        f"Rank {rank} exchanges {ratio:.1f} times the bytes of the mean rank; all-to-alls wait {duration(waited)} a "
        "step, mean of the ranks."
    )
    title = f"All-to-all is uneven: rank {rank} exchanges {ratio:.1f} × as much as the mean"
    return [_finding(c, "uneven-exchange", title, waited, text, confidence="medium", late_rank=rank, is_exchange=True)]


def _late_begin(c: Comparison) -> list[Finding]:
    from diagnose.ranks.profile import COMMUNICATION

    late = c.lateness.begins_late
    if late is None:
        return []
    number, first = c.ranks[late].rank, float(c.waits.first.sum())
    by, share = duration(c.lateness.begins_late_ns), percent(c.waits.first_share, 0)
    spent = sum(int(p.spent[p.causes.index(COMMUNICATION)].sum()) for p in c.ranks if COMMUNICATION in p.causes)
    spent += sum(int(p.collectives.unlaunched.sum()) for p in c.ranks)
    found = _finding(
        c,
        "late-begin",
        f"{share} of the waiting is in the first collective: rank {number} begins its step {by} late",
        first / max(len(c.ranks) - 1, 1) / c.num_steps,
        f"{share} of the waiting is in the first collective ({percent(first / max(spent, 1), 0)} of the time in "
        f"communication that nothing hides), for rank {number}: its first step begins {by} after the median of the "
        "others. Why lies before the recorded window.",
        late_rank=number,
        confidence="medium" if c.num_steps == 1 else "low",  # what recurs, the steps behind the first one show
    )
    doubt = "the steps after the first one do not have it" if c.num_steps > 1 else ""
    return [replace(found, count=1, doubt=doubt)]


def _turns(c: Comparison, begin: Sequence[Finding]) -> list[Finding]:
    """Name ranks that are late in turns, with a late begin that adds to what they cost, if there is one."""
    turning = c.lateness.taking_turns
    if not c.lateness.in_turns:
        return []
    names = in_order([c.ranks[i].rank for i in turning])
    cause = f"; {_because(c.reason, 'on whichever is late')}" if c.reason.cause else ""
    attributed = c.waits.attributed_ns / max(float(c.waits.attributed_ns.sum()), 1.0)
    each = ", ".join(f"{percent(attributed[i], 0)} is for rank {c.ranks[i].rank}" for i in turning[:MAX_LISTED])
    compared = [_compared(c.reason, "Whichever is late")] if c.reason.differences else []
    own_ns = c.lateness.saved_ns
    found = _finding(
        c, "turns", f"Ranks {names} take turns in coming late{cause}", own_ns, f"Of the waiting {each}.", *compared
    )
    if not begin:
        return [replace(found, facts={**found.facts, "begin_share": 0.0, "turns_share": 1.0})]
    lost_ns = own_ns + begin[0].lost_ns
    begin_share = begin[0].lost_ns / max(lost_ns, 1.0)
    return [
        replace(
            found,
            title=f"{begin[0].title}; otherwise ranks {names} take turns",
            lost_ns=lost_ns,
            evidence=(begin[0].evidence[0], f"Of the other waiting {each}.", *found.evidence[1:]),
            confidence="medium",
            facts={**found.facts, "begin_share": begin_share, "turns_share": 1 - begin_share},
        )
    ]


def _because(reason: Reason, there: str) -> str:
    """Return the cause as a clause."""
    more, slower = duration(reason.more_ns), f"{reason.ratio:.2f} × as long {there}"
    inputs = f", on inputs {reason.ratio:.2f} × as large" if reason.ratio > 1 else ""
    known = {
        "": "no recorded cause explains it",
        "slower-device": f"every kernel takes {slower}",
        "slower-host": f"everything on the host takes {slower}",
        "slower-rank": f"everything takes {slower}, kernels and host alike",
        "slower-kernel": f"the kernel {reason.kernel} takes {slower}",
        "more-work": f"{more} more work {there}{inputs}",
        "no-core": f"its thread had no core for {more} of each step more than theirs for as much work",
    }
    kind, _, phase = reason.cause.partition("-")
    if kind == "compute":
        return f"the {phase} computes {more} longer {there}"
    return known.get(reason.cause, f"{more} more {reason.cause} {there}")


def _compared(reason: Reason, who: str) -> str:
    """Return the differences to the equals, the largest first; a tenth of the largest is not worth a word."""
    least = max((abs(ns) for ns in reason.differences.values()), default=0.0) / 10
    texts = [f"{cause} {ns / 1e6:+.2f}" for cause, ns in reason.differences.items() if ns >= least and ns > 0][:3]
    if not texts:
        return f"{who} recorded nothing that the others have less of: no recorded cause explains it."
    none = "" if reason.cause else "; none of it explains the waiting"
    return f"{who} against the median of its equals, ms per step: {', '.join(texts)}{none}."

"""Collectives are not overlapped with computation.

What it looks for
    Time in which the GPU runs a collective and no other kernel. Also idle time of at most 50 µs after a collective on
    another stream.

Why it costs
    The step gets longer. Causes: one large bucket after the backward, many tiny collectives, or a late rank.

What to do
    Use smaller buckets that start during the backward, 16-bit gradients, or gradient accumulation. If one rank is late,
    look for the cause on that rank.

How sure
    High for the time. Only traces of all ranks can separate transfer from waiting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, of_whole
from diagnose.analyzers.common.locate import enclosing_operators, locate
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, covered, intersect, subtract, total, union
from diagnose.model.records import as_facts
from diagnose.model.rules import Legend, RuleMeta
from diagnose.ranks.collectives import BUS_FACTORS, collectives_of, element_bytes
from diagnose.tables import Tables
from diagnose.tables.collectives import exposed_broadcasts, exposed_small
from diagnose.tables.lost import only_collectives
from diagnose.tables.names import EXPERT_EXCHANGE, HOST_BACKEND, REDUCTION, Pattern, matching
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="exposed-communication",
    kind="idle",
    order=150,
    host_order=60,
    legend=Legend(
        "waiting for a collective",
        heading="Communication-bound",
        meaning="collectives take longer than the computation that could hide them",
    ),
    changes=("overlap-exchange", "overlap-gradients", "compress-gradients", "bucket-gradients", "check-links"),
    computes=False,
    cause="collective",
    also=(
        "tune-buckets",
        "no-unused-search",
        "hierarchical-exchange",
        "accumulate-gradients",
        "low-rank-gradients",
        "eight-bit-gradients",
        "top-k-gradients",
        "one-bit-gradients",
        "local-sgd",
    ),
    awaits_ranks=True,
)
ADVICE = (
    Advice(
        id="overlap-exchange",
        title="Start the collective with async_op=True and compute before waiting for it",
        numerics=identical(),
        before="dist.all_to_all_single(out, mine)\ndense = bottom(x)",
        after="""work = dist.all_to_all_single(out, mine, async_op=True)
dense = bottom(x)            # does not need the exchanged rows
work.wait()                  # queues a wait on the device, the host goes on""",
        needs="work that does not depend on the exchange; and ranks that arrive at it together",
        when=lambda f, _: f.facts.get("is_exchange"),
        least=0.1,
        most=0.8,
    ),
    Advice(
        id="check-links",
        title="Find out why collectives move only {bus_gbps:.1f} GB/s: compare all ranks, then measure the links",
        numerics=identical(),
        before="",
        after="""torchrun --nproc-per-node gpu -m diagnose trace {script}   # all ranks: the report names a late one
all_reduce_perf -b 8M -e 256M -f 2 -g {ranks}   # of nccl-tests or rccl-tests, without the job
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET   # in the job; NET/Socket: no InfiniBand was found""",
        needs="the recordings of all ranks at the same steps",
        when=lambda f, _: "bus_gbps" in f.facts,
        most=0.0,
    ),
)


_EXCHANGE = re.compile(r"(?i)SendRecv|all_?to_?all")
_GATHER = re.compile(r"(?i)all_?gather")
_REDUCES = re.compile(r"(?i)all_?reduce|reduce_?scatter|broadcast")
_SHARDED = re.compile(r"FSDP|FullyShardedDataParallel")
_CALL = r"c10d|^record_param_comms|^nccl:|^rccl:"  # operators that are nothing but the collective
TITLE = "Collectives are not hidden under computation"


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle of queued work that waited for a collective on another stream: it has ended where the gap begins."""
    gaps, tasks = t.gaps, t.tasks
    if not len(tasks.start):
        return EMPTY
    return intersect(left, gaps.device_part(gaps.stream_waits() & tasks.is_collective[gaps.before]))


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, the time in which a collective runs and the training thread runs no operator."""
    collectives = t.covering(matching(t.trace, (Kind.ANNOTATION, Kind.OP), HOST_BACKEND))
    return intersect(left, subtract(collectives, t.in_ops))


def find(t: Tables) -> list[Finding]:
    """Name collectives that nothing hides."""
    if t.device_id < 0:
        return _find_on_host(t)
    if only_collectives(t):  # what could hide them is not in the file
        return []
    others = union(exposed_broadcasts(t), exposed_small(t))  # those have rules of their own
    exposed = total(subtract(t.occupancy.exposed_communication, others))
    idle = idle_finding(t, IdleRule(META.id, TITLE))
    lost_ns = exposed / t.steps.num + sum(each.lost_ns for each in idle)
    if lost_ns <= 0:
        return []
    waits_ns = min(int(collectives_of(t).outlying().sum()) / t.steps.num, lost_ns)
    title = "Collectives wait for other ranks" if 2 * waits_ns > lost_ns else TITLE
    mine = t.tasks.is_collective.copy()
    mine[t.small_collectives] = False
    length = (t.tasks.end - t.tasks.start)[mine]
    launched = np.flatnonzero(t.tasks.is_collective & (t.tasks.launch >= 0))
    shares = covered(t.occupancy.exposed_communication, t.tasks.start[launched], t.tasks.end[launched])
    most_exposed = launched[np.argsort(-shares, kind="stable")[:20]]
    median_ns = float(np.median(length)) if len(length) else 0.0
    base = idle[0] if idle else Finding(META.id, TITLE, lost_ns)
    text = (
        f"Of this, {duration(waits_ns)} is beyond what collectives of the same kind with as many bytes or more take: "
        "waiting for other ranks, which no change of the exchange removes. The recordings of all ranks show for "
        "which."
    )
    launches = t.tasks.launch[most_exposed]
    threads, times, places = t.trace.events.thread[launches], t.trace.events.start[launches], list[Where]()
    for where, thread, time in zip(locate(t, threads, times), threads.tolist(), times, strict=True):
        # The outermost operator that is nothing but the collective.
        around = enclosing_operators(t, thread, np.array([time]))[0].split(" > ")
        op = next((name for name in around if re.search(_CALL, name)), where.op)
        places.append(replace(where, op=op, stack=()))
    bus_gbps, rate = _slow_rate(t)
    named = ", ".join(dict.fromkeys(filter(None, (_called(t, row) for row in t.tasks.row[most_exposed].tolist()))))
    return [
        replace(
            base,
            title=title,
            lost_ns=lost_ns,
            count=max(base.count, len(length)),
            total_ns=exposed + base.total_ns,
            median_ns=int(median_ns),
            evidence=(
                f"{len(length) / t.steps.num:.1f} collectives a step, median {median_ns / 1e6:.3f} ms; "
                f"{percent(exposed / max(int(length.sum()), 1), 0)} of their time is exposed: "
                f"{duration(exposed / t.steps.num)} {of_whole(t)}.",
                *([text] if waits_ns else []),
                *rate,
                *([f"The most exposed: {named}."] if named else []),
                *base.evidence,
            ),
            where=tuple(dict.fromkeys(places))[:3] or base.where,
            facts={
                "is_exchange": _is_exchange(t),
                "world_size": t.trace.world_size,
                "num_devices": len(t.trace.devices),
                **_ddp_facts(t),
                **({"bus_gbps": round(bus_gbps, 3)} if rate else {}),
                **({"awaits_ranks": waits_ns / lost_ns} if waits_ns else {}),
            },
        )
    ]


def _find_on_host(t: Tables) -> list[Finding]:
    rows = t.in_window(matching(t.trace, (Kind.ANNOTATION, Kind.OP), HOST_BACKEND))
    text = f"{len(rows) / t.steps.num:.1f} collectives of a host backend a step."
    facts, flags = _ddp_facts(t), t.capture.known.flags
    if flags.cores and flags.num_threads:
        facts["free_cores"] = max(flags.cores - flags.num_threads, 0)
        if not facts["free_cores"]:
            text += (
                " The ranks of this machine compute on all of its cores: collectives that overlap with computation, "
                "and casts of gradients, slow it down."
            )
    is_sharded = len(matching(t.trace, (Kind.ANNOTATION,), _SHARDED)) > 0
    if t.capture.info is not None and not facts["ddp"] and not is_sharded:  # the capture would have seen a DDP made
        facts["reductions_by_hand"] = sum(REDUCTION.search(t.name(row)) is not None for row in rows.tolist()) / (
            t.steps.num
        )
    return idle_finding(t, IdleRule(META.id, TITLE, probe="middle", evidence=[text], facts=facts))


def _slow_rate(t: Tables) -> tuple[float, list[str]]:
    """Return the bus bandwidth of the large collectives together, and what is said of it where it is too low.

    It is counted as NCCL's tests do. One rank's record does not show what others send in an all-to-all, which does not
    count.
    """
    found = collectives_of(t)
    groups = [found.groups[kind.group] for kind in found.kinds]
    num = np.array([len(group.members) or group.size for group in groups], np.float64)
    size = np.array([max(kind.num_bytes, kind.num_bytes_out) for kind in found.kinds], np.int64)
    factors = {**BUS_FACTORS, "all_to_all": 0.0}
    factor = np.array([factors.get(kind.name, 0.0) for kind in found.kinds])
    moved = size * factor * (num - 1) / np.maximum(num, 1)
    rows, length = found.collectives.kind, found.collectives.length
    kept = ((factor > 0) & (num > 1) & (size >= 1 << 20))[rows] & (length > 0)
    rows, length = rows[kept], length[kept]
    bus_gbps = float(moved[rows].sum() / max(length.sum(), 1))
    # PCIe 3.0 with 16 lanes carries 10 GB/s between two GPUs, xGMI and NVLink 25 to 450, 25 Gbit/s between hosts 3.
    if not len(rows) or bus_gbps >= 5.0:
        return bus_gbps, []
    most = np.lexsort((length, size[rows]))[-1]
    name = found.kinds[rows[most]].name
    text = (
        f"Collectives of 1 MB and more move {bus_gbps:.1f} GB/s (bus bandwidth), such as {name} of "
        f"{size[rows[most]] / 1e6:.1f} MB in {duration(float(length[most]))}; PCIe 3.0 with 16 lanes carries 10. "
        "Either this rank waits for a later one, or the bytes go through host memory or a slow network."
    )
    return bus_gbps, [text]


def _called(t: Tables, row: int) -> str:
    """Return what the file calls a collective and what calls it, "" where it does not hold that."""
    detail = int(t.trace.events.detail[row])
    name, bar, _ = t.trace.names[detail].partition("|") if detail >= 0 else ("", "", "")
    return name if bar else ""


def _is_exchange(t: Tables) -> bool:
    """Return whether most of the collective time exchanges data that steps compute with, rather than gradients.

    Those are all-to-alls, and all-gathers but for those of sharded parameters. The names of the kernel and of its
    collective decide, of the 200 longest; newer kernels are all called Generic: then the operators around the launch.
    """
    mine = np.flatnonzero(t.tasks.is_collective)
    length = (t.tasks.end - t.tasks.start)[mine]
    longest = np.argsort(-length, kind="stable")[:200]
    length, rows, launches = length[longest], t.tasks.row[mine[longest]], t.tasks.launch[mine[longest]]
    texts = [f"{t.name(row)} {_called(t, row)}" for row in rows.tolist()]

    def called(pattern: Pattern, those: Iterable[str] = texts) -> Mask:
        return np.array([pattern.search(text) is not None for text in those], bool)

    exchanges = called(_EXCHANGE) | called(EXPERT_EXCHANGE)
    gathers = ~exchanges & called(_GATHER)
    unnamed, events = ~exchanges & ~gathers & ~called(_REDUCES), t.trace.events
    for thread in t.threads:
        own = np.flatnonzero((launches >= 0) & (events.thread[launches] == thread))
        around = enclosing_operators(t, thread, events.start[launches[own]])
        exchanges[own] |= unnamed[own] & called(_EXCHANGE, around)
        gathers[own] &= ~called(_SHARDED, around)
    return bool(length[exchanges | gathers].sum() > length.sum() / 2)


def _ddp_facts(t: Tables) -> dict[str, object]:
    """Return the arguments of DistributedDataParallel, where the capture has seen it being made, and what it reduces.

    These are bytes of each step, and those of them in elements of more than 16 bits.
    """
    known, found = t.capture.known, collectives_of(t)
    counts = np.bincount(found.collectives.kind, minlength=len(found.kinds)).tolist()
    reduced = {
        kind: count * kind.num_bytes / t.steps.num
        for kind, count in zip(found.kinds, counts, strict=True)
        if kind.name in ("all_reduce", "reduce_scatter") and kind.num_bytes > 0
    }
    wide = sum(num for kind, num in reduced.items() if element_bytes(kind.dtype) > 2)
    return {
        "ddp": as_facts(known.flags.ddp),
        "has_device": t.device_id >= 0,
        "gradient_bytes": known.optimizer.param_bytes,
        **({"reduced_bytes": round(sum(reduced.values())), "reduced_wide_bytes": round(wide)} if reduced else {}),
    }

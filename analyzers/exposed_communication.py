"""Collectives run alone: nothing computes meanwhile.

What it looks for
    Time in which the device runs a collective and no other kernel, and idle of at most 50 µs of work that waits for a
    collective on another stream: the wait ends when the collective does.

Why it costs
    The step grows by what communication does not share with computation: one bucket that is reduced after the whole
    backward, many collectives too small to fill the link, or ranks that arrive late and let the others wait.

What to do
    Smaller buckets that start during the backward, gradients sent in 16 bits, fewer synchronisations by accumulation;
    and, where one rank is late, the cause on that rank.

How sure
    High for the time. Whether it is transfer or waiting for a late rank needs the traces of all ranks. Of one rank, one
    that takes twice as long as the fastest of the same collectives with the same bytes waits, and collectives that move
    less than 5 GB/s are no transfer over the links of one host.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.extent import of_whole
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.locate import enclosing_operators, locate
from diagnose.analyzers.common.rates import slow_rate
from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.diagnosis import Facts, Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, covered, intersect, subtract, total, union
from diagnose.model.records import as_facts
from diagnose.model.rules import Legend, RuleMeta
from diagnose.ranks.collectives import collectives_of, element_bytes
from diagnose.tables import Tables
from diagnose.tables.collectives import exposed_broadcasts, exposed_small
from diagnose.tables.lost import only_collectives
from diagnose.tables.names import EXPERT_EXCHANGE, HOST_BACKEND, REDUCTION, matching
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="exposed-communication",
    kind="idle",
    order=150,
    host_order=60,
    legend=Legend(
        "waiting for a collective",
        "#12b5a6",
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
_EXCHANGE = r"(?i)SendRecv|all_?to_?all"
_GATHER = r"(?i)all_?gather"
_REDUCES = r"(?i)all_?reduce|reduce_?scatter|broadcast"
_SHARDED = r"FSDP|FullyShardedDataParallel"
_CALL = r"c10d|^record_param_comms|^nccl:|^rccl:"  # operators that are nothing but the collective
TITLE = "Collectives are not hidden under computation"
WAITING_TITLE = "Collectives wait for other ranks"
MIN_WAITING_SHARE = 0.5  # of the time that nothing hides
MAX_PLACED = 20  # collectives, the most exposed first, whose places are looked up
MAX_PLACES = 3
MAX_NARROW = 2  # bytes of an element that gains nothing by being sent in 16 bits
MAX_LOOKED_UP = 200  # the longest collectives show what the others are


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle of queued work that waited for a collective on another stream: it has ended where the gap begins."""
    gaps, tasks = t.gaps, t.tasks
    if not len(tasks.start):
        return EMPTY
    return intersect(left, gaps.device_part(gaps.stream_waits() & tasks.is_collective[gaps.before]))


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, the time in which a collective runs and the training thread runs no operator."""
    return intersect(left, subtract(_host_collectives(t), t.in_ops))


def _host_collectives(t: Tables) -> Intervals:
    return t.covering(matching(t.trace, (Kind.ANNOTATION, Kind.OP), HOST_BACKEND))


def _find_on_host(t: Tables) -> list[Finding]:
    rows = t.in_window(matching(t.trace, (Kind.ANNOTATION, Kind.OP), HOST_BACKEND))
    text = f"{len(rows) / t.steps.num:.1f} collectives of a host backend a step."
    facts = {**_ddp_facts(t), **_free_cores(t)}
    if facts.get("free_cores") == 0:
        text += (
            " The ranks of this machine compute on all of its cores: collectives that overlap with computation, and "
            "casts of gradients, slow it down."
        )
    if t.capture.info is not None and not facts["ddp"]:  # the capture would have seen one being made
        reductions = sum(1 for row in rows.tolist() if REDUCTION.search(t.name(row)))
        facts = {**facts, "reductions_by_hand": reductions / t.steps.num}
    return idle_finding(t, IdleRule(META.id, TITLE, probe="middle", evidence=lambda _t, _o: [text], facts=facts))


def find(t: Tables) -> list[Finding]:
    """Name collectives that nothing hides."""
    if t.device_id < 0:
        return _find_on_host(t)
    if only_collectives(t):  # what could hide them is not in the file
        return []
    others = union(exposed_broadcasts(t), exposed_small(t))  # those have rules of their own
    exposed = total(subtract(t.occupancy.exposed_communication, others))
    idle = idle_finding(t, IdleRule(META.id, TITLE))
    lost_ns = exposed / t.steps.num + (idle[0].lost_ns if idle else 0.0)
    if lost_ns <= 0:
        return []
    waits_ns = min(int(collectives_of(t).outlying().sum()) / t.steps.num, lost_ns)
    title = WAITING_TITLE if waits_ns > MIN_WAITING_SHARE * lost_ns else TITLE
    rate = slow_rate(t)
    mine = t.tasks.is_collective.copy()
    mine[t.small_collectives] = False
    rows, length = t.tasks.row[mine], (t.tasks.end - t.tasks.start)[mine]
    busy = max(int(length.sum()), 1)
    base = idle[0] if idle else Finding(META.id, TITLE, lost_ns)
    evidence: tuple[str, ...] = (
        f"{len(rows) / t.steps.num:.1f} collectives a step, median {_median_ms(length):.3f} ms; "
        f"{percent(exposed / busy, 0)} of their time is exposed: {duration(exposed / t.steps.num)} {of_whole(t)}.",
    )
    if waits_ns:
        text = (
            f"Of this, {duration(waits_ns)} is beyond what collectives of the same kind with as many bytes or more "
            "take: waiting for other ranks, which no change of the exchange takes away. The recordings of all ranks "
            "show for which."
        )
        evidence = (*evidence, text)
    return [
        replace(
            base,
            title=title,
            lost_ns=lost_ns,
            count=max(base.count, len(rows)),
            total_ns=exposed + base.total_ns,
            median_ns=int(np.median(length)) if len(rows) else 0,
            evidence=(*evidence, *([rate.evidence] if rate else []), *_called(t), *base.evidence),
            where=_places(t) or base.where,
            facts={
                **_exchange(t),
                "world_size": t.trace.world_size,
                "num_devices": len(t.trace.devices),
                **_ddp_facts(t),
                **({"bus_gbps": round(rate.bus_gbps, 3)} if rate else {}),
                **({"awaits_ranks": waits_ns / lost_ns} if waits_ns else {}),
            },
        )
    ]


def _most_exposed(t: Tables) -> Rows:
    """Return the rows of Tasks that are the most exposed collectives, the longest exposure first."""
    tasks = t.tasks
    mine = np.flatnonzero(tasks.is_collective & (tasks.launch >= 0))
    exposed = covered(t.occupancy.exposed_communication, tasks.start[mine], tasks.end[mine])
    return mine[np.argsort(-exposed, kind="stable")[:MAX_PLACED]]


def _places(t: Tables) -> tuple[Where, ...]:
    """Return where the collectives are launched: for each the outermost operator that is nothing but the collective."""
    events, launches = t.trace.events, t.tasks.launch[_most_exposed(t)]
    threads, times = events.thread[launches], events.start[launches]
    found = []
    for where, thread, time in zip(locate(t, threads, times), threads.tolist(), times, strict=True):
        around = enclosing_operators(t, thread, np.array([time]))[0].split(" > ")
        call = next((name for name in around if re.search(_CALL, name)), where.op)
        found.append(replace(where, op=call, stack=()))
    return tuple(dict.fromkeys(found))[:MAX_PLACES]


def _called(t: Tables) -> list[str]:
    """Return how the most exposed collectives are called, where the file holds that, and what calls them."""
    names = [_collective_name(t, int(row)) for row in t.tasks.row[_most_exposed(t)]]
    named = ", ".join(dict.fromkeys(name for name in names if name))
    return [f"The most exposed: {named}."] if named else []


def _collective_name(t: Tables, row: int) -> str:
    detail = int(t.trace.events.detail[row])
    text = t.trace.names[detail] if detail >= 0 else ""
    return text.split("|", 1)[0] if "|" in text else ""


def _exchange(t: Tables) -> Facts:
    """Return whether most of the collective time exchanges data that steps compute with, rather than gradients.

    Those are all-to-alls, and all-gathers but for those of sharded parameters; ``gathers``: the latter take longer.
    """
    tasks = t.tasks
    mine = np.flatnonzero(tasks.is_collective)
    length = (tasks.end - tasks.start)[mine].astype(np.float64)
    longest = np.argsort(-length, kind="stable")[:MAX_LOOKED_UP]
    exchanges, gathers = _kinds(t, tasks.row[mine[longest]], tasks.launch[mine[longest]])
    exchanged, gathered = (float(length[longest][which].sum()) for which in (exchanges, gathers))
    return {"is_exchange": exchanged + gathered > length[longest].sum() / 2, "gathers": gathered > exchanged}


def _kinds(t: Tables, rows: Rows, launches: npt.NDArray[np.int32]) -> tuple[Mask, Mask]:
    """Return which collectives are exchanges and which all-gathers.

    What the kernel and its collective are called decides; newer kernels are all called Generic: then the operators
    around the launch.
    """
    texts = [f"{t.name(row)} {_collective_name(t, row)}" for row in rows.tolist()]
    exchanges = np.array([bool(re.search(_EXCHANGE, text) or EXPERT_EXCHANGE.search(text)) for text in texts], bool)
    gathers = ~exchanges & np.array([bool(re.search(_GATHER, text)) for text in texts], bool)
    unnamed = ~exchanges & ~gathers & np.array([not re.search(_REDUCES, text) for text in texts], bool)
    events = t.trace.events
    for thread in t.threads:
        mine = np.flatnonzero((launches >= 0) & (events.thread[launches] == thread))
        around = enclosing_operators(t, thread, events.start[launches[mine]])
        exchanges[mine] |= unnamed[mine] & np.array([bool(re.search(_EXCHANGE, text)) for text in around], bool)
        gathers[mine] &= np.array([not re.search(_SHARDED, text) for text in around], bool)
    return exchanges, gathers


def _median_ms(length: Ints) -> float:
    return float(np.median(length)) / 1e6 if len(length) else 0.0


def _ddp_facts(t: Tables) -> Facts:
    """Return the arguments of DistributedDataParallel, where the capture has seen it being made."""
    ddp = as_facts(t.capture.info.flags.ddp) if t.capture.info else {}
    known = t.capture.info.optimizer.param_bytes if t.capture.info else None
    return {"ddp": ddp, "has_device": t.device_id >= 0, "gradient_bytes": known, **_reduced(t)}


def _free_cores(t: Tables) -> Facts:
    """Return how many of the cores that a rank can use its operators' threads leave, where both are recorded."""
    flags = t.capture.info.flags if t.capture.info else None
    if flags is None or not flags.cores or not flags.num_threads:
        return {}
    return {"free_cores": max(flags.cores - flags.num_threads, 0)}


def _reduced(t: Tables) -> Facts:
    """Return the bytes that each step reduces, and those of them in elements of more than 16 bits."""
    found = collectives_of(t)
    counts = np.bincount(found.collectives.kind, minlength=len(found.kinds)).tolist()
    known = [
        (kind, count * kind.num_bytes / t.steps.num)
        for kind, count in zip(found.kinds, counts, strict=True)
        if kind.name in ("all_reduce", "reduce_scatter") and kind.num_bytes > 0
    ]
    if not known:
        return {}
    wide = sum(num for kind, num in known if element_bytes(kind.dtype) > MAX_NARROW)
    return {"reduced_bytes": round(sum(num for _, num in known)), "reduced_wide_bytes": round(wide)}

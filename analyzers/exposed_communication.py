"""Collectives run alone: nothing computes meanwhile.

What it looks for
    Time in which the device runs a collective and no other kernel, and idle of work that waits for a collective on
    another stream.

Why it costs
    The step grows by what communication does not share with computation: one bucket that is reduced after the whole
    backward, many collectives too small to fill the link, or ranks that arrive late and let the others wait.

What to do
    Smaller buckets that start during the backward, gradients sent in 16 bits, fewer synchronisations by accumulation;
    and, where one rank is late, the cause on that rank.

How sure
    High for the time. Whether it is transfer or waiting for a late rank needs the traces of all ranks.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.locate import enclosing_operators
from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Facts, Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, subtract, total, union
from diagnose.model.records import as_facts
from diagnose.model.rules import Legend, RuleMeta
from diagnose.ranks.collectives import collectives_of, element_bytes
from diagnose.tables import Tables
from diagnose.tables.collectives import exposed_broadcasts, exposed_small, small_collectives
from diagnose.tables.names import HOST_BACKEND, REDUCTION, matching

META = RuleMeta(
    id="exposed-communication",
    kind="idle",
    order=150,
    host_order=60,
    legend=Legend("waiting for a collective", "#12b5a6"),
    changes=("overlap-exchange", "overlap-gradients", "compress-gradients", "bucket-gradients"),
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
_EXCHANGE = re.compile(r"SendRecv|all_?to_?all", re.IGNORECASE)
TITLE = "Collectives are not hidden under computation"
MIN_SHARE = 0.002  # of the step; less is not worth a line
MAX_NARROW = 2  # bytes of an element that gains nothing by being sent in 16 bits
MAX_LOOKED_UP = 200  # the longest collectives show what the others are


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle of queued work that waited for a collective on another stream."""
    gaps, tasks = t.gaps, t.tasks
    if not len(tasks.start):
        return EMPTY
    return intersect(left, gaps.device_part(gaps.cross_stream & tasks.is_collective[gaps.before]))


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, the time in which a collective runs and the training thread runs no operator."""
    return intersect(left, subtract(_host_collectives(t), t.in_ops))


def _host_collectives(t: Tables) -> Intervals:
    return t.covering(matching(t.trace, (Kind.ANNOTATION, Kind.OP), HOST_BACKEND))


def _find_on_host(t: Tables) -> list[Finding]:
    rows = t.in_window(matching(t.trace, (Kind.ANNOTATION, Kind.OP), HOST_BACKEND))
    text = f"{len(rows) / t.steps.num:.1f} collectives of a host backend a step."
    facts = _ddp_facts(t)
    if t.capture.info is not None and not facts["ddp"]:  # the capture would have seen one being made
        reductions = sum(1 for row in rows.tolist() if REDUCTION.search(t.name(row)))
        facts = {**facts, "reductions_by_hand": reductions / t.steps.num}
    return idle_finding(t, IdleRule(META.id, TITLE, probe="middle", evidence=lambda _t, _o: [text], facts=facts))


def find(t: Tables) -> list[Finding]:
    """Name collectives that nothing hides."""
    if t.device_id < 0:
        return _find_on_host(t)
    others = union(exposed_broadcasts(t), exposed_small(t))  # those have rules of their own
    exposed = total(subtract(t.occupancy.exposed_communication, others))
    idle = idle_finding(t, IdleRule(META.id, TITLE))
    lost_ns = exposed / t.steps.num + (idle[0].lost_ns if idle else 0.0)
    if lost_ns < MIN_SHARE * t.steps.step_ns:
        return []
    mine = t.tasks.is_collective.copy()
    mine[small_collectives(t)] = False
    rows, length = t.tasks.row[mine], (t.tasks.end - t.tasks.start)[mine]
    busy = max(int(length.sum()), 1)
    base = idle[0] if idle else Finding(META.id, TITLE, lost_ns)
    evidence = (
        f"{len(rows) / t.steps.num:.1f} collectives a step, median {_median_ms(length):.3f} ms; "
        f"{exposed / busy:.0%} of their time is exposed: {exposed / t.steps.num / 1e6:.2f} ms of each step.",
    )
    return [
        replace(
            base,
            lost_ns=lost_ns,
            count=max(base.count, len(rows)),
            total_ns=exposed + base.total_ns,
            median_ns=int(np.median(length)) if len(rows) else 0,
            evidence=(*evidence, *base.evidence),
            facts={
                "is_exchange": _is_exchange(t),
                "world_size": t.trace.world_size,
                "num_devices": len(t.trace.devices),
                **_ddp_facts(t),
            },
        )
    ]


def _is_exchange(t: Tables) -> bool:
    """Return whether most of the collective time is an exchange (all-to-all) rather than a reduction of gradients."""
    tasks = t.tasks
    mine = np.flatnonzero(tasks.is_collective)
    length = (tasks.end - tasks.start)[mine].astype(np.float64)
    longest = np.argsort(-length, kind="stable")[:MAX_LOOKED_UP]
    exchange = _exchanges(t, tasks.row[mine[longest]], tasks.launch[mine[longest]])
    return bool(length[longest][exchange].sum() > length[longest].sum() / 2)


def _exchanges(t: Tables, rows: npt.NDArray[np.intp], launches: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Look at the kernels' names, then at the operators around their launches: newer kernels are all called Generic."""
    named = np.array([bool(_EXCHANGE.search(t.name(row))) for row in rows.tolist()], bool)
    events = t.trace.events
    for thread in t.threads:
        mine = np.flatnonzero((launches >= 0) & (events.thread[launches] == thread))
        around = enclosing_operators(t, thread, events.start[launches[mine]])
        named[mine] |= np.array([bool(_EXCHANGE.search(text)) for text in around], bool)
    return named


def _median_ms(length: Ints) -> float:
    return float(np.median(length)) / 1e6 if len(length) else 0.0


def _ddp_facts(t: Tables) -> Facts:
    """Return the arguments of DistributedDataParallel, where the capture has seen it being made."""
    ddp = as_facts(t.capture.info.flags.ddp) if t.capture.info else {}
    known = t.capture.info.optimizer.param_bytes if t.capture.info else None
    return {"ddp": ddp, "has_device": t.device_id >= 0, "gradient_bytes": known, **_reduced(t)}


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

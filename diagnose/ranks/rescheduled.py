"""The collectives of all ranks on another schedule: buckets of another size, collectives overlapped with computation.

A change of the schedule is replayed for all ranks at once (`diagnose.ranks.replay`), so that a bucket starts when the
last rank has filled it, and what waits for it waits on every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from diagnose.model.limits import REDUCED
from diagnose.perf_model.gpu_specs import bandwidth_of, rebucketed, transfer_ns
from diagnose.ranks.replay import Collective, Part, Schedule, Step

__all__ = ["in_buckets", "overlapped"]

_BUCKET = "ddp-bucket"
_SERVING = {  # of what is exchanged under these names, what can be overlapped: the rest is needed at once
    "all_reduce": (_BUCKET,),
    "reduce_scatter": ("fsdp-scatter", ""),
    "all_gather": ("fsdp-gather", ""),
}


def in_buckets(recorded: Schedule, num_bytes: float) -> tuple[Schedule, Schedule] | None:
    """Return the schedule with the recorded buckets and with those of another size, at the same rate.

    The rate is the median one of the buckets, waiting left out. Both schedules take their transfers from it, so that
    the error of the model of sizes and rate is in both. None where no buckets with sizes, or no backward that fills
    them, was recorded.
    """
    sizes, transfers = [], []
    for step in recorded.steps:
        buckets = [c for c in step.collectives if _is_bucket(c)]
        if not buckets or any(not step.backward[p.rank] > 0 for c in buckets for p in c.parts):
            return None
        sizes += [float(c.kind.num_bytes) for c in buckets]
        transfers += [c.transfer_ns for c in buckets]
    rate = bandwidth_of(np.array(sizes), np.array(transfers))
    as_recorded = replace(recorded, steps=tuple(_at_rate(step, rate) for step in recorded.steps))
    resized = replace(recorded, steps=tuple(_resized(step, num_bytes, rate) for step in recorded.steps))
    return as_recorded, resized


def _is_bucket(c: Collective) -> bool:
    return c.kind.purpose == _BUCKET and c.kind.num_bytes > 0


def _at_rate(step: Step, rate: float) -> Step:
    """Return a step whose buckets take their bytes at the rate."""
    return replace(
        step,
        collectives=tuple(
            c._replace(transfer_ns=transfer_ns(c.kind.num_bytes, rate)) if _is_bucket(c) else c
            for c in step.collectives
        ),
    )


def _resized(step: Step, bucket_bytes: float, rate: float) -> Step:
    """Return a step with buckets of another size."""
    by_group: dict[tuple[int, ...], list[Collective]] = defaultdict(list)
    for c in step.collectives:
        if _is_bucket(c):
            by_group[tuple(p.rank for p in c.parts)].append(c)
    resized = [bucket for group in by_group.values() for bucket in _of_size(step, group, bucket_bytes, rate)]
    return replace(step, collectives=tuple(_merged([c for c in step.collectives if not _is_bucket(c)], resized)))


def _of_size(step: Step, buckets: Sequence[Collective], bucket_bytes: float, rate: float) -> Iterator[Collective]:
    """Yield the new buckets of one group; what waited for the last recorded bucket waits for the last new one."""
    num_bytes = np.array([float(c.kind.num_bytes) for c in buckets])
    full, sizes, blocks = [], num_bytes, []
    for i, last in enumerate(buckets[-1].parts):
        ready = np.array([c.parts[i].arrives for c in buckets])
        begin = max(float(ready[-1] - step.backward[last.rank]), 0.0)
        moments, sizes = rebucketed(ready, num_bytes, begin, bucket_bytes)
        full.append(moments)
        waits = [c.parts[i].blocks for c in buckets]
        blocks.append(max((at for at in waits if at is not None), default=None))
    kind, ranks = buckets[-1].kind, [p.rank for p in buckets[-1].parts]
    for k, size in enumerate(sizes.tolist()):
        is_last = k == len(sizes) - 1
        parts = tuple(Part(rank, float(full[i][k]), blocks[i] if is_last else None) for i, rank in enumerate(ranks))
        yield Collective(replace(kind, num_bytes=round(size)), transfer_ns(size, rate), parts)


def _merged(others: Sequence[Collective], moved: Sequence[Collective]) -> list[Collective]:
    """Return all in an order in which each rank can have them; the others among themselves stay as they are.

    One that was moved goes behind all that a member came to no later than to it.
    """
    arrives = [{p.rank: p.arrives for p in c.parts} for c in others]
    behind: dict[int, list[Collective]] = defaultdict(list)
    for c in sorted(moved, key=lambda c: max(p.arrives for p in c.parts)):
        before = (
            i
            for i in range(len(others) - 1, -1, -1)
            if any(arrives[i].get(p.rank, np.inf) <= p.arrives for p in c.parts)
        )
        behind[next(before, -1)].append(c)
    return [*behind[-1], *(c for i, other in enumerate(others) for c in (other, *behind[i]))]


def overlapped(recorded: Schedule, name: str) -> Schedule | None:
    """Return the schedule in which such collectives overlap with what follows; None where no rank waits for one.

    Reductions are waited for where the last of the step is, by the optimizer. A gather, whose result is needed at
    once, begins when the one before it does (prefetching one ahead). What ranks that share layers exchange stays.
    """
    mine = [c for step in recorded.steps for c in step.collectives if _can_overlap(c, name)]
    if not any(p.blocks is not None for c in mine for p in c.parts):
        return None
    change = _overlapped_reductions if name in REDUCED else _prefetched_gathers
    return replace(recorded, steps=tuple(replace(s, collectives=change(s.collectives, name)) for s in recorded.steps))


def _can_overlap(c: Collective, name: str) -> bool:
    return c.kind.name == name and c.kind.purpose in _SERVING[name]


def _overlapped_reductions(collectives: Sequence[Collective], name: str) -> tuple[Collective, ...]:
    last: dict[int, int] = {}  # rank: the last one that it waits for
    for i, c in enumerate(collectives):
        if _can_overlap(c, name):
            last |= {p.rank: i for p in c.parts if p.blocks is not None}
    return tuple(
        c._replace(parts=tuple(p if last.get(p.rank) == i else p._replace(blocks=None) for p in c.parts))
        if _can_overlap(c, name)
        else c
        for i, c in enumerate(collectives)
    )


def _prefetched_gathers(collectives: Sequence[Collective], name: str) -> tuple[Collective, ...]:
    before: dict[int, float] = {}  # rank: its own work done when it came to the gather before
    gathers, others = [], []
    for c in collectives:
        if not _can_overlap(c, name):
            others.append(c)
            continue
        gathers.append(c._replace(parts=tuple(p._replace(arrives=before.get(p.rank, p.arrives)) for p in c.parts)))
        before |= {p.rank: p.arrives for p in c.parts}
    return tuple(_merged(others, gathers))

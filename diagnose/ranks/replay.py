"""The steps of all ranks replayed through their collectives: what a step takes if ranks or collectives were otherwise.

Each rank has two lanes. Its own work runs on one; a collective runs on the other, from when the rank's work and its
collective before it are there, and ends for all members at once, after the last of them and the transfer. Where nothing
covered the rest of a collective, the rank's work waited for it, and does so in the replay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Ints
from diagnose.model.intervals import covered, distinct, union
from diagnose.model.limits import REDUCED
from diagnose.perf_model.gpu_specs import bandwidth_of, rebucketed, transfer_ns
from diagnose.ranks.matching import Matches
from diagnose.ranks.profile import PHASES, CollectiveKind, RankProfile
from diagnose.ranks.waits import Times

BACKWARD = PHASES[1]
_BUCKET = "ddp-bucket"
_SERVING = {  # of what is exchanged under these names, what can be overlapped: the rest is needed at once
    "all_reduce": (_BUCKET,),
    "reduce_scatter": ("fsdp-scatter", ""),
    "all_gather": ("fsdp-gather", ""),
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the replay of the recorded steps gave, ns: means over the steps that all replayed ranks have."""

    measured_ns: float
    unchanged_ns: float
    after_ns: float

    @property
    def error(self) -> float:
        """Return by which share the unchanged replay misses the measured steps."""
        return self.unchanged_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    @property
    def saved_ns(self) -> float:
        """Return what the change saves of a step."""
        return max(self.unchanged_ns - self.after_ns, 0.0)


class Part(NamedTuple):
    """What one rank has of one collective, on its own lane: ns of its work since the last step's end."""

    rank: int
    arrives: float  # own work done when it comes
    blocks: float | None  # own work done when it begins to wait for the end; None: it never does


class Collective(NamedTuple):
    """One collective of all its members."""

    kind: CollectiveKind
    transfer_ns: float
    parts: tuple[Part, ...]


class Less(NamedTuple):
    """What goes of a rank's own time."""

    by_step: Floats  # ns
    equals: tuple[int, ...]  # the ranks that show where in the step it goes


class _Curve(NamedTuple):
    """What is gone of a rank's own work when so much of it was done, ns; both columns ascend."""

    done: Floats
    gone: Floats


@dataclass(frozen=True, slots=True)
class Step:
    """What is replayed of one step; columns are by rank, in ns."""

    collectives: tuple[Collective, ...]
    own: Floats
    backward: Floats  # of ``own``: computing gradients
    host: Floats  # what the host takes where it is no further than its device, else 0: no step is shorter
    lanes: tuple[_Lane, ...]
    curves: Mapping[int, _Curve] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps that all ranks recorded, but for the first."""

    steps: tuple[Step, ...]
    places: tuple[int, ...]  # theirs among the recorded ones, the first and those that ranks lack included
    measured_ns: float  # mean


def schedule_of(ranks: Sequence[RankProfile], matches: Matches, times: Times) -> Schedule | None:
    """Return what was recorded as it can be replayed, None where there is no step to replay."""
    steps = distinct(*(p.step_number for p in ranks))
    transfer = matches.least(matches.column(ranks, "length")).astype(np.float64)
    lanes = [_lane(p) for p in ranks]
    in_step = _by_step(ranks, matches, lanes, transfer)
    backward = [i for i, cause in enumerate(times.causes) if cause == BACKWARD]
    measured, found, places = [], [], []
    for s, number in enumerate(steps.tolist()):
        if s == 0 or number not in in_step or np.isnan(times.own[:, s]).any():
            continue
        lengths = [float(p.bounds[i] - p.bounds[i - 1]) for p in ranks for i in [_place(p, number)] if i > 0]
        if len(lengths) < len(ranks):
            continue
        measured.append(float(np.median(lengths)))
        places.append(s)
        found.append(
            Step(
                tuple(in_step[number]),
                times.own[:, s] - times.ahead[:, s],
                times.spent[:, backward, s].sum(axis=1),
                np.where(times.ahead[:, s] > 0, times.host[:, s], 0.0),
                tuple(lane.of(p, number) for lane, p in zip(lanes, ranks, strict=True)),
            )
        )
    return Schedule(tuple(found), tuple(places), float(np.mean(measured))) if found else None


def replayed(before: Schedule, after: Schedule) -> Replayed:
    """Replay what was recorded and what was made of it."""
    unchanged = _lengths(before.steps)
    hosts = np.array([float(step.host.max()) for step in after.steps])
    then = np.maximum(_lengths(after.steps), np.minimum(hosts, unchanged))
    return Replayed(before.measured_ns, float(unchanged.mean()), float(then.mean()))


def replay_steps(
    ranks: Sequence[RankProfile], matches: Matches, times: Times, less: Mapping[int, Less]
) -> Replayed | None:
    """Replay every step but the first, as it was and with ``less`` of some ranks; None where there is none."""
    recorded = schedule_of(ranks, matches, times)
    return None if recorded is None else replayed(recorded, without_excess(recorded, less))


def without_excess(recorded: Schedule, less: Mapping[int, Less]) -> Schedule:
    """Return the schedule with less own time of some ranks.

    What a rank has more of than its equals goes where it has it: before the collective that it
    comes later to than they do, by their own work up to there.
    """
    steps = []
    for s, step in zip(recorded.places, recorded.steps, strict=True):
        curves, host = {}, step.host.copy()
        for r, each in less.items():
            gone = float(each.by_step[s])
            curves[r] = _curve(step.lanes[r], [step.lanes[i] for i in each.equals], float(step.own[r]), gone)
            host[r] = max(host[r] - gone, 0.0)
        steps.append(replace(step, curves=curves, host=host))
    return replace(recorded, steps=tuple(steps))


def _lengths(steps: Sequence[Step]) -> Floats:
    """Return what each step takes, one after the other.

    Ranks that share no collective at the end of a step, as stages of a pipeline, begin the next one apart. How far
    apart shows when all steps were replayed once before.
    """
    begin = np.zeros(len(steps[0].own))
    for step in steps:
        begin = _ends(step, begin - begin.min())
    found = []
    for step in steps:
        begin -= begin.min()
        ends = _ends(step, begin)
        found.append(float(ends.max() - begin.max()))
        begin = ends
    return np.array(found)


def _curve(own: _Lane, equals: Sequence[_Lane], work: float, less: float) -> _Curve:
    """Return where in its own work of a step a rank loses how much, so that it loses ``less`` of it in all."""
    others = [part for part in equals if len(part.arrives) == len(own.arrives)]
    done, gone = [np.zeros(1)], [np.zeros(1)]
    if others and len(own.arrives):
        done.append(own.arrives)
        gone.append(own.arrives - np.median([part.arrives for part in others], axis=0))
        blocks = np.array([own.blocks, *(part.blocks for part in others)])
        wait = ~np.isnan(blocks).any(axis=0)
        done.append(own.blocks[wait])
        gone.append(own.blocks[wait] - np.median(blocks[1:, wait], axis=0))
    at = np.concatenate([*done, [work]])
    order = np.argsort(at, kind="stable")
    off = np.concatenate([*gone, [less]])[order]
    return _Curve(at[order], np.maximum.accumulate(np.clip(off, 0.0, less)))


def _place(p: RankProfile, number: int) -> int:
    at = int(np.searchsorted(p.step_number, number))
    return at if at < p.num_steps and p.step_number[at] == number else -1


class _Lane(NamedTuple):
    """For each collective of a rank the own work of the step done before it comes, and before it is waited for, ns."""

    arrives: Floats
    blocks: Floats  # NaN: never

    def of(self, p: RankProfile, number: int) -> _Lane:
        """Return the collectives of one step."""
        mine = p.collectives.step == _place(p, number)
        return _Lane(self.arrives[mine], self.blocks[mine])


def _by_step(
    ranks: Sequence[RankProfile], matches: Matches, lanes: Sequence[_Lane], transfer: Floats
) -> dict[int, list[Collective]]:
    """Return for each step its collectives in the order of their ends."""
    found: dict[int, dict[int, list[Part]]] = {}
    for rank, row, match in zip(matches.rank.tolist(), matches.row.tolist(), matches.match.tolist(), strict=True):
        p = ranks[rank]
        number = int(p.step_number[int(p.collectives.step[row])])
        arrives, blocks = lanes[rank]
        at = None if np.isnan(blocks[row]) else float(blocks[row])
        found.setdefault(number, {}).setdefault(match, []).append(Part(rank, float(arrives[row]), at))
    return {
        number: [
            Collective(matches.kinds[m], float(transfer[m]), tuple(parts)) for m, parts in sorted(of_match.items())
        ]
        for number, of_match in found.items()
    }


def _lane(p: RankProfile) -> _Lane:
    """Return the lane of a rank's own work."""
    c = p.collectives
    if not len(c):
        return _Lane(np.zeros(0), np.zeros(0))
    begin = np.concatenate([[p.window[0]], p.bounds[:-1]])[c.step]
    waits = c.alone - c.unlaunched
    waiting = union((c.end - waits, c.end))

    def own(until: Ints) -> Floats:
        done: Floats = np.maximum(until - begin - covered(waiting, begin, np.maximum(until, begin)), 0).astype(
            np.float64
        )
        return done

    arrives = own(c.start - c.queued)
    blocks = np.maximum(own(c.end), arrives)
    # Of a collective: less is pauses between kernels beside it, and no wait for its end.
    return _Lane(arrives, np.where(waits > 0.02 * c.length, blocks, np.nan))


def _ends(step: Step, begin: Floats) -> Floats:
    """Return when each rank has done its work and left its last collective."""
    own, curves = step.own, step.curves
    waited = begin.copy()
    comm = np.zeros(len(own))
    for _, took_ns, parts in step.collectives:
        came = max(max(_done(p.arrives, p.rank, curves) + waited[p.rank], comm[p.rank]) for p in parts)
        end = came + took_ns
        for p in parts:
            comm[p.rank] = end
            if p.blocks is not None:
                waited[p.rank] += max(end - _done(p.blocks, p.rank, curves) - waited[p.rank], 0.0)
    done = np.array([_done(float(own[r]), r, curves) + waited[r] for r in range(len(own))])
    ends: Floats = np.maximum(done, comm)
    return ends


def _done(work: float, rank: int, curves: Mapping[int, _Curve]) -> float:
    """Return when own work that takes ``work`` is done."""
    curve = curves.get(rank)
    return work if curve is None else max(work - float(np.interp(work, curve.done, curve.gone)), 0.0)


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
    as_recorded, resized = [], []
    for step in recorded.steps:
        buckets = [c for c in step.collectives if _is_bucket(c)]
        others = [c for c in step.collectives if not _is_bucket(c)]
        timed = {id(c): c._replace(transfer_ns=transfer_ns(c.kind.num_bytes, rate)) for c in buckets}
        as_recorded.append(replace(step, collectives=tuple(timed.get(id(c), c) for c in step.collectives)))
        by_group: dict[tuple[int, ...], list[Collective]] = defaultdict(list)
        for c in buckets:
            by_group[tuple(p.rank for p in c.parts)].append(c)
        new = [bucket for group in by_group.values() for bucket in _of_size(step, group, num_bytes, rate)]
        resized.append(replace(step, collectives=tuple(_merged(others, new))))
    return replace(recorded, steps=tuple(as_recorded)), replace(recorded, steps=tuple(resized))


def _is_bucket(c: Collective) -> bool:
    return c.kind.purpose == _BUCKET and c.kind.num_bytes > 0


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

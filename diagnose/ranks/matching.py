"""The same collective on several ranks.

Where a trace has them, the name and the members of the process group and the number of the collective in it decide.
Elsewhere ranks are laid over each other by the ends of their collectives: all members leave one together, so the right
distance of two clocks makes most ends agree. What agrees in its end, its name and its size, and was under way on all of
them at once, is one collective. A rank that lacks one, or whose file ends early, loses that part only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats, Ints, Rows
from diagnose.model.limits import MAJORITY
from diagnose.ranks.profile import CollectiveKind, Group, RankProfile

MIN_TOLERANCE_NS = 100_000  # ends of one collective differ by 20 µs on one host, by up to 100 over a network
HOST_TOLERANCE_SHARE = 0.15  # … and where threads wait for a core, by as much as 11 ms of 90 on two cores, …
HOST_TOLERANCE_OF_GAP = 0.25  # … but collectives that follow each other closely must not be taken for each other
NEIGHBOURS = 2  # places by which the same collective may be shifted on two ranks: so many may be missing between them
_SIZES_DIFFER = frozenset({"all_to_all", "scatter", "gather", "barrier", "send_recv"})  # each rank has its own share
_PAIR = frozenset({"send", "recv"})
_Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Matches:
    """All matched collectives; a part is what one rank has of one of them.

    Columns of parts are parallel and sorted by collective, then by rank; ``first`` are the rows at which the parts of
    each collective begin.
    """

    rank: npt.NDArray[np.intp]  # index in the list of ranks
    row: npt.NDArray[np.intp]  # of that rank's Collectives
    match: npt.NDArray[np.intp]  # number of the collective
    first: npt.NDArray[np.intp]
    kinds: tuple[CollectiveKind, ...]  # of each collective, as its first rank has it
    groups: tuple[Group, ...]  # of each collective; without members in the trace those that took part
    residual_ns: float  # median distance of the ends of one collective, clocks laid over each other
    num_unmatched: int  # collectives of ranks that were compared that no other rank has
    num_disagreeing: int  # with the same number in a group, and another name or size
    num_sampled: int  # of groups of which too few members are among the ranks: not among these collectives
    apart: tuple[int, ...]  # indices of ranks whose ends agree with nobody's

    @property
    def until(self) -> npt.NDArray[np.intp]:
        """Return the rows at which the parts of each collective end."""
        return np.append(self.first[1:], len(self.rank))

    @property
    def num(self) -> int:
        """Return the number of collectives."""
        return len(self.first)

    def least(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the smallest value of the parts of each collective."""
        return np.minimum.reduceat(values, self.first) if self.num else np.zeros(0, np.int64)

    def column(self, ranks: Sequence[RankProfile], name: str) -> Ints:
        """Return a column of the ranks' Collectives, for each part."""
        return self.values([getattr(p.collectives, name) for p in ranks], self.row)

    def values(self, columns: Sequence[npt.NDArray[Any]], row: npt.NDArray[Any]) -> Ints:
        """Return for each part a value of its rank's column, the one in the given row."""
        if not len(self.rank):
            return np.zeros(0, np.int64)
        begin = np.cumsum([0, *map(len, columns)])
        values: Ints = np.concatenate(columns)[begin[self.rank] + row].astype(np.int64)
        return values


class _Part(NamedTuple):
    rank: int
    row: int
    begin: int  # wall clock where that is known, ns
    end: int
    kind: CollectiveKind
    look: _Key  # what equal parts of one collective have in common


def match_collectives(ranks: Sequence[RankProfile]) -> Matches:
    """Match the collectives of these ranks; with one rank, or where nothing is shared, there are none."""
    step_ns = float(np.median([p.step_ns for p in ranks])) if ranks else 0.0
    by_number, rest = _by_number(ranks)
    shared, num_disagreeing = [], 0
    for parts in by_number.values():  # what differs in name or size from most with the same number is left out
        looks = Counter(p.look for p in parts)
        one_each = {p.rank: p for p in parts if p.look == looks.most_common(1)[0][0]}
        num_disagreeing += len(parts) - len(one_each)
        shared.append(list(one_each.values()))
    # Of the step: ranks whose ends lie further apart do not share what their numbers say they do.
    shared = _not_apart(shared, 0.1 * step_ns)
    for of_rank in rest.values():
        shared += _by_ends(of_rank, _tolerance(ranks, of_rank, step_ns))
    kept: dict[bool, list[list[_Part]]] = {True: [], False: []}
    for parts_of_one in shared:
        if len(parts_of_one) > 1:
            kept[_is_given(ranks, parts_of_one)].append(parts_of_one)
    return _matches(ranks, kept[True], kept[False], num_disagreeing)


def _by_number(
    ranks: Sequence[RankProfile],
) -> tuple[dict[_Key, list[_Part]], dict[_Key, dict[int, list[tuple[int, _Part]]]]]:
    """Divide into what a number in a group identifies, and by group what has to be laid over each other, by step."""
    numbered: dict[_Key, list[_Part]] = defaultdict(list)
    rest: dict[_Key, dict[int, list[tuple[int, _Part]]]] = defaultdict(lambda: defaultdict(list))
    for i, p in enumerate(ranks):
        c, looks, groups = p.collectives, list(map(_look, p.kinds)), [p.groups[kind.group] for kind in p.kinds]
        columns = (c.kind.tolist(), c.start.tolist(), c.end.tolist(), c.sequence.tolist(), c.step.tolist())
        for row, (k, start, end, sequence, step) in enumerate(zip(*columns, strict=True)):
            kind, group = p.kinds[k], groups[k]
            part = _Part(i, row, start + p.epoch_ns, end + p.epoch_ns, kind, looks[k])
            pair = (min(kind.source, kind.target), max(kind.source, kind.target)) if kind.name in _PAIR else ()
            where: _Key = (group.name, group.members or group.size, *pair)
            if sequence >= 0 and group.name:
                key: _Key = (*where, kind.name in _PAIR, sequence)
                numbered[key].append(part)
            else:
                rest[where][i].append((int(p.step_number[step]), part))
    return numbered, rest


def _look(kind: CollectiveKind) -> _Key:
    """Return what equal parts of one collective have in common."""
    if kind.name in _PAIR:
        return ("pair", max(kind.num_bytes, kind.num_bytes_out))
    return (kind.name,) if kind.name in _SIZES_DIFFER else (kind.name, kind.num_bytes)


def _not_apart(shared: list[list[_Part]], most_ns: float) -> list[list[_Part]]:
    """Leave out ranks whose ends vary against the others' by more than one collective can explain."""
    ends: dict[tuple[_Key, int], list[float]] = defaultdict(list)
    for parts in shared:
        members = tuple(sorted(p.rank for p in parts))
        middle = float(np.median([p.end for p in parts]))
        for p in parts:
            ends[members, p.rank].append(p.end - middle)
    wild = {
        key for key, off in ends.items() if len(off) > 1 and np.median(np.abs(np.array(off) - np.median(off))) > most_ns
    }
    if not wild:
        return shared
    return [
        [p for p in parts if (tuple(sorted(q.rank for q in parts)), p.rank) not in wild] for parts in shared if parts
    ]


def _tolerance(ranks: Sequence[RankProfile], of_rank: dict[int, list[tuple[int, _Part]]], step_ns: float) -> float:
    """Return by how much the ends of one collective may differ."""
    least = max(MIN_TOLERANCE_NS, 0.02 * step_ns)  # of the step: host backends end a millisecond apart, …
    if any(ranks[rank].has_device for rank in of_rank):
        return least
    gaps = []
    for parts in of_rank.values():
        ends: dict[_Key, list[int]] = defaultdict(list)
        for _, part in parts:
            ends[part.look].append(part.end)
        gaps += [int(np.diff(sorted(each)).min()) for each in ends.values() if len(each) > 1]
    widest = HOST_TOLERANCE_OF_GAP * float(np.median(gaps)) if gaps else 0.0
    return max(least, min(HOST_TOLERANCE_SHARE * step_ns, widest))


def _by_ends(of_rank: dict[int, list[tuple[int, _Part]]], tolerance: float) -> list[list[_Part]]:
    """Match by ends: find what lays each rank's clock over another's, then gather ends that agree."""
    shared: list[list[_Part]] = []
    for island in _islands(of_rank, tolerance):
        looks: dict[_Key, list[tuple[float, _Part]]] = defaultdict(list)
        for rank, offset in island.items():
            for _, part in of_rank[rank]:
                looks[part.look].append((part.end + offset, part))
        for ends in looks.values():
            shared += _gathered(sorted(ends, key=lambda e: (e[0], e[1].rank)), island, tolerance)
    return shared


def _islands(of_rank: dict[int, list[tuple[int, _Part]]], tolerance: float) -> list[dict[int, float]]:
    """Return sets of ranks that share collectives: of each rank, what is to be added to its times."""
    left = sorted(of_rank, key=lambda rank: (-len(of_rank[rank]), rank))
    islands = []
    while left:
        first, island, others = left[0], {left[0]: 0.0}, []
        places: dict[_Key, list[int]] = defaultdict(list)
        for step, part in of_rank[first]:
            places[step, part.look].append(part.end)
        for rank in left[1:]:
            offset = _clock_distance(places, len(of_rank[first]), of_rank[rank], tolerance)
            if offset is None:
                others.append(rank)
            else:
                island[rank] = offset
        islands.append(island)
        left = others
    return islands


def _clock_distance(
    places: dict[_Key, list[int]], num_places: int, other: list[tuple[int, _Part]], tolerance: float
) -> float | None:
    """Return what to add to the times of ``other``, None where its collectives are not those at these places.

    Places are the ends of one rank's collectives, by step and look.
    """
    seen = Counter[_Key]()
    distance: list[float] = []
    for step, part in other:
        key = (step, part.look)
        at = seen[key]
        seen[key] += 1
        near = places.get(key, [])[max(at - NEIGHBOURS, 0) : at + NEIGHBOURS + 1]
        distance += [float(end - part.end) for end in near]
    ordered = np.sort(np.array(distance))
    until = np.searchsorted(ordered, ordered + 2 * tolerance, side="right")
    count = until - np.arange(len(ordered))
    # With less in common the distance of two clocks is a coincidence.
    if count.max(initial=0) < max(MAJORITY * min(num_places, len(other)), 1):
        return None
    best = int(count.argmax())
    return float(np.median(ordered[best : until[best]]))


def _gathered(ends: list[tuple[float, _Part]], offsets: dict[int, float], tolerance: float) -> Iterator[list[_Part]]:
    """Yield the parts of each collective from parts of one look, by their ends on a common clock."""
    open_: list[_Part] = []
    ranks: set[int] = set()  # of ``open_``: a search in it would make this quadratic in the number of ranks
    last = -np.inf
    for end, part in ends:
        if end - last > tolerance or part.rank in ranks:
            yield _at_once(open_, offsets)
            open_, ranks = [], set()
        open_.append(part)
        ranks.add(part.rank)
        last = end
    yield _at_once(open_, offsets)


def _at_once(parts: list[_Part], offsets: dict[int, float]) -> list[_Part]:
    """Leave out what had ended, up to the clocks' uncertainty, when the last rank came."""
    came = max((p.begin + offsets[p.rank] for p in parts), default=0.0)
    return [p for p in parts if p.end + offsets[p.rank] >= came]


def _is_given(ranks: Sequence[RankProfile], parts: list[_Part]) -> bool:
    """Return whether so many members of a collective's group are among the ranks that the last one can be.

    A group of which neither name nor size was recorded is that of all ranks of the job.
    """
    group = ranks[parts[0].rank].groups[parts[0].kind.group]
    world = 0 if group.name else max(ranks[p.rank].world_size for p in parts)
    size = max(group.size, len(group.members)) or world
    return len(parts) >= 0.5 * size  # of the members of a group: who of the others is late, a few of them cannot show


def _matches(
    ranks: Sequence[RankProfile], shared: list[list[_Part]], sampled: list[list[_Part]], num_disagreeing: int
) -> Matches:
    shared = sorted(map(sorted, shared), key=lambda parts: (min(p.end for p in parts), parts[0].rank))
    parts = [p for group in shared for p in group]
    match = np.repeat(np.arange(len(shared)), np.array([len(group) for group in shared], np.intp))
    first = np.flatnonzero(np.diff(match, prepend=-1))
    rank, end = (np.array([getattr(p, name) for p in parts], np.int64) for name in ("rank", "end"))
    groups = []
    for group in shared:
        members = tuple(ranks[p.rank].rank for p in group)
        known = ranks[group[0].rank].groups[group[0].kind.group]
        groups.append(known if known.members else replace(known, size=known.size or len(members), members=members))
    left_out = [p.rank for group in sampled for p in group]
    compared = {*rank.tolist(), *left_out}
    held = sum(len(ranks[i].collectives) for i in compared) - len(left_out)
    return Matches(
        rank=rank,
        row=np.array([p.row for p in parts], np.intp),
        match=match,
        first=first,
        kinds=tuple(group[0].kind for group in shared),
        groups=tuple(groups),
        residual_ns=_residual(rank, rank[first][match], end.astype(np.float64), end[first][match]),
        num_unmatched=held - len(parts),
        num_disagreeing=num_disagreeing,
        num_sampled=len(sampled),
        apart=tuple(i for i, p in enumerate(ranks) if len(p.collectives) and i not in compared),
    )


def _residual(rank: Rows, lead: Rows, end: Floats, lead_end: Ints) -> float:
    """Return the median distance of ends to those of the rank that the collective begins with, clocks laid over."""
    left = [np.zeros(0)]
    order = np.lexsort((rank, lead))
    begins = np.flatnonzero(np.diff(lead[order], prepend=-1) | np.diff(rank[order], prepend=-1))
    for mine in np.split(order, begins)[1:]:
        if lead[mine[0]] != rank[mine[0]]:
            apart, time = end[mine] - lead_end[mine], end[mine] - end[mine].mean()
            rest = apart - np.median(apart)
            if len(mine) >= 8:  # so many show the drift of two clocks, which grows evenly with time
                rest -= time * float((time * rest).sum() / max((time * time).sum(), 1.0))
            left.append(np.abs(rest))
    every = np.concatenate(left)
    return float(np.median(every)) if len(every) else 0.0

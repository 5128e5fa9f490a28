"""For whom ranks wait in collectives: who came last, or who made that one late by letting it wait in another group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.model.arrays import Floats, Ints, Rows
from diagnose.model.intervals import distinct, grouped
from diagnose.ranks.matches import Matches

__all__ = ["blamed"]

MIN_SHARE = 0.01  # of the waiting: ranks that came last for less of it are not followed, there are hundreds of them


def blamed(matches: Matches, waits: Ints, exposed: Floats, step: Ints, shape: tuple[int, int]) -> Floats:
    """Return what the others waited for each rank in each step, ns.

    ``step`` is the column of each part's step, ``shape`` how many ranks and steps there are. Where a rank comes last
    because it had waited in another group before, in the same step, what the others wait for it is for the rank that it
    had waited for: as far as it has waited longer for that one than they have.
    """
    num_ranks = shape[0]
    blame: Floats = np.zeros(shape)
    if not matches.num:
        return blame
    is_last = np.flatnonzero(waits == 0)
    last = matches.rank[is_last[grouped(matches.match[is_last]).first]]
    by_match = np.add.reduceat(exposed, matches.first)
    np.add.at(blame, (last, step[matches.first]), by_match)
    members = {group.members for group in matches.groups}
    if len(members) < 2:
        return blame
    followed = np.flatnonzero(blame.sum(axis=1) >= MIN_SHARE * blame.sum())
    column = np.full(num_ranks, -1)
    column[followed] = np.arange(len(followed))
    until = np.append(matches.first[1:], len(matches.rank))
    blame[:] = 0.0
    delayed = np.zeros((num_ranks, len(followed)))  # by whom each rank was made late in this step, ns
    now = np.full(num_ranks, -1)
    for match in _in_order(matches):
        parts = slice(int(matches.first[match]), int(until[match]))
        ranks, waited, culprit = matches.rank[parts], exposed[parts], int(last[match])
        other_step = ranks[now[ranks] != step[parts]]
        delayed[other_step], now[ranks] = 0.0, step[parts]
        more = np.maximum(delayed[culprit] - delayed[ranks], 0.0)
        passed = more * np.minimum(waited / np.maximum(more.sum(axis=1), 1.0), 1.0)[:, None]
        own = np.maximum(waited - passed.sum(axis=1), 0.0)
        blame[followed, step[parts.start]] += passed.sum(axis=0)
        blame[culprit, step[parts.start]] += own.sum()
        delayed[ranks] += passed
        if column[culprit] >= 0:
            delayed[ranks, column[culprit]] += own
    return blame


def _in_order(matches: Matches) -> Iterator[int]:
    """Yield the collectives so that each rank's follow each other as it recorded them, whatever the clocks show."""
    queues: list[Sequence[int]] = []
    for rank in range(int(matches.rank.max()) + 1):
        mine = np.flatnonzero(matches.rank == rank)
        queues.append(matches.match[mine[np.argsort(matches.row[mine], kind="stable")]].tolist())
    missing = np.diff(np.append(matches.first, len(matches.rank))).tolist()
    place = [0] * len(queues)
    done = np.zeros(matches.num, bool)
    ready = [rank for rank, queue in enumerate(queues) if queue]
    seen: set[tuple[int, int]] = set()
    for start in range(matches.num):
        while ready:
            rank = ready.pop()
            queue = queues[rank]
            while place[rank] < len(queue) and done[queue[place[rank]]]:
                place[rank] += 1
            if place[rank] == len(queue) or (rank, place[rank]) in seen:
                continue
            seen.add((rank, place[rank]))
            match = queue[place[rank]]
            missing[match] -= 1
            if not missing[match]:
                done[match] = True
                ready += _members(matches, match).tolist()
                yield match
        if not done[start]:  # ranks that recorded two collectives in different orders
            done[start] = True
            ready += _members(matches, start).tolist()
            yield start


def _members(matches: Matches, match: int) -> Rows:
    begin = int(matches.first[match])
    end = int(matches.first[match + 1]) if match + 1 < matches.num else len(matches.rank)
    return distinct(matches.rank[begin:end])

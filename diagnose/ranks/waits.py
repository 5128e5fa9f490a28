"""What each rank spends of a step on its own work, and what it waits for others in collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from diagnose.model.arrays import Floats, Ints, Rows
from diagnose.model.intervals import distinct, grouped
from diagnose.ranks.matching import Matches
from diagnose.ranks.profile import COMMUNICATION, RankProfile

MIN_LEVELLED_SHARE = 0.25  # … where it waits for so much of what it is ahead by, and not for members of a small group


@dataclass(frozen=True, slots=True)
class Times:
    """Own times on a grid of ranks and steps; NaN where a rank lacks the step, or recorded a part of it."""

    steps: Ints  # their numbers
    own: Floats  # [rank, step], ns
    host: Floats  # [rank, step], ns: what its host takes, waiting left out; 0 where that is not known
    ahead: Floats  # [rank, step], ns of ``own``: what the host takes longer than the device, but for waiting
    spent: Floats  # [rank, cause, step], ns
    tail: Floats  # [rank, cause], ns: behind the last collective of all, as no step's interval holds it
    causes: tuple[str, ...]
    begins: Floats  # by rank, ns: how much later than the others' median it begins the first step


@dataclass(frozen=True, slots=True)
class Waits:
    """What ranks wait for others in collectives. Parts are those of Matches."""

    of_part: Ints  # hidden or not
    exposed: Ints  # of it what nothing hides
    by_step: Floats  # [rank, step], exposed ns
    all_by_step: Floats  # [rank, step], hidden or not
    transfer: Floats  # [rank, step], what is no waiting of the time in collectives that nothing hides, ns
    first: (
        Floats  # by rank: in the first collectives of the window, up to the first wait that nothing hides; exposed ns
    )
    attributed: Floats  # [rank, step]: what the others waited for it to come, but for its late begin of the window, ns

    @property
    def total(self) -> float:
        """Return the exposed waiting of all ranks together, ns."""
        return float(self.exposed.sum())

    @property
    def attributed_ns(self) -> Floats:
        """Return by rank what the others waited for it to come, ns."""
        found: Floats = self.attributed.sum(axis=1)
        return found

    @property
    def first_share(self) -> float:
        """Return the share of it that lies in the first collective of the window."""
        return float(self.first.sum()) / self.total if self.total else 0.0


def times_of(ranks: Sequence[RankProfile]) -> Times:
    """Lay the own times of all ranks onto the steps that were recorded."""
    steps = distinct(*(p.step_number for p in ranks)) if ranks else np.zeros(0, np.int64)
    causes = tuple(dict.fromkeys(c for p in ranks for c in p.causes if c != COMMUNICATION))
    spent = np.full((len(ranks), len(causes), len(steps)), np.nan)
    tail = np.zeros((len(ranks), len(causes)))
    host = np.zeros((len(ranks), len(steps)))
    first = steps[0] if len(steps) else 0
    lead = np.full(len(ranks), np.nan)
    for i, p in enumerate(ranks):
        at = np.searchsorted(steps, p.step_number)
        spent[i][:, at] = 0.0
        host[i, at] = p.host_time if len(p.host_time) else 0
        for cause, row in zip(p.causes, p.spent, strict=True):
            if cause != COMMUNICATION:
                spent[i, causes.index(cause), at] = row[: p.num_steps]
                tail[i, causes.index(cause)] = row[-1]
        if p.num_steps and p.step_number[0] != first:
            spent[i, :, at[0]] = np.nan  # begins in the middle of the others' interval
        elif p.num_steps and len(p.collectives):
            lead[i] = p.bounds[0] - p.window[0]
        if p.is_cut and p.num_steps:
            spent[i, :, at[-1]] = np.nan
    begins = median_of_others(lead) - lead
    own = spent.sum(axis=1)
    return Times(steps, own, host, np.zeros_like(own), spent, tail, causes, np.nan_to_num(begins))


def with_hosts(times: Times, waits: Waits, roles: Sequence[int]) -> Times:
    """Return the own times where no step counts as shorter than its host takes, which did not wait for the device.

    Transfers that a host covers make no step longer. How much of them it covers, the rank of each role shows that has
    most time of its own, as it waits for nobody; on the others, transfers end waits that the host has come out of.
    Where one step was recorded, nothing shows whether what a host did in it is for that step or for its neighbours.
    """
    if len(times.steps) < 2:
        return times
    moves = np.zeros_like(times.own)
    for role in set(roles):
        mine = np.flatnonzero(np.array(roles) == role)
        latest = mine[np.nan_to_num(times.own[mine], nan=-1.0).argmax(axis=0)]
        moves[mine] = waits.transfer[latest, np.arange(times.own.shape[1])]
    ahead = np.maximum(times.host - times.own - moves, 0.0)
    return replace(times, own=times.own + ahead, ahead=ahead)


def waits_of(ranks: Sequence[RankProfile], matches: Matches, times: Times) -> Waits:
    """Return how long each rank waits in each collective: longer than who comes last is inside."""
    length = matches.column(ranks, "length")
    of_part = length - matches.least(length)[matches.match]
    covered, alone = matches.column(ranks, "covered"), matches.column(ranks, "alone")
    exposed = np.clip(of_part - covered, 0, alone)
    step, steps = matches.column(ranks, "step"), times.steps
    number = matches.values([p.step_number for p in ranks], step)
    at = np.searchsorted(steps, number)
    moves = np.maximum(alone - matches.column(ranks, "unlaunched") - exposed, 0)
    by_step, all_by_step, transfer = (np.zeros((len(ranks), len(steps))) for _ in range(3))
    for sums, parts in ((by_step, exposed), (all_by_step, of_part), (transfer, moves)):
        np.add.at(sums, (matches.rank, at), parts)
    in_first = np.flatnonzero(at == 0)
    first, echo = _late_begins(matches.rank[in_first], of_part[in_first], exposed[in_first], times.begins)
    rest = exposed.astype(np.float64)
    rest[in_first] -= echo
    attributed = blamed(matches, of_part, rest, at, by_step.shape)
    return Waits(of_part, exposed, by_step, all_by_step, transfer, first, attributed)


def _late_begins(rank: Rows, waits: Ints, exposed: Ints, begins: Floats) -> tuple[Floats, Floats]:
    """Return for each rank the waiting in which a late begin of another one ends, and what of each part is due to it.

    A wait that computation covers leaves a rank ahead; the first one that nothing covers lays all ranks level. Parts
    are those of the first step in the order of time.
    """
    first, echo = np.zeros(len(begins)), np.zeros(len(rank))
    ahead = begins.max() - begins if len(begins) else begins
    left = ahead.copy()
    for part, (i, waited, open_) in enumerate(zip(rank.tolist(), waits.tolist(), exposed.tolist(), strict=True)):
        # Of what a rank begins earlier than the last: with less left it has been made up for.
        if left[i] <= 0.05 * ahead[i]:
            continue
        echo[part] = min(float(open_), left[i])
        first[i] += open_
        # Of a wait: with so much of it exposed the rank is not ahead any more.
        is_level = waited >= MIN_LEVELLED_SHARE * left[i] and open_ >= 0.9 * waited
        left[i] = 0.0 if is_level else left[i] - echo[part]
    return first, echo


def roles_of(ranks: Sequence[RankProfile]) -> list[int]:
    """Return a number for each rank that those share that do the same: who exchange alike in groups of like sizes.

    Stages of a pipeline differ, ranks of a data parallel job do not. A rank that is alone in its role gets that of
    those who exchange the same kinds, whatever their sizes.
    """
    exact = [frozenset((k.name, k.shared_bytes, p.groups[k.group].size) for k in p.kinds) for p in ranks]
    rough = [frozenset((k.name, p.groups[k.group].size) for k in p.kinds) for p in ranks]
    counts, numbers = Counter(exact), dict[frozenset[tuple[object, ...]], int]()
    looks = [a if counts[a] > 1 else b for a, b in zip(exact, rough, strict=True)]
    return [numbers.setdefault(look, len(numbers)) for look in looks]


def equals_of(ranks: Sequence[RankProfile], late: int, others_late: Sequence[int]) -> list[int]:
    """Return the ranks of a late one's role that are not late themselves; all others where its role is its only."""
    roles = roles_of(ranks)
    others = [i for i in range(len(ranks)) if i != late and i not in others_late]
    return [i for i in others if roles[i] == roles[late]] or (others if roles.count(roles[late]) == 1 else [])


def median_of_others(values: Floats) -> Floats:
    """Return for each row of the first axis the median of all other rows; NaN rows count for nobody."""
    order = np.argsort(values, axis=0, kind="stable")  # NaN last
    place, num = np.argsort(order, axis=0, kind="stable"), (~np.isnan(values)).sum(axis=0)
    ranked = np.take_along_axis(values, order, axis=0)
    low, high = (
        np.take_along_axis(ranked, np.clip(middle + (place <= middle), 0, len(values) - 1), axis=0)
        for middle in ((num - 2) // 2, (num - 1) // 2)
    )
    found: Floats = np.where(np.isnan(values) | (num < 2), np.nan, (low + high) / 2)
    return found


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
    # Of the waiting: ranks that came last for less of it are not followed, there are hundreds of them.
    followed = np.flatnonzero(blame.sum(axis=1) >= 0.01 * blame.sum())
    column = np.full(num_ranks, -1)
    column[followed] = np.arange(len(followed))
    until = matches.until
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
    until = matches.until
    missing = (until - matches.first).tolist()
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
                ready += matches.rank[matches.first[match] : until[match]].tolist()
                yield match
        if not done[start]:  # ranks that recorded two collectives in different orders
            done[start] = True
            ready += matches.rank[matches.first[start] : until[start]].tolist()
            yield start

"""Who is late: a rank whose own time, up to the end of a step's last collective, exceeds that of its equals.

From the end of one step's last collective to the end of the next one's takes all ranks equally long. What of it a rank
does not spend in collectives is its own time; a rank with more of it than its equals makes the others wait for as long.
No common clock is needed, nor does it matter through which groups the waiting was handed on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.model.arrays import Floats, Ints, Rows
from diagnose.ranks.matching import Matches
from diagnose.ranks.profile import COMMUNICATION, RankProfile

__all__ = [
    "ALSO_LATE",
    "Lateness",
    "Times",
    "Waits",
    "lateness_of",
    "median_of_others",
    "roles_of",
    "times_of",
    "waits_of",
]

MIN_SHARE = 0.01  # of the step, by which a rank is late; ranks of one job differ by some tenths of a per cent
MIN_SHARE_OF_ONE_STEP = 0.05  # where one step was recorded: nothing shows what a rank's own times vary by
MIN_SIGMAS = 5.0  # of the ranks' spread, and of the rank's own from step to step: of 256 ranks one lies at 3 by chance
MIN_SIGMAS_OF_FEW = 3.0  # of the spread of two other ranks, which is a poor measure of it
MIN_BLAME_SHARE = 0.1  # of the waiting: ranks that less of it is for are not among those that take turns
MIN_STEPS_SHARE = 0.7  # of the steps in which the rank has to be late by half of what it is late by usually
MIN_GIVEN_SHARE = 0.5  # of the members of the groups: who of the others is late, a few of them cannot show
ALSO_LATE = 0.6  # of the latest rank's lateness: a rank of as much is late with it
MAX_LATE_SHARE = 0.34  # of the ranks: where more differ they are two kinds of ranks, and not some that are late
MIN_TURNS_SHARE = 0.05  # of the step, waited by the mean rank: with less nothing is said of ranks that take turns
MIN_BEGIN_SHARE = 0.25  # of all waiting, in the first collective of the window, for a late begin to be named
SPREAD = 1.4826  # median distance to standard deviation


@dataclass(frozen=True, slots=True)
class Times:
    """Own times on a grid of ranks and steps; NaN where a rank lacks the step, or recorded a part of it."""

    steps: Ints  # their numbers
    own: Floats  # [rank, step], ns
    spent: Floats  # [rank, cause, step], ns
    causes: tuple[str, ...]
    begins: Floats  # by rank, ns: how much later than the others' median it begins the first step


@dataclass(frozen=True, slots=True)
class Waits:
    """What ranks wait for others in collectives. Parts are those of Matches."""

    of_part: Ints  # hidden or not
    exposed: Ints  # of it what nothing hides
    by_step: Floats  # [rank, step], exposed ns
    first: Floats  # by rank: in the first collective of the window, exposed ns
    last: Rows  # of each collective: index of the rank that came last
    blame: Floats  # by rank: what the others waited for it to come, but for its late begin of the window, ns

    @property
    def total(self) -> float:
        """Return the exposed waiting of all ranks together, ns."""
        return float(self.exposed.sum())

    @property
    def first_share(self) -> float:
        """Return the share of it that lies in the first collective of the window."""
        return float(self.first.sum()) / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Lateness:
    """Who comes late, by how much; ranks are indices in the list of ranks."""

    excess: Floats  # [rank, step]: own time less the median of the others of its role, ns; NaN: not known
    late: tuple[int, ...] = ()  # the latest first; () where none is late in most steps
    late_ns: float = 0.0  # by which the latest is late in a step
    saved_ns: float = 0.0  # what a step is shorter if they come when the next latest does
    begins_late: int | None = None  # the rank for whose late begin the others wait in the first collective
    begins_late_ns: float = 0.0
    in_turns: bool = False  # waiting is there, for one rank in this step and for another one in the next
    taking_turns: tuple[int, ...] = ()  # who, the most often late first
    sigmas: float = 0.0


def times_of(ranks: Sequence[RankProfile]) -> Times:
    """Lay the own times of all ranks onto the steps that were recorded."""
    steps = np.unique(np.concatenate([p.step_number for p in ranks])) if ranks else np.zeros(0, np.int64)
    causes = tuple(dict.fromkeys(c for p in ranks for c in p.causes if c != COMMUNICATION))
    spent = np.full((len(ranks), len(causes), len(steps)), np.nan)
    first = steps[0] if len(steps) else 0
    lead = np.full(len(ranks), np.nan)
    for i, p in enumerate(ranks):
        at = np.searchsorted(steps, p.step_number)
        spent[i][:, at] = 0.0
        for cause, row in zip(p.causes, p.spent, strict=True):
            if cause != COMMUNICATION:
                spent[i, causes.index(cause), at] = row[: p.num_steps]
        if p.num_steps and p.step_number[0] != first:
            spent[i, :, at[0]] = np.nan  # begins in the middle of the others' interval
        elif p.num_steps and len(p.collectives):
            lead[i] = p.bounds[0] - p.window[0]
        if p.is_cut and p.num_steps:
            spent[i, :, at[-1]] = np.nan
    begins = median_of_others(lead) - lead
    return Times(steps, spent.sum(axis=1), spent, causes, np.nan_to_num(begins))


def waits_of(ranks: Sequence[RankProfile], matches: Matches, times: Times) -> Waits:
    """Return how long each rank waits in each collective: longer than who comes last is inside."""
    length = matches.column(ranks, "length")
    of_part = length - matches.least(length)[matches.match]
    covered, alone = matches.column(ranks, "covered"), matches.column(ranks, "alone")
    exposed = np.clip(of_part - covered, 0, alone)
    step, steps = matches.column(ranks, "step"), times.steps
    number = np.zeros(len(step), np.int64)
    for i, p in enumerate(ranks):
        mine = matches.rank == i
        number[mine] = p.step_number[step[mine]]
    by_step = np.zeros((len(ranks), len(steps)))
    np.add.at(by_step, (matches.rank, np.searchsorted(steps, number)), exposed)
    first = np.zeros(len(ranks))
    rest = exposed.astype(np.float64)
    _, firsts = np.unique(matches.rank, return_index=True)  # parts are sorted by time
    for part in firsts.tolist():
        if len(steps) and number[part] == steps[0]:
            rank = int(matches.rank[part])
            first[rank] = exposed[part]
            rest[part] -= np.clip(times.begins.max() - times.begins[rank], 0.0, rest[part])
    last, blame = _blame(matches, of_part, rest, len(ranks))
    return Waits(of_part, exposed, by_step, first, last, blame)


def _blame(matches: Matches, waits: Ints, exposed: Floats, num_ranks: int) -> tuple[Rows, Floats]:
    """Return who came last into each collective, and what the others waited for each rank."""
    if not matches.num:
        return np.zeros(0, np.intp), np.zeros(num_ranks)
    is_last = np.flatnonzero(waits == 0)
    _, at = np.unique(matches.match[is_last], return_index=True)
    last = matches.rank[is_last[at]]
    blame: Floats = np.bincount(last, np.add.reduceat(exposed, matches.first), minlength=num_ranks).astype(np.float64)
    return last, blame


def roles_of(ranks: Sequence[RankProfile]) -> list[int]:
    """Return a number for each rank that those share that do the same: who exchange alike in groups of like sizes.

    Stages of a pipeline differ, ranks of a data parallel job do not. A rank that is alone in its role gets that of
    those who exchange the same kinds, whatever their sizes.
    """
    exact = [frozenset((k.name, _size(k.name, k.num_bytes), p.groups[k.group].size) for k in p.kinds) for p in ranks]
    rough = [frozenset((k.name, p.groups[k.group].size) for k in p.kinds) for p in ranks]
    counts: dict[frozenset[tuple[object, ...]], int] = defaultdict(int)
    for look in exact:
        counts[look] += 1
    numbers: dict[frozenset[tuple[object, ...]], int] = {}
    looks = [a if counts[a] > 1 else b for a, b in zip(exact, rough, strict=True)]
    return [numbers.setdefault(look, len(numbers)) for look in looks]


def _size(name: str, num_bytes: int) -> int:
    return -1 if name in ("all_to_all", "send_recv") else num_bytes


def median_of_others(values: Floats) -> Floats:
    """Return for each row of the first axis the median of all other rows; NaN rows count for nobody."""
    if values.ndim > 1:
        flat = values.reshape(len(values), -1)
        each = [median_of_others(column) for column in flat.T]
        return np.array(each).T.reshape(values.shape) if each else values
    order = np.argsort(values, kind="stable")  # NaN last
    num = int((~np.isnan(values)).sum())
    found = np.full(len(values), np.nan)
    if num < 2:
        return found
    sorted_ = values[order]
    place = np.empty(len(values), np.intp)
    place[order] = np.arange(len(values))
    rest = num - 1
    for low in {(rest - 1) // 2, rest // 2}:
        at = np.where(place <= low, low + 1, low)
        found = np.where(np.isnan(found), 0.0, found) + sorted_[np.minimum(at, num - 1)]
    found /= 1 if rest % 2 else 2
    lone = np.isnan(values)
    found[lone] = np.nan
    return found


def lateness_of(ranks: Sequence[RankProfile], times: Times, waits: Waits, matches: Matches) -> Lateness:
    """Return who is late: the same rank in most steps, by more than ranks and steps differ anyway."""
    roles = roles_of(ranks)
    excess = _excess(times.own, roles)
    step_ns = float(np.median([p.step_ns for p in ranks]))
    nobody = Lateness(excess)
    if not matches.num or not _enough_given(ranks, matches):
        return nobody
    begins_late, begins_ns = _begins_late(times, waits, step_ns)
    usual = _median_steps(excess)
    order = [i for i in np.argsort(-np.nan_to_num(usual, nan=-np.inf)).tolist() if not np.isnan(usual[i])]
    found = Lateness(excess, begins_late=begins_late, begins_late_ns=begins_ns)
    if not order:
        return found
    worst = order[0]
    late = [i for i in order if usual[i] >= ALSO_LATE * usual[worst]]
    equals = [i for i in order if roles[i] == roles[worst] and i not in late]
    sigmas = _sigmas(excess[worst], _median_steps(times.own[equals]))
    saved = _saved(times.own, late, equals)
    least_ns = (MIN_SHARE if len(times.steps) > 1 else MIN_SHARE_OF_ONE_STEP) * step_ns
    is_late = (
        usual[worst] >= least_ns
        and sigmas >= MIN_SIGMAS
        and len(late) <= max(1, MAX_LATE_SHARE * len(ranks))
        and _in_most_steps(excess[worst], usual[worst])
        and _others_wait(waits, times, late) >= least_ns / 2
    )
    if is_late:
        return Lateness(excess, tuple(late), float(usual[worst]), saved, begins_late, begins_ns, sigmas=float(sigmas))
    turns = _taking_turns(waits)
    mean_ns = float(waits.blame.sum()) / max(len(ranks) * len(times.steps), 1)
    return Lateness(
        excess,
        begins_late=begins_late,
        begins_late_ns=begins_ns,
        in_turns=len(turns) > 1 and mean_ns >= MIN_TURNS_SHARE * step_ns,
        taking_turns=turns,
        saved_ns=mean_ns,
    )


def _excess(own: Floats, roles: Sequence[int]) -> Floats:
    excess = np.full(own.shape, np.nan)
    for role in set(roles):
        mine = np.flatnonzero(np.array(roles) == role)
        excess[mine] = own[mine] - median_of_others(own[mine])
    return excess


def _enough_given(ranks: Sequence[RankProfile], matches: Matches) -> bool:
    """Return whether most members of the groups are among the given ranks, so that the last one can be."""
    given = {p.rank for p in ranks}
    sizes = [(len(given & set(g.members)), max(g.size, len(g.members))) for g in matches.groups]
    known, size = sum(a for a, _ in sizes), sum(b for _, b in sizes)
    world = max((p.world_size for p in ranks), default=1)
    unnamed = all(not g.name for g in matches.groups)
    if unnamed and len(ranks) < MIN_GIVEN_SHARE * world:
        return False
    return known >= MIN_GIVEN_SHARE * size


def _median_steps(excess: Floats) -> Floats:
    usual = np.full(len(excess), np.nan)
    known = ~np.isnan(excess).all(axis=1)
    if known.any():
        usual[known] = np.nanmedian(excess[known], axis=1)
    return usual


def _sigmas(excess: Floats, equals: Floats) -> float:
    """Return the lateness in units of what ``equals`` differ by anyway and of what the rank's own varies by."""
    spread = SPREAD * float(np.median(np.abs(equals - np.median(equals)))) if len(equals) > 2 else 0.0
    if len(equals) == 2:
        spread = abs(float(equals[0] - equals[1])) / 2 * MIN_SIGMAS_OF_FEW / MIN_SIGMAS
    own = excess[~np.isnan(excess)]
    varies = 0.0
    if len(own) > 2:
        varies = SPREAD * float(np.median(np.abs(own - np.median(own)))) * 1.2533 / np.sqrt(len(own))
    elif len(own) == 2:
        varies = abs(float(own[0] - own[1])) / 2
    return float(np.median(own)) / max(spread, varies, 1.0) if len(own) else 0.0


def _in_most_steps(excess: Floats, usual: float) -> bool:
    known = excess[~np.isnan(excess)]
    return bool((known >= usual / 2).mean() >= MIN_STEPS_SHARE)


def _others_wait(waits: Waits, times: Times, late: Sequence[int]) -> float:
    """Return the median exposed waiting of the other ranks in a step, the late begin left out."""
    by_rank = waits.by_step.sum(axis=1) - np.minimum(waits.first, np.maximum(times.begins.max() - times.begins, 0.0))
    others = np.array([by_rank[i] for i in range(len(by_rank)) if i not in late])
    return float(np.median(others)) / max(len(times.steps), 1) if len(others) else 0.0


def _saved(own: Floats, late: Sequence[int], equals: Sequence[int]) -> float:
    """Return what a step is shorter on average if the late ones came when the next latest of their role does."""
    if not equals:
        return 0.0
    known = ~np.isnan(own[list(late)]).all(axis=0) & ~np.isnan(own[list(equals)]).all(axis=0)
    if not known.any():
        return 0.0
    latest = np.nanmax(own[list(late)][:, known], axis=0)
    following = np.nanmax(own[list(equals)][:, known], axis=0)
    return float(np.maximum(latest - following, 0.0).mean())


def _taking_turns(waits: Waits) -> tuple[int, ...]:
    """Return the ranks for which the others wait, who for most first; the first collective does not count."""
    order = np.argsort(-waits.blame, kind="stable").tolist()
    least = MIN_BLAME_SHARE * float(waits.blame.sum())
    return tuple(i for n, i in enumerate(order) if waits.blame[i] > 0 and (waits.blame[i] >= least or n < 2))


def _begins_late(times: Times, waits: Waits, step_ns: float) -> tuple[int | None, float]:
    """Return the rank that begins the window late enough to account for the waiting in its first collective."""
    if not len(times.begins) or waits.first_share < MIN_BEGIN_SHARE:
        return None, 0.0
    latest = int(times.begins.argmax())
    others = np.delete(waits.first, latest)
    late_by = float(times.begins[latest])
    waited = float(np.median(others)) if len(others) else 0.0
    if late_by < MIN_SHARE * step_ns or late_by < waited / 2:
        return None, 0.0
    return latest, late_by

"""Who is late: the rank for which the others wait, as its own time up to a step's last collective exceeds its equals'.

From the end of one step's last collective to the end of the next one's takes all ranks equally long. What of it a rank
does not spend in collectives is its own time; a rank with more of it than its equals makes the others wait for as long.
No common clock is needed, nor does it matter through which groups the waiting was handed on. Where own times vary too
much to show it, or a rank has no equals, the waiting itself does: most of it is for one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Literal

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.intervals import among, distinct, quantiles
from diagnose.model.limits import FEW, PREVAILS
from diagnose.ranks.matching import Matches
from diagnose.ranks.profile import RankProfile
from diagnose.ranks.speeds import MIN_SURELY_SLOWER, slower
from diagnose.ranks.waits import Times, Waits, median_of_others, roles_of
from diagnose.tables.thresholds import THRESHOLDS

_WHAT: tuple[Literal["kernels", "operators"], ...] = ("kernels", "operators")
MIN_SIGMAS = 5.0  # of the ranks' spread, and of the rank's own from step to step: of 256 ranks one lies at 3 by chance
MAX_BY_CHANCE = 0.002  # that one of the ranks has so many such steps
FEW_STEPS_FACTOR = 3.0  # 3 units are worth 6 at 3 degrees of freedom, 3.5 at 20: as Student's t at 1 in 100
# Of the waiting, for one rank, that makes it the late one: if it is waited for in more steps than by chance, and in
# however few. Hosts that vary reach 0.93 of two ranks (simulated jobs of two ranks that nothing is planted in).
MIN_AWAITED_SHARE, MIN_SURELY_AWAITED = 2 / 3, 0.95
MAX_CHANCE_OF_MUCH = 0.02  # that one of equal ranks is waited for in so many steps, where they wait for long
MIN_WAITED_SHARE = 0.25  # of the lateness, that the others wait, hidden or not: else communication covers it
ALSO_LATE = 0.6  # of the latest rank's lateness: a rank of as much is late with it
MAX_LATE_RANKS_SHARE = 0.34  # of the ranks: where more differ they are two kinds of ranks, and not some that are late
DEVIATION_OF_MEDIAN = 1.4826  # median distance to standard deviation
SMALL_SAMPLE_FACTOR = (
    18.0  # 5 units are worth 15 at 3 degrees of freedom, 8.6 at 5, 5.2 at 20: as Student's t at 1 in 10,000
)


@dataclass(frozen=True, slots=True)
class Lateness:
    """Who comes late, by how much; ranks are indices in the list of ranks."""

    excess: Floats  # [rank, step]: own time less the median of the others of its role, ns; NaN: not known
    late: tuple[int, ...] = ()  # the latest first
    num_late: int = 0  # steps in which the latest is late
    late_ns: float = 0.0  # by which the latest is late in a step
    saved_ns: float = 0.0  # what a step is shorter if they come when the next latest does
    begins_late: int | None = None  # the rank for whose late begin the others wait in the first collective
    begins_late_ns: float = 0.0
    in_turns: bool = False  # waiting is there, for one rank in this step and for another one in the next
    taking_turns: tuple[int, ...] = ()  # who, the most often late first
    sigmas: float = 0.0


def lateness_of(
    ranks: Sequence[RankProfile], times: Times, waits: Waits, matches: Matches, *, same_links: bool = True
) -> Lateness:
    """Return who is late: by more than ranks and steps differ anyway, or for whom the others wait most.

    Without ``same_links`` a group of ranks transfers more slowly than others, and who waits for it shows nobody late.
    """
    roles = np.array(roles_of(ranks))
    excess = np.full(times.own.shape, np.nan)
    for role in set(roles.tolist()):
        excess[roles == role] = times.own[roles == role] - median_of_others(times.own[roles == role])
    step_ns = float(np.median([p.step_ns for p in ranks]))
    if not matches.num:
        return Lateness(np.full_like(excess, np.nan))
    usual = _median_steps(excess)
    order = [i for i in np.argsort(-np.nan_to_num(usual, nan=-np.inf)).tolist() if not np.isnan(usual[i])]
    awaited = _awaited(waits, matches, step_ns) if same_links else None
    found = _in_turns(times, waits, excess, step_ns)
    worst = order[0] if order else 0
    late = [i for i in order if usual[i] >= ALSO_LATE * usual[worst]]
    if late and (awaited is None or awaited in late):
        equals = [i for i in order if roles[i] == roles[worst] and i not in late]
        sigmas = _sigmas(excess[worst], excess[[worst, *equals]], _median_steps(times.own[equals]))
        waited = _others_wait(waits, matches, late)
        # Where one step was recorded nothing shows what a rank's own times vary by.
        least_ns = (THRESHOLDS.naming_share if len(times.steps) > 1 else 0.05) * step_ns
        each_ns = max(_shows_by_itself(excess, times.own, equals), least_ns)
        is_slower = any(slower(ranks, what, worst, equals)[0] >= MIN_SURELY_SLOWER for what in _WHAT if equals)
        known, half_ns = excess[worst][~np.isnan(excess[worst])], usual[worst] / 2
        # More steps show by themselves that a rank is late than would by chance, by whatever they vary: of the steps of
        # a rank that is not late one in twenty lies beyond it, as hosts have rare long pauses.
        by_chance = _chance(int((known >= each_ns).sum()), len(known), 0.05) * len(excess)
        of_most = least_ns if is_slower else min(half_ns, each_ns)
        if (
            usual[worst] >= least_ns
            and (is_slower or sigmas >= MIN_SIGMAS or by_chance <= MAX_BY_CHANCE)
            and len(late) <= max(1, MAX_LATE_RANKS_SHARE * len(ranks))
            # Of the steps: by half of what is usual, by what shows it, or, where calls show it, at all.
            and (known >= of_most).mean() >= PREVAILS
            and waited >= MIN_WAITED_SHARE * usual[worst]
        ):
            saved = 0.0  # on average, if the late ones came when the next latest of their role does
            if equals:
                both = ~np.isnan(times.own[late]).all(axis=0) & ~np.isnan(times.own[equals]).all(axis=0)
                latest, following = (np.nanmax(times.own[who][:, both], axis=0) for who in (late, equals))
                saved = float(np.maximum(latest - following, 0.0).mean()) if both.any() else 0.0
            return replace(
                found,
                late=tuple(late),
                num_late=int((known >= min(half_ns, least_ns)).sum()),
                late_ns=float(usual[worst]),
                saved_ns=min(saved, waited),
                in_turns=False,
                taking_turns=(),
                sigmas=float(sigmas),
            )
    return found if awaited is None else _by_waiting(found, waits, awaited, step_ns)


def _in_turns(times: Times, waits: Waits, excess: Floats, step_ns: float) -> Lateness:
    """Return who is waited for if no rank is late: some in turns, where they are waited for long enough.

    Ranks that less than a tenth of the waiting is for are not among them. The first collective does not count; for whom
    ranks wait there is named by itself, if a quarter of all waiting is there and the rank begins the window late enough
    to account for it: recordings of one job begin some tenths of a millisecond apart.
    """
    of_rank = waits.attributed_ns
    order = np.argsort(-of_rank, kind="stable").tolist()
    least = 0.1 * float(of_rank.sum())
    turns = tuple(i for n, i in enumerate(order) if of_rank[i] > 0 and (of_rank[i] >= least or n < 2))
    mean_ns = float(waits.attributed.mean()) if waits.attributed.size else 0.0
    # Of the step, waited by the mean rank: with less it may be what own times vary by.
    is_much = len(turns) > 1 and mean_ns >= FEW * step_ns
    latest = int(times.begins.argmax())
    late_by, waited = float(times.begins[latest]), float(np.median(np.delete(waits.first, latest)))
    begins_late = waits.first_share >= 0.25 and late_by >= 0.05 * step_ns and late_by >= waited / 2
    return Lateness(
        excess,
        in_turns=is_much,
        taking_turns=turns,
        saved_ns=mean_ns,
        begins_late=latest if begins_late else None,
        begins_late_ns=late_by if begins_late else 0.0,
    )


def _awaited(waits: Waits, matches: Matches, step_ns: float) -> int | None:
    """Return the rank for which the others wait, None where that is no single one, or they hardly wait.

    Little waiting shows it if the rank is waited for most in more steps than one of equal ranks would be by chance.
    Stages of a pipeline wait for each other by design.
    """
    waited = waits.attributed
    if any(kind.purpose == "pipeline" for kind in matches.kinds) or not waited.sum():
        return None
    worst = int(waits.attributed_ns.argmax())
    share, mean_ns = float(waits.attributed_ns[worst] / waited.sum()), float(waited.mean())
    most = waited.argmax(axis=0)[waited.sum(axis=0) > 0]
    by_chance = len(waited) * _chance(int((most == worst).sum()), len(most), 1 / len(waited))
    is_long = mean_ns >= FEW * step_ns
    is_steady = by_chance <= (MAX_CHANCE_OF_MUCH if is_long else MAX_BY_CHANCE) and share >= MIN_AWAITED_SHARE
    is_late = is_steady or (is_long and share >= MIN_SURELY_AWAITED)
    return worst if is_late and mean_ns >= THRESHOLDS.naming_share * step_ns else None


def _by_waiting(found: Lateness, waits: Waits, late: int, step_ns: float) -> Lateness:
    """Return the rank as late for which the others wait: by what each of them waits for it."""
    others = np.flatnonzero(waits.all_by_step.sum(axis=1) > 0)
    others = others[others != late]
    each = waits.attributed[late] / max(len(others), 1)
    excess = found.excess.copy()
    excess[late] = np.fmax(excess[late], each)
    saved = np.minimum(each, waits.by_step[others].min(axis=0, initial=np.inf))
    return replace(
        found,
        excess=excess,
        late=(late,),
        num_late=int((each >= THRESHOLDS.naming_share * step_ns).sum()),
        late_ns=float(each.mean()),
        saved_ns=float(saved.mean()),
        in_turns=False,
        taking_turns=(),
    )


def _median_steps(excess: Floats) -> Floats:
    usual = np.full(len(excess), np.nan)
    known = ~np.isnan(excess).all(axis=1)
    if known.any():
        usual[known] = np.nanmedian(excess[known], axis=1)
    return usual


def _sigmas(excess: Floats, of_role: Floats, equals: Floats) -> float:
    """Return the lateness in units of what ``equals`` differ by anyway and of what varies from step to step.

    How much varies is uncertain itself where there are few ranks and steps: 5 of its units are then worth fewer.
    """
    spread = DEVIATION_OF_MEDIAN * float(np.median(np.abs(equals - np.median(equals)))) if len(equals) > 2 else 0.0
    # Of so many ranks the tail counts too: nine in ten of normal ones lie within 1.645 deviations.
    if len(equals) >= 8:
        spread = max(spread, quantiles(np.abs(equals - np.median(equals)), 0.9)[0] / 1.645)
    if len(equals) == 2:
        # Of the spread of two other ranks, which is a poor measure of it.
        spread = abs(float(equals[0] - equals[1])) / 2 * 3.0 / MIN_SIGMAS
    own = excess[~np.isnan(excess)]
    varies, num = 0.0, len(own)
    if num > 1:
        known = of_role[:, ~np.isnan(excess)]
        off = np.abs(known - np.nanmedian(known, axis=1, keepdims=True))
        deviation = max(float(np.nanmedian(off)), float(np.median(np.abs(own - np.median(own)))))
        freedom = (num - 1) * max(len(of_role) - 1, 1)
        unsure = 1 + SMALL_SAMPLE_FACTOR / freedom**2
        # Standard error of a median, by that of a mean.
        varies = DEVIATION_OF_MEDIAN * deviation * 1.2533 / np.sqrt(num - 1) * unsure
    return float(np.median(own)) / max(spread, varies, 1.0) if num else 0.0


def _shows_by_itself(excess: Floats, own: Floats, equals: Sequence[int]) -> float:
    """Return by how much a rank has to exceed its equals in one step for that step to show it; inf: not known."""
    known = ~np.isnan(own[list(equals)]).all(axis=0)
    freedom = (int(known.sum()) - 1) * len(equals)
    if freedom < 3:  # of steps and equals: fewer do not show what they vary by
        return float(np.inf)
    if len(equals) > 2:
        spread = float(np.nanmedian(np.abs(excess[list(equals)])))
    else:  # of two or three ranks, the excess of one is the lack of the other
        mine = own[list(equals)][:, known]
        off = np.nanmedian(np.abs(mine - np.nanmedian(mine, axis=1, keepdims=True)), axis=1)
        spread = float(np.sqrt(2) * np.nanmax(off))
    # Of what equals' steps vary by: steps beyond it show by themselves that a rank is late.
    return 3.0 * DEVIATION_OF_MEDIAN * spread * (1 + FEW_STEPS_FACTOR / freedom)


def _chance(least: int, num: int, probability: float) -> float:
    """Return how likely at least so many of a number of independent events are."""
    return sum(comb(num, k) * probability**k * (1 - probability) ** (num - k) for k in range(least, num + 1))


def _others_wait(waits: Waits, matches: Matches, late: Sequence[int]) -> float:
    """Return the median waiting of the ranks that exchange with the late ones in a step, hidden or not.

    Where collectives queue up behind each other, a wait that computation hides delays all that follow. Ranks of other
    groups need not wait: those of another stage, or of another replica until the step's end.
    """
    theirs = np.flatnonzero(np.bincount(matches.match[among(matches.rank, late)], minlength=matches.num))
    others = distinct(matches.rank[among(matches.match, theirs)])
    others = others[~among(others, late)]
    return float(np.median(np.median(waits.all_by_step[others], axis=1))) if len(others) else 0.0

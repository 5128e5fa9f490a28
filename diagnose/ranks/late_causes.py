"""Why a rank is late: what it spends more time on than its equals do, the largest difference first.

A rank's own largest cost is no reason as long as the others have it too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.limits import MAJORITY
from diagnose.model.locations import Where
from diagnose.ranks.lateness import ALSO_LATE, Lateness
from diagnose.ranks.profile import PHASES, CauseTraits, RankProfile
from diagnose.ranks.sizes import make_as_much
from diagnose.ranks.speeds import (
    MAX_COUNT_APART,
    MIN_SLOWER,
    MIN_SURELY_SLOWER,
    input_ratio,
    slower,
    slower_kernel,
)
from diagnose.ranks.waits import Times, equals_of, median_of_others

NO_CORE = "no-core"


@dataclass(frozen=True, slots=True)
class Reason:
    """What the lateness consists of.

    ``cause`` is a rule of idle time, a phase of computing, `slower-device`, `slower-host`, `slower-rank` where both
    are, `slower-kernel` where one kernel is, `more-work`, `no-core`, or "" where no recorded cause explains it.
    """

    cause: str = ""
    more_ns: float = 0.0  # of it a step, than on the others
    share: float = 0.0  # of the lateness
    ratio: float = 1.0  # by which everything is slower, or one kernel, or inputs are larger
    kernel: str = ""  # the one that is
    clock_mhz: tuple[float, float] = (0.0, 0.0)  # of the late rank and the others, where both were recorded
    differences: dict[str, float] = field(default_factory=dict)  # cause: ns a step more than the others, largest first
    ready_shares: tuple[float, float] = (0.0, 0.0)  # of the late rank and the others: runnable without a core
    where: tuple[Where, ...] = ()  # the lines on which the late rank spends more of it, the largest difference first


class _Difference(NamedTuple):
    """What a late rank spends more than its equals do."""

    ranks: Sequence[RankProfile]
    late: int
    equals: Sequence[int]
    by_cause: dict[str, float]  # ns a step, the largest first
    late_ns: float
    traits: CauseTraits
    is_equal: bool = False  # in what the lines of the data flow make

    def sum_of(self, causes: Collection[str]) -> float:
        """Return what some causes make of it."""
        return sum(ns for cause, ns in self.by_cause.items() if cause in causes)

    def is_most(self, more_ns: float) -> bool:
        """Return whether so much explains the lateness: with less, most of it is left to explain."""
        return more_ns >= MAJORITY * self.late_ns

    def slower(self, what: Literal["kernels", "operators"]) -> tuple[float, bool]:
        """Return by how much everything takes longer, and if the rank does more."""
        ratio, more_work = slower(self.ranks, what, self.late, self.equals)
        return ratio, more_work and not self.is_equal

    def reason(self, cause: str, more_ns: float, ratio: float = 1.0, kernel: str = "") -> Reason:
        """Return a cause as the reason."""
        share = min(more_ns / self.late_ns, 1.0)
        return Reason(cause, more_ns, share, ratio, kernel, differences=self.by_cause)


def reason_of(ranks: Sequence[RankProfile], times: Times, lateness: Lateness, traits: CauseTraits) -> Reason:
    """Return why the latest rank is late."""
    late, own = lateness.late[0], times.own
    equals = equals_of(ranks, late, lateness.late)
    if not equals:
        return Reason()
    known = ~np.isnan(own[late]) & ~np.isnan(own[equals]).all(axis=0)  # steps that an equal recorded too
    if not known.any():
        return Reason()
    others = np.nanmedian(times.spent[equals][:, :, known], axis=0)
    more = (times.spent[late][:, known] - others).mean(axis=1)
    if known[0] and not any(ranks[i].is_cut for i in (late, *equals)):
        # The first interval begins with the window, and lacks what lies behind the last collective of the step before.
        more += (times.tail[late] - np.median(times.tail[equals], axis=0)) / known.sum()
    ahead_ns = float((np.nanmedian(times.ahead[equals][:, known], axis=0) - times.ahead[late][known]).mean())
    # What the equals' hosts take as well, only ahead of their devices, which wait, is no difference.
    of_host = (more > 0) & np.array([cause not in PHASES for cause in times.causes], bool)
    more[of_host] *= 1 - np.clip(ahead_ns / max(float(more[of_host].sum()), 1.0), 0.0, 1.0)
    is_equal = make_as_much([ranks[late], *(ranks[i] for i in equals)])
    d = _Difference(ranks, late, equals, _sorted(times.causes, more), max(float(more.sum()), 1.0), traits, is_equal)
    reason = _of_computing(d) or _of_host(d)
    # The others' hosts are ahead: what these do there, no cause of idle time shows. Loading that all hosts do is then
    # seen on the late rank only. Where its operators take longer, all of the host's difference is its pace's.
    if 2 * ahead_ns >= d.late_ns and ranks[late].has_device:
        ratio, _ = d.slower("operators")
        hosting = d.sum_of(d.by_cause.keys() - {*PHASES, traits.copies})
        if d.is_most(hosting) and (ratio >= MIN_SURELY_SLOWER or reason.cause == "slower-host"):
            reason = d.reason("slower-host", hosting, ratio)
    ready = (ranks[late].ready_share, float(np.median([ranks[i].ready_share for i in equals])))
    # On cores that all ranks lack, who has more to do lacks them for longer: that is no reason of its own.
    work = float(np.nanmean(own[late][known])), float(np.nanmean(own[equals][:, known]))
    longer = 1.0 if is_equal else work[0] / max(work[1], 1.0)
    no_core_ns = (ready[0] - ready[1] * longer) * ranks[late].step_ns
    if d.is_most(no_core_ns):  # whatever its thread did then takes no longer by itself
        return replace(d.reason(NO_CORE, no_core_ns), ready_shares=ready)
    on_device = reason.cause in ("more-work", "slower-device", "slower-rank", "slower-kernel")
    causes = (reason.cause,) if reason.cause in d.by_cause else PHASES if on_device else d.by_cause
    return replace(reason, where=_lines_with_more(ranks, late, equals, causes), ready_shares=ready)


def reason_of_turns(times: Times, lateness: Lateness, traits: CauseTraits) -> Reason:
    """Return what whichever ranks are late in a step have more of in it."""
    excess = lateness.excess
    more = times.spent - median_of_others(times.spent)
    summed, all_ns = np.zeros(len(times.causes)), 0.0
    for step, column in enumerate(np.nan_to_num(excess).T):
        if column.max() > 0:
            latest = np.flatnonzero(column >= ALSO_LATE * column.max())
            summed += np.nan_to_num(more[latest, :, step]).mean(axis=0)
            all_ns += float(column[latest].mean())
    num = excess.shape[1]
    by_cause = _sorted(times.causes, summed / num)
    return _largest(_Difference((), 0, (), by_cause, all_ns / num, traits)) if all_ns > 0 else Reason()


def _sorted(causes: Sequence[str], more: Floats) -> dict[str, float]:
    order = np.argsort(-more, kind="stable").tolist()
    return {causes[i]: float(more[i]) for i in order if more[i]}


def _largest(d: _Difference) -> Reason:
    cause, ns = next(iter(d.by_cause.items()), ("", 0.0))
    return d.reason(cause, ns) if cause not in d.traits.unknown and d.is_most(ns) else Reason(differences=d.by_cause)


def _of_host(d: _Difference) -> Reason:
    """Return the cause that explains the difference, or that everything on the host takes longer."""
    largest, hosting = _largest(d), d.sum_of(d.traits.host)
    if d.is_most(hosting) and largest.cause in ("", *d.traits.operators):
        ratio, more_work = d.slower("operators")
        if more_work:
            return d.reason("more-work", hosting)
        if ratio >= MIN_SLOWER:
            return d.reason("slower-host", hosting, ratio)
    return largest


def _of_computing(d: _Difference) -> Reason | None:
    """Return what makes computing longer where that is most of the difference: all, more of it, one kernel, a phase."""
    ranks, late, equals = d.ranks, d.late, d.equals
    phases = {phase: max(d.by_cause.get(phase, 0.0), 0.0) for phase in PHASES}
    computing = sum(phases.values())
    if not d.is_most(computing):
        return None
    ratio, more_work = d.slower("kernels" if ranks[late].has_device else "operators")
    inputs = input_ratio(ranks, late, equals)
    # Of what everything takes longer, that inputs are larger: with less a machine is slower.
    are_larger = not d.is_equal and inputs > 1 + MAX_COUNT_APART and inputs - 1 >= 0.5 * (ratio - 1)
    if more_work or are_larger:
        return d.reason("more-work", computing, inputs if are_larger else 1.0)
    if ratio >= MIN_SLOWER:
        cause = "slower-host"  # which computes without a device
        if ranks[late].has_device:  # hosts vary by more than devices do
            cause = "slower-rank" if d.slower("operators")[0] >= MIN_SURELY_SLOWER else "slower-device"
        clocks = (ranks[late].clock_mhz, float(np.median([ranks[i].clock_mhz for i in equals])))
        return replace(d.reason(cause, computing, ratio), clock_mhz=clocks if min(clocks) > 0 else (0.0, 0.0))
    name, more_ns, ratio = slower_kernel(ranks, late, equals)
    if d.is_most(more_ns):
        return d.reason("slower-kernel", more_ns, ratio, name)
    phase = max(phases, key=lambda p: phases[p])
    return d.reason(phase, phases[phase]) if d.is_most(phases[phase]) else None


def _lines_with_more(
    ranks: Sequence[RankProfile], late: int, equals: Sequence[int], causes: Collection[str]
) -> tuple[Where, ...]:
    """Return the lines on which the late rank spends more than the median of its equals, the largest difference first.

    Only time of these causes counts. Differences below a tenth of the largest are what samples differ by anyway.
    """

    def spent(rank: RankProfile) -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], float] = defaultdict(float)
        for each in rank.lines:
            found[each.file, each.line] += each.spent_ns if each.cause in causes else 0.0
        return found

    known, own = [spent(ranks[i]) for i in equals], spent(ranks[late])
    more = {place: ns - float(np.median([lines.get(place, 0.0) for lines in known])) for place, ns in own.items()}
    order = sorted(more, key=lambda place: -more[place])[:3]
    named = {(each.file, each.line): each for each in ranks[late].lines}
    return tuple(
        Where(*place, named[place].function, code=named[place].code or None)
        for place in order
        if more[place] > 0 and more[place] >= more[order[0]] / 10
    )

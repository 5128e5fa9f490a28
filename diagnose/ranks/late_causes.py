"""Why a rank is late: what it spends more time on than its equals do, the largest difference first.

A rank's own largest cost is no reason as long as the others have it too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.locations import Where
from diagnose.ranks.lateness import ALSO_LATE, Lateness
from diagnose.ranks.profile import PHASES, CauseTraits, RankProfile
from diagnose.ranks.speeds import (
    MAX_COUNT_APART,
    MIN_SLOWER,
    MIN_SURELY_SLOWER,
    input_ratio,
    slower,
    slower_kernel,
)
from diagnose.ranks.waits import Times, equals_of, median_of_others

__all__ = ["MIN_REASON_SHARE", "Reason", "reason_of", "reason_of_turns"]

MIN_LED_SHARE = 0.5  # of the lateness, by which the others' hosts are further ahead of their devices
MIN_INPUT_SHARE = 0.5  # of what everything takes longer, that inputs are larger: with less a machine is slower
MIN_REASON_SHARE = 0.5  # of the lateness: with less, most of it is left to explain


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


def reason_of(ranks: Sequence[RankProfile], times: Times, lateness: Lateness, traits: CauseTraits) -> Reason:
    """Return why the latest rank is late."""
    late = lateness.late[0]
    equals = equals_of(ranks, late, lateness.late)
    if not equals:
        return Reason()
    own = times.own
    known = ~np.isnan(own[late]) & ~np.isnan(own[equals]).all(axis=0)  # steps that an equal recorded too
    if not known.any():
        return Reason()
    others = np.nanmedian(times.spent[equals][:, :, known], axis=0)
    more = (times.spent[late][:, known] - others).mean(axis=1)
    if known[0] and not any(ranks[i].is_cut for i in (late, *equals)):
        # The first interval begins with the window, and lacks what lies behind the last collective of the step before.
        more += (times.tail[late] - np.median(times.tail[equals], axis=0)) / known.sum()
    ahead = np.nanmedian(times.ahead[equals][:, known], axis=0) - times.ahead[late][known]
    more = _without_lead(times.causes, more, float(ahead.mean()))
    differences = _sorted(times.causes, more)
    late_ns = max(float(more.sum()), 1.0)
    reason = _named(ranks, (late, equals), differences, late_ns, traits)
    if ahead.mean() >= MIN_LED_SHARE * late_ns and ranks[late].has_device:
        reason = _of_led(ranks, (late, equals), reason, late_ns, traits)
    ready = (ranks[late].ready_share, float(np.median([ranks[i].ready_share for i in equals])))
    # On cores that all ranks lack, who has more to do lacks them for longer: that is no reason of its own.
    work = float(np.nanmean(own[late][known])), float(np.nanmean(own[equals][:, known]))
    no_core_ns = (ready[0] - ready[1] * work[0] / max(work[1], 1.0)) * ranks[late].step_ns
    if no_core_ns >= MIN_REASON_SHARE * late_ns:  # whatever its thread did then takes no longer by itself
        share = min(no_core_ns / late_ns, 1.0)
        return Reason("no-core", no_core_ns, share, differences=differences, ready_shares=ready)
    return replace(reason, where=_lines_with_more(ranks, late, equals, _parts_of(reason)), ready_shares=ready)


def _without_lead(causes: Sequence[str], more: Floats, ahead_ns: float) -> Floats:
    """Return the differences without what the equals' hosts take as well, only ahead of their devices, which wait."""
    of_host = np.array([cause not in PHASES for cause in causes], bool) & (more > 0)
    hosting = float(more[of_host].sum())
    share = float(np.clip(ahead_ns / hosting, 0.0, 1.0)) if hosting else 0.0
    left: Floats = np.where(of_host, more * (1 - share), more)
    return left


def _parts_of(reason: Reason) -> Collection[str]:
    """Return the causes whose time a reason stands for; of what nothing explains, all."""
    if reason.cause in reason.differences:
        return (reason.cause,)
    return (
        PHASES if reason.cause in ("more-work", "slower-device", "slower-rank", "slower-kernel") else reason.differences
    )


def reason_of_turns(times: Times, lateness: Lateness, traits: CauseTraits) -> Reason:
    """Return what whichever ranks are late in a step have more of in it."""
    excess = lateness.excess
    more = times.spent - median_of_others(times.spent)
    summed, all_ns = np.zeros(len(times.causes)), 0.0
    for step, column in enumerate(excess.T):
        if np.isnan(column).all() or np.nanmax(column) <= 0:
            continue
        latest = np.flatnonzero(np.nan_to_num(column) >= ALSO_LATE * np.nanmax(column))
        summed += np.nan_to_num(more[latest, :, step]).mean(axis=0)
        all_ns += float(column[latest].mean())
    if all_ns <= 0:
        return Reason()
    num = excess.shape[1]
    return _largest(_sorted(times.causes, summed / num), all_ns / num, traits)


def _sorted(causes: Sequence[str], more: Floats) -> dict[str, float]:
    pairs = [(cause, float(ns)) for cause, ns in zip(causes, more.tolist(), strict=True) if ns]
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def _largest(differences: dict[str, float], late_ns: float, traits: CauseTraits) -> Reason:
    cause, ns = next(iter(differences.items()), ("", 0.0))
    if cause in traits.unknown or ns < MIN_REASON_SHARE * late_ns:
        return Reason(differences=differences)
    return Reason(cause, ns, min(ns / late_ns, 1.0), differences=differences)


def _named(
    ranks: Sequence[RankProfile],
    compared: tuple[int, Sequence[int]],
    differences: dict[str, float],
    late_ns: float,
    traits: CauseTraits,
) -> Reason:
    """Return one thing that explains the difference of a rank to others: a cause, or that everything takes longer."""
    late, equals = compared
    hosting = sum(ns for cause, ns in differences.items() if cause in traits.host)
    found = _of_computing(ranks, compared, differences, late_ns)
    largest = found or _largest(differences, late_ns, traits)
    if found or (largest.cause and largest.cause not in traits.operators):
        return largest
    if hosting >= MIN_REASON_SHARE * late_ns:
        ratio, more_work = slower(ranks, "operators", late, equals)
        if more_work:
            return Reason("more-work", hosting, min(hosting / late_ns, 1.0), differences=differences)
        if ratio >= MIN_SLOWER:
            return Reason("slower-host", hosting, min(hosting / late_ns, 1.0), ratio, differences=differences)
    return largest


def _of_led(
    ranks: Sequence[RankProfile],
    compared: tuple[int, Sequence[int]],
    reason: Reason,
    late_ns: float,
    traits: CauseTraits,
) -> Reason:
    """Return the reason where the others' hosts are ahead: what these do there, no cause of idle time shows.

    Loading that all hosts do is then seen on the late rank only. Where its operators take longer, all of the host's
    difference is its pace's.
    """
    ratio, _ = slower(ranks, "operators", *compared)
    on_device = {*PHASES, traits.copies}
    hosting = sum(ns for cause, ns in reason.differences.items() if cause not in on_device)
    is_paced = ratio >= MIN_SURELY_SLOWER or reason.cause == "slower-host"
    if not is_paced or hosting < MIN_REASON_SHARE * late_ns:
        return reason
    return Reason("slower-host", hosting, min(hosting / late_ns, 1.0), ratio, differences=reason.differences)


def _of_computing(
    ranks: Sequence[RankProfile], compared: tuple[int, Sequence[int]], differences: dict[str, float], late_ns: float
) -> Reason | None:
    """Return what makes computing longer where that is most of the difference: all, more of it, one kernel, a phase."""
    late, equals = compared
    computing = sum(max(ns, 0.0) for cause, ns in differences.items() if cause in PHASES)
    if computing < MIN_REASON_SHARE * late_ns:
        return None
    ratio, more_work = slower(ranks, "kernels" if ranks[late].has_device else "operators", late, equals)
    clocks = (ranks[late].clock_mhz, float(np.median([ranks[i].clock_mhz for i in equals])))
    both = clocks if min(clocks) > 0 else (0.0, 0.0)
    share = min(computing / late_ns, 1.0)
    inputs = input_ratio(ranks, late, equals)
    are_larger = inputs > 1 + MAX_COUNT_APART and inputs - 1 >= MIN_INPUT_SHARE * (ratio - 1)
    if more_work or are_larger:
        return Reason("more-work", computing, share, inputs if are_larger else 1.0, differences=differences)
    if ratio >= MIN_SLOWER:
        cause = _slower_cause(ranks, late, equals)
        return Reason(cause, computing, share, ratio, clock_mhz=both, differences=differences)
    name, more_ns, ratio = slower_kernel(ranks, late, equals)
    if more_ns >= MIN_REASON_SHARE * late_ns:
        share = min(more_ns / late_ns, 1.0)
        return Reason("slower-kernel", more_ns, share, ratio, kernel=name, differences=differences)
    phase = max(PHASES, key=lambda p: differences.get(p, 0.0))
    if differences.get(phase, 0.0) < MIN_REASON_SHARE * late_ns:
        return None
    return Reason(phase, differences[phase], min(differences[phase] / late_ns, 1.0), differences=differences)


def _slower_cause(ranks: Sequence[RankProfile], late: int, equals: Sequence[int]) -> str:
    """Return what is slower where computing is: the device, the host that computes, or the device and its host."""
    if not ranks[late].has_device:
        return "slower-host"
    host, _ = slower(ranks, "operators", late, equals)  # hosts vary by more than devices do
    return "slower-rank" if host >= MIN_SURELY_SLOWER else "slower-device"


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

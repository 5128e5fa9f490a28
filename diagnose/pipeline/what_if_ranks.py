"""What a user asks about all ranks of a job: no late ranks, gradient buckets of another size, exchanges overlapped.

All ranks are replayed through their collectives, after what changes the one rank that is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from diagnose.analyzers import META
from diagnose.changes.common.buckets import MAX_UNEXPLAINED
from diagnose.errors import UsageError
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Forecast
from diagnose.model.rules import LATE_RANKS
from diagnose.pipeline.run import compare_captures
from diagnose.pipeline.what_if_request import AskedOfJob
from diagnose.ranks.comparison import Comparison, excess_of
from diagnose.ranks.profile import PHASES
from diagnose.ranks.replay import Part, Schedule, in_buckets, overlapped, replayed, schedule_of, without_excess
from diagnose.ranks.usable import listed
from diagnose.replay.predict import MAX_ERROR_TO_RELY
from diagnose.text.numbers import percent, plural

__all__ = ["of_all_ranks"]


def of_all_ranks(
    captures: Sequence[Capture],
    asked: AskedOfJob,
    forecasts: Sequence[Forecast],
    without: Collection[str],
    applied: Collection[str],
) -> Iterator[Forecast]:
    """Yield the step after each change, by a replay of all ranks.

    ``forecasts`` are the step as it is and after each change made before: the causes of rules taken away, prescriptions
    applied.

    Raises:
        UsageError: nothing of what is asked about was recorded, or the replay misses the measured steps by too much.
    """
    comparison, _ = compare_captures(captures)
    schedule = schedule_of(comparison.ranks, comparison.matches, comparison.times)
    if schedule is None and not asked.without_late:
        raise UsageError(
            "The recording holds no two steps in which the ranks share collectives, so that their exchanges cannot be "
            "replayed: give the traces of all ranks of a job, of the same steps."
        )
    before, least = forecasts[-1], _computing(comparison)
    if asked.without_late:
        saved = _saved_without_late(comparison, forecasts, without, applied)
        ranks = listed([comparison.ranks[i].rank for i in comparison.lateness.late])
        before = _shortened(before, saved, least, f"{ranks} as the others of its role")
        yield before
    if schedule is None:
        return
    _check(replayed(schedule, schedule).error)
    if asked.without_late:
        schedule = without_excess(schedule, excess_of(comparison.ranks, comparison.lateness))
    num = plural(len(comparison.ranks), "rank")
    if asked.bucket_mb is not None:
        baseline, schedule = _in_buckets(schedule, asked.bucket_mb * 2**20)
        title = f"gradient buckets of {asked.bucket_mb:g} MB on {num}"
        before = _shortened(before, _saved(baseline, schedule), least, title)
        yield before
    for name in asked.overlap:
        after = _overlapped(schedule, name)
        before = _shortened(before, _saved(schedule, after), least, f"{name} overlapped on {num}")
        schedule = after
        yield before


def _overlapped(schedule: Schedule, name: str) -> Schedule:
    """Return the steps with collectives of this name overlapped with computation."""
    after = overlapped(schedule, name)
    if after is None:
        waited = sorted({c.kind.name for step in schedule.steps for c in step.collectives if _is_waited_for(c.parts)})
        raise UsageError(
            f"No rank waits for {'an' if name.startswith('a') else 'a'} {name} that could overlap with computation, so "
            f"nothing is gained by overlapping it. Waited for: {', '.join(waited) or 'none'}."
        )
    return after


def _is_waited_for(parts: Sequence[Part]) -> bool:
    return any(p.blocks is not None for p in parts)


def _check(error: float, refused: str = "nothing is predicted of what the ranks exchange") -> None:
    """Refuse to answer where the unchanged replay misses the measured steps."""
    if abs(error) > MAX_ERROR_TO_RELY:
        raise UsageError(
            f"The replay of all ranks misses the measured steps by {percent(error, 0)}, too much to rely on: {refused}."
        )


def _saved_without_late(
    comparison: Comparison, forecasts: Sequence[Forecast], without: Collection[str], applied: Collection[str]
) -> float:
    """Return what is saved if the late ranks are as their equals are, ns.

    What a late rank has more of by causes that are gone is not taken away once more.
    """
    found = comparison.without_late
    if found is None:
        raise UsageError(
            f"No rank is late in this recording, so {LATE_RANKS} cannot be taken away; diagnose analyze "
            "shows what the ranks wait for."
        )
    _check(found.error, f"{LATE_RANKS} cannot be taken away")
    gone = {*without, *(rule for rule, meta in META.items() if {*applied} & {*meta.changes, *meta.also})}
    twice = sum(max(ns, 0.0) for cause, ns in comparison.reason.differences.items() if cause in gone)
    return max(found.saved_ns - min(twice, max(forecasts[0].step_ns - forecasts[-1].step_ns, 0.0)), 0.0)


def _in_buckets(schedule: Schedule, num_bytes: float) -> tuple[Schedule, Schedule]:
    """Return the steps with the recorded buckets and with those of another size."""
    found = in_buckets(schedule, num_bytes)
    if found is None:
        raise UsageError(
            "Buckets of another size cannot be replayed: the steps hold no buckets of DistributedDataParallel with "
            "recorded sizes, or no backward that fills them."
        )
    modelled = replayed(schedule, found[0])
    off = modelled.after_ns / max(modelled.unchanged_ns, 1.0) - 1
    if abs(off) > MAX_UNEXPLAINED:
        raise UsageError(
            "Buckets of another size cannot be replayed: what the recorded ones take does not follow from their sizes "
            f"at one rate; by these alone the step comes out {percent(abs(off), 0)} off."
        )
    return found


def _saved(baseline: Schedule, after: Schedule) -> float:
    """Return what a change of the schedule saves, ns; less than 0 where it makes steps longer."""
    pair = replayed(baseline, after)
    return pair.unchanged_ns - pair.after_ns


def _shortened(before: Forecast, saved_ns: float, least_ns: float, title: str) -> Forecast:
    """Return the step after one more change; none is shorter than what ranks compute that are not late."""
    step_ns, low_ns, high_ns = (
        max(ns - saved_ns, min(ns, least_ns)) for ns in (before.step_ns, before.low_ns, before.high_ns)
    )
    return Forecast((), title, step_ns, low_ns, high_ns)


def _computing(comparison: Comparison) -> float:
    """Return what the ranks that are not late compute in a step, the longest of them."""
    times = comparison.times
    rows = [i for i, cause in enumerate(times.causes) if cause in PHASES]
    others = [i for i in range(len(comparison.ranks)) if i not in comparison.lateness.late]
    computing = times.spent[others][:, rows].sum(axis=1)
    known = computing[~np.isnan(computing).all(axis=1)]
    return float(np.nanmedian(known, axis=1).max()) if known.size else 0.0

"""What a user asks about all ranks of a job: no late ranks, gradient buckets of another size, exchanges overlapped.

All ranks are replayed through their collectives, after what changes the one rank that is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from diagnose.analyzers import META
from diagnose.errors import UsageError
from diagnose.model.capture import Capture
from diagnose.model.forecast import Forecast
from diagnose.model.job import LATE_RANKS
from diagnose.pipeline.run import compare_captures
from diagnose.pipeline.what_if_request import AskedOfJob
from diagnose.ranks.comparison import Comparison, excess_of
from diagnose.ranks.profile import PHASES
from diagnose.ranks.replay import Part, Schedule, replayed, schedule_of, without_excess
from diagnose.ranks.rescheduled import in_buckets, overlapped
from diagnose.ranks.usable import listed
from diagnose.replay.predict import MAX_ERROR_TO_RELY
from diagnose.text.numbers import percent, plural

__all__ = ["of_all_ranks"]

_ARTICLE = {"all_reduce": "an", "all_gather": "an"}
MAX_UNEXPLAINED = 0.1  # of the step: what sizes and one rate may be off for the recorded buckets


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
    now = schedule_of(comparison.ranks, comparison.matches, comparison.times)
    if now is None and not asked.without_late:
        raise UsageError(
            "The recording holds no two steps in which the ranks share collectives, so that their exchanges cannot be "
            "replayed: give the traces of all ranks of a job, of the same steps."
        )
    before = forecasts[-1]
    if asked.without_late:
        before = _without_late(comparison, forecasts, without, applied)
        yield before
    if now is None:
        return
    _check(replayed(now, now).error)
    now = without_excess(now, excess_of(comparison.ranks, comparison.lateness)) if asked.without_late else now
    num, least = plural(len(comparison.ranks), "rank"), _computing(comparison)
    if asked.bucket_mb is not None:
        was, now = _in_buckets(now, asked.bucket_mb * 2**20)
        before = _after(before, was, now, least, f"gradient buckets of {asked.bucket_mb:g} MB on {num}")
        yield before
    for name in asked.overlap:
        then = overlapped(now, name)
        if then is None:
            waited = sorted({c.kind.name for step in now.steps for c in step.collectives if _is_waited_for(c.parts)})
            raise UsageError(
                f"No rank waits for {_ARTICLE.get(name, 'a')} {name} that could run beside computing, so nothing is "
                f"gained by overlapping it. Waited for: {', '.join(waited) or 'none'}."
            )
        before = _after(before, now, then, least, f"{name} overlapped on {num}")
        now = then
        yield before


def _is_waited_for(parts: Sequence[Part]) -> bool:
    return any(p.blocks is not None for p in parts)


def _check(error: float) -> None:
    """Refuse to answer where the unchanged replay misses the measured steps."""
    if abs(error) > MAX_ERROR_TO_RELY:
        raise UsageError(
            f"The replay of all ranks misses the measured steps by {percent(error, 0)}, too much to rely on: nothing "
            "is predicted of what the ranks exchange."
        )


def _without_late(
    comparison: Comparison, forecasts: Sequence[Forecast], without: Collection[str], applied: Collection[str]
) -> Forecast:
    """Return the step with the late ranks as their equals are.

    What a late rank has more of by causes that are gone is not taken away once more, nor what other ranks compute.
    """
    then = comparison.without_late
    if then is None:
        raise UsageError(
            f"No rank is late in most steps of this recording, so {LATE_RANKS} cannot be taken away; diagnose analyze "
            "shows what the ranks wait for."
        )
    if abs(then.error) > MAX_ERROR_TO_RELY:
        raise UsageError(
            f"The replay of all ranks misses the measured steps by {percent(then.error, 0)}, too much to rely on: "
            f"{LATE_RANKS} cannot be taken away."
        )
    ranks = listed([comparison.ranks[i].rank for i in comparison.lateness.late])
    before = forecasts[-1]
    gone = {*without, *(rule for rule, meta in META.items() if {*applied} & {*meta.changes, *meta.also})}
    twice = sum(max(ns, 0.0) for cause, ns in comparison.reason.differences.items() if cause in gone)
    saved = max(then.saved_ns - min(twice, max(forecasts[0].step_ns - before.step_ns, 0.0)), 0.0)
    least = _computing(comparison)
    step_ns, low_ns, high_ns = (
        max(ns - saved, min(ns, least)) for ns in (before.step_ns, before.low_ns, before.high_ns)
    )
    return Forecast((), f"{ranks} as the others of its role", step_ns, low_ns, high_ns)


def _in_buckets(now: Schedule, num_bytes: float) -> tuple[Schedule, Schedule]:
    """Return the steps with the recorded buckets and with those of another size."""
    found = in_buckets(now, num_bytes)
    if found is None:
        raise UsageError(
            "Buckets of another size cannot be replayed: the steps hold no buckets of DistributedDataParallel with "
            "recorded sizes, or no backward that fills them."
        )
    off = replayed(now, found[0]).after_ns / max(replayed(now, now).unchanged_ns, 1.0) - 1
    if abs(off) > MAX_UNEXPLAINED:
        raise UsageError(
            "Buckets of another size cannot be replayed: what the recorded ones take does not follow from their sizes "
            f"at one rate; by these alone the step comes out {percent(abs(off), 0)} off."
        )
    return found


def _after(before: Forecast, was: Schedule, now: Schedule, least: float, title: str) -> Forecast:
    """Return the step after a change of the schedule, which may make it longer too."""
    pair = replayed(was, now)
    saved = pair.unchanged_ns - pair.after_ns
    step_ns, low_ns, high_ns = (
        max(ns - saved, min(ns, least)) for ns in (before.step_ns, before.low_ns, before.high_ns)
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

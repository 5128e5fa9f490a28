"""Changes that a user asks about by name: syncs of one line, ranks that are late."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from diagnose.analyzers import META
from diagnose.analyzers.common.locate import locate
from diagnose.errors import UsageError
from diagnose.model.capture import Capture
from diagnose.model.forecast import Forecast
from diagnose.model.job import LATE_RANKS
from diagnose.pipeline.run import compare_captures
from diagnose.ranks.comparison import Comparison
from diagnose.ranks.profile import PHASES
from diagnose.ranks.usable import listed
from diagnose.replay.graph import Transform
from diagnose.replay.predict import MAX_ERROR_TO_RELY, replay_base
from diagnose.replay.transforms import drop_waits
from diagnose.tables import Tables
from diagnose.tables.syncs import blocking_calls
from diagnose.text.numbers import percent

__all__ = ["without_late_ranks", "without_syncs_at"]


def without_syncs_at(t: Tables, file: str, line: int) -> Transform | None:
    """Return the change that drops the waits for the device made at a line, None where none was recorded there."""
    calls = replay_base(t).t.in_window(blocking_calls(t))
    events = t.trace.events
    found = locate(t, events.thread[calls], events.start[calls])
    mine = np.array([w.line == line and bool(w.file) and _same(str(w.file), file) for w in found], bool)
    hit: npt.NDArray[np.intp] = calls[mine]
    return partial(drop_waits, calls=hit) if len(hit) else None


def without_late_ranks(
    captures: Sequence[Capture], forecasts: Sequence[Forecast], without: Collection[str], applied: Collection[str]
) -> Forecast:
    """Return the step with the late ranks as their equals are, by a replay of all ranks through their collectives.

    ``forecasts`` are the step as it is and after each change made before: the causes of rules taken away, prescriptions
    applied. What a late rank has more of by these causes is not taken away once more, nor what other ranks compute.

    Raises:
        UsageError: no rank is late, or the replay misses the measured steps by too much.
    """
    comparison, _ = compare_captures(captures)
    replayed = comparison.without_late
    if replayed is None:
        raise UsageError(
            f"No rank is late in most steps of this recording, so {LATE_RANKS} cannot be taken away; diagnose analyze "
            "shows what the ranks wait for."
        )
    if abs(replayed.error) > MAX_ERROR_TO_RELY:
        raise UsageError(
            f"The replay of all ranks misses the measured steps by {percent(replayed.error, 0)}, too much to rely on: "
            f"{LATE_RANKS} cannot be taken away."
        )
    ranks = listed([comparison.ranks[i].rank for i in comparison.lateness.late])
    before = forecasts[-1]
    gone = {*without, *(rule for rule, meta in META.items() if {*applied} & {*meta.changes, *meta.also})}
    twice = sum(max(ns, 0.0) for cause, ns in comparison.reason.differences.items() if cause in gone)
    saved = max(replayed.saved_ns - min(twice, max(forecasts[0].step_ns - before.step_ns, 0.0)), 0.0)
    least = _computing(comparison)
    step_ns, low_ns, high_ns = (
        max(ns - saved, min(ns, least)) for ns in (before.step_ns, before.low_ns, before.high_ns)
    )
    return Forecast((), f"{ranks} as the others of its role", step_ns, low_ns, high_ns)


def _computing(comparison: Comparison) -> float:
    """Return what the ranks that are not late compute in a step, the longest of them."""
    times = comparison.times
    rows = [i for i, cause in enumerate(times.causes) if cause in PHASES]
    others = [i for i in range(len(comparison.ranks)) if i not in comparison.lateness.late]
    computing = times.spent[others][:, rows].sum(axis=1)
    known = computing[~np.isnan(computing).all(axis=1)]
    return float(np.nanmedian(known, axis=1).max()) if known.size else 0.0


def _same(recorded: str, asked: str) -> bool:
    """Return whether a path ends with what was asked for, part by part."""
    parts = asked.replace("\\", "/").removeprefix("./").split("/")
    return recorded.replace("\\", "/").split("/")[-len(parts) :] == parts

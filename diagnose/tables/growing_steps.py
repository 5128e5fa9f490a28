"""Steps that get longer as the run goes on, because of the work at one place: it grows with what is stored.

A machine that becomes slower makes everything in a step longer; here one place has what the later steps take longer,
and the rest of the step stays nearly as it was.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from diagnose.model.growth import grows
from diagnose.tables import Tables
from diagnose.tables.run_steps import PLAIN, TIMING, Shared, place_of, usable_steps

__all__ = ["GrowingSteps", "growing_steps"]

NEAREST = 16  # steps, whose median is the level there
MAX_REST_GROWTH = 0.5  # of the whole step's growth: more of it elsewhere is a machine that slows everything
MIN_DEVIATIONS = 3.0  # of the samples there: that many more than a machine that slows everything would show


class GrowingSteps(NamedTuple):
    """How steps grow; times in ns."""

    num_steps: int
    first_ns: float  # of a step at the beginning of the watched ones
    last_ns: float
    lost_ns: float  # what the mean step takes longer than at the beginning
    unrecorded_ns: float  # what it takes longer than the recorded ones
    share: float  # of the run's time, of ``lost_ns``
    place: Shared


def growing_steps(t: Tables) -> GrowingSteps | None:
    """Return how the steps that were not recorded grow, and where; None where they do not, or no place shows."""
    run, info = t.capture.run, t.capture.info
    if run is None or t.device_id >= 0 or (info is not None and info.world_size > 1):
        return None  # the host's steps are not the device's, nor those of other ranks
    rows = np.flatnonzero(usable_steps(run, t.capture) & (run.state == PLAIN))
    times = run.step_ns[rows].astype(np.float64)
    if not grows(times.tolist()):
        return None
    half = len(rows) // 2
    place = place_of(run, t.capture, rows[half:], rows[:half])
    if not place.path or not _is_elsewhere_equal(place):
        return None
    mean = float(times.mean())
    first, last = (float(np.median(part)) for part in (times[:NEAREST], times[-NEAREST:]))
    recorded = np.flatnonzero(run.state == TIMING)
    nearest = np.argsort(np.abs(rows - recorded.mean()), kind="stable")[:NEAREST] if len(recorded) else slice(None)
    lost = max(mean - first, 0.0)
    unrecorded = max(mean - float(np.median(times[nearest])), 0.0)
    return GrowingSteps(len(rows), first, last, lost, unrecorded, lost / mean, place)


def _is_elsewhere_equal(place: Shared) -> bool:
    """Return whether the place has more of what steps take longer than of the step, and the rest hardly grows.

    Where it has nearly all of the step, samples cannot show that.
    """
    if (1 - place.share) > MAX_REST_GROWTH * (1 - place.usual_share):
        return False
    deviation = math.sqrt(2 * place.num_samples * place.usual_share * (1 - place.usual_share))  # of two counts
    return (place.share - place.usual_share) * place.num_more >= MIN_DEVIATIONS * max(deviation, 1.0)

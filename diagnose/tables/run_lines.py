"""The lines in which long steps of a run spend their time, by the samples that the run has of them."""

from __future__ import annotations

from collections import Counter

import numpy as np

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.capture import Capture, RunSteps

__all__ = ["lines_in", "place_of"]

MIN_LINE_SHARE = 0.7  # of the samples that long steps have more than others
MIN_SAMPLES = 5


_Place = tuple[str, int, str]  # file, line, function


def place_of(run: RunSteps, capture: Capture, long: Rows, usual: Rows) -> tuple[tuple[_Place, ...], float]:
    """Return the innermost line that most samples share which long steps have more than usual ones."""
    paths, seen_ns, row = run.paths, run.sampled_ns, run.path
    in_long = _inside(run, long, seen_ns)
    samples = capture.run_samples
    if in_long.sum() < MIN_SAMPLES and samples is not None:  # they came while a window was open
        paths, seen_ns, row = tuple((place,) for place in samples.places), samples.time_ns, samples.place
        in_long = _inside(run, long, seen_ns) & (row >= 0)
    if in_long.sum() < MIN_SAMPLES:
        return (), 0.0
    in_usual = _inside(run, usual, seen_ns) & (row >= 0)
    usual_time, long_time = float(run.took_ns[usual].sum()), float(run.took_ns[long].sum())
    per_step = usual_time / max(len(usual), 1) * len(long)
    weight = per_step / usual_time if usual_time else 0.0
    more: dict[_Place, float] = {}
    depth: dict[_Place, int] = {}
    counted = [(1.0, np.bincount(row[in_long], minlength=len(paths)))]
    counted.append((-weight, np.bincount(row[in_usual], minlength=len(paths))))
    for factor, counts in counted:
        for i in np.flatnonzero(counts).tolist():
            for level, place in enumerate(dict.fromkeys(paths[i])):
                more[place] = more.get(place, 0.0) + factor * int(counts[i])
                depth[place] = max(depth.get(place, 0), len(paths[i]) - level)
    whole = float(in_long.sum()) * max(0.0, 1 - per_step / long_time if long_time else 0.0)
    shared = [place for place in more if whole > 0 and more[place] >= MIN_LINE_SHARE * whole]
    if not shared:
        return (), 0.0
    place = max(shared, key=lambda each: depth[each])
    path = next(path for path in paths if place in path)
    return path[path.index(place) :], min(1.0, more[place] / whole)


def lines_in(capture: Capture, start: Ints, length: Ints) -> list[_Place]:
    """Return the innermost lines of the samples in these stretches of time, those with most samples first."""
    counted: Counter[_Place] = Counter()
    run, samples = capture.run, capture.run_samples
    if run is not None:
        counted.update(run.paths[row][0] for row in run.path[_within(start, length, run.sampled_ns)].tolist())
    if samples is not None:
        seen = samples.place[_within(start, length, samples.time_ns) & (samples.place >= 0)]
        counted.update(samples.places[row] for row in seen.tolist())
    return [place for place, _ in counted.most_common()]


def _inside(run: RunSteps, rows: Rows, times: Ints) -> Mask:
    """Return which times lie within one of these steps."""
    return _within(run.began_ns[rows], run.took_ns[rows], times)


def _within(start: Ints, length: Ints, times: Ints) -> Mask:
    if not len(start) or not len(times):
        return np.zeros(len(times), bool)
    i = np.searchsorted(start, times, side="right") - 1
    inside: Mask = (i >= 0) & (times < (start + length)[np.maximum(i, 0)])
    return inside

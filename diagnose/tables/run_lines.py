"""The lines in which long steps of a run spend their time, by the samples that the run has of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.capture import Capture, RunSteps
from diagnose.model.frozen import NamedTuple

__all__ = ["Shared", "lines_in", "place_of"]

MIN_LINE_SHARE = 0.7  # of the samples that long steps have more than others
MIN_SINGLE_LINE_SHARE = 0.5  # of them at one line, where its function has as many as a line needs
# A line that usual steps are in as well, as the call of the training function, says nothing of long ones: then the
# largest of their lines is named that has so much of what they have more.
MIN_PART_SHARE, USUAL_SHARE = 0.3, 0.9
MIN_SAMPLES = 5


_Place = tuple[str, int, str]  # file, line, function
_ALL_LINES = 0  # in the place of a line: the function


class Shared(NamedTuple):
    """What most samples of long steps share that usual steps do not have."""

    path: tuple[_Place, ...] = ()  # the line and its callers; innermost first
    share: float = 0.0  # of the samples, at the line and in what it calls; or in the function
    in_function: bool = False  # the samples counted are those of the line's function, of which it has most
    usual_share: float = 0.0  # of the samples of usual steps, there
    num_samples: int = 0  # of long steps
    num_more: float = 0.0  # of these, what they take longer


def place_of(run: RunSteps, capture: Capture, long: Rows, usual: Rows) -> Shared:
    """Return the innermost line that most samples share which long steps have more than usual ones."""
    paths, seen_ns, row = run.paths, run.sampled_ns, run.path
    in_long = _inside(run, long, seen_ns)
    samples = capture.run_samples
    if in_long.sum() < MIN_SAMPLES and samples is not None:  # they came while a window was open
        paths, seen_ns, row = tuple((place,) for place in samples.places), samples.time_ns, samples.place
        in_long = _inside(run, long, seen_ns) & (row >= 0)
    if in_long.sum() < MIN_SAMPLES:
        return Shared()
    in_usual = _inside(run, usual, seen_ns) & (row >= 0)
    usual_time, long_time = float(run.took_ns[usual].sum()), float(run.took_ns[long].sum())
    per_step = usual_time / max(len(usual), 1) * len(long)
    weight = per_step / usual_time if usual_time else 0.0
    more: defaultdict[_Place, float] = defaultdict(float)
    depth: defaultdict[_Place, int] = defaultdict(int)
    counted = [(1.0, np.bincount(row[in_long], minlength=len(paths)))]
    counted.append((-weight, np.bincount(row[in_usual], minlength=len(paths))))
    for factor, counts in counted:
        for i in np.flatnonzero(counts).tolist():
            innermost: dict[_Place, int] = {}
            for level, line in enumerate(paths[i]):
                innermost.setdefault(line, level)
                innermost.setdefault(_function_of(line), level)
            for place, level in innermost.items():
                more[place] += factor * int(counts[i])
                depth[place] = max(depth[place], len(paths[i]) - level)
    whole = float(in_long.sum()) * max(0.0, 1 - per_step / long_time if long_time else 0.0)
    least = MIN_LINE_SHARE * whole

    def is_shared(line: _Place) -> bool:
        return more[line] >= least or (
            more[line] >= MIN_SINGLE_LINE_SHARE * whole and more[_function_of(line)] >= least
        )

    shared = [place for place in depth if place[1] != _ALL_LINES and is_shared(place)] if whole > 0 else []
    if not shared:
        return Shared()
    line = max(shared, key=lambda place: depth[place])
    usual_counts = counted[1][1]
    in_function = more[line] < least
    if _share_at(line, paths, usual_counts) >= USUAL_SHARE:
        inner = [place for place in depth if place[1] != _ALL_LINES and depth[place] > depth[line]]
        parts = [place for place in inner if more[place] >= MIN_PART_SHARE * whole]
        line = max(parts, key=lambda place: (more[place], -depth[place]), default=line)
        in_function = False
    path = next(path for path in paths if line in path)
    named = _function_of(line) if in_function else line
    share = min(1.0, more[named] / whole)
    usual_there = _share_at(named, paths, usual_counts)
    return Shared(path[path.index(line) :], share, in_function, usual_there, int(in_long.sum()), whole)


def _share_at(place: _Place, paths: Sequence[tuple[_Place, ...]], counts: Ints) -> float:
    """Return the share of the samples at a line or in a function, and in what it calls."""
    at = [place in path or place in map(_function_of, path) for path in paths]
    return float(counts[np.array(at, bool)].sum() / max(counts.sum(), 1))


def _function_of(place: _Place) -> _Place:
    file, _, function = place
    return file, _ALL_LINES, function


def lines_in(capture: Capture, start: Ints, length: Ints) -> list[_Place]:
    """Return the innermost lines of the samples in these intervals of time, those with most samples first."""
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

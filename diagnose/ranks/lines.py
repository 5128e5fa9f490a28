"""On which lines of the script a rank spends what, and where a late rank spends more than its equals do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from diagnose.model.intervals import Intervals
from diagnose.model.locations import Where
from diagnose.ranks.profile import LineTime, RankProfile
from diagnose.tables import Tables

__all__ = ["lines_of", "lines_with_more"]

MAX_LINES = 6  # of a cause, those that take most: a profile is sent, and the difference lies in what takes long
MIN_SAMPLES = 5  # within a cause: fewer show no shares
MAX_NAMED = 3
MIN_DIFFERENCE_SHARE = 0.1  # of the largest difference: smaller ones are what samples differ by anyway


def lines_of(t: Tables, parts: Mapping[str, Intervals]) -> tuple[LineTime, ...]:
    """Return the lines that the sampler saw in each part of the rank's host time, by cause."""
    samples = t.capture.samples
    if samples is None or not t.trace.epoch_ns:
        return ()
    time = samples.time_ns - t.trace.epoch_ns
    seen = (samples.place >= 0) & (time >= t.steps.window[0]) & (time < t.steps.window[1])
    time, place = time[seen], samples.place[seen]
    found: list[LineTime] = []
    for cause, part in parts.items():
        i = np.searchsorted(part.start, time, side="right") - 1
        inside = (i >= 0) & (time < part.end[np.maximum(i, 0)]) if len(part.start) else np.zeros(len(time), bool)
        num = np.bincount(place[inside], minlength=len(samples.places))
        if num.sum() < MIN_SAMPLES:
            continue
        begin, end = np.clip(part.start, *t.steps.window), np.clip(part.end, *t.steps.window)
        each_ns = float((end - begin).sum() / num.sum() / max(t.steps.num, 1))
        for row in np.argsort(-num, kind="stable")[:MAX_LINES].tolist():
            if num[row]:
                file, line, function = samples.places[row]
                code = t.capture.lines.get((file, line), "")
                found.append(LineTime(cause, file, line, function, code, int(num[row]) * each_ns))
    return tuple(found)


def lines_with_more(
    ranks: Sequence[RankProfile], late: int, equals: Sequence[int], causes: Collection[str]
) -> tuple[Where, ...]:
    """Return the lines on which the late rank spends more than the median of its equals, the largest difference first.

    Only time of these causes counts.
    """
    known = [_by_line(ranks[i], causes) for i in equals]
    more: dict[tuple[str, int], float] = {}
    for place, ns in _by_line(ranks[late], causes).items():
        more[place] = ns - float(np.median([lines.get(place, 0.0) for lines in known]))
    order = sorted(more, key=lambda place: -more[place])[:MAX_NAMED]
    named = {(each.file, each.line): each for each in ranks[late].lines}
    return tuple(
        Where(file, line, named[file, line].function, code=named[file, line].code or None)
        for file, line in order
        if more[file, line] > 0 and more[file, line] >= MIN_DIFFERENCE_SHARE * more[order[0]]
    )


def _by_line(rank: RankProfile, causes: Collection[str]) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = defaultdict(float)
    for each in rank.lines:
        if each.cause in causes:
            found[each.file, each.line] += each.spent_ns
    return found

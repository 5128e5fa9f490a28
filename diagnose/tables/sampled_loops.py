"""Which loop of the script's holds most of what a function does, by the lines that the sampler saw."""

from __future__ import annotations

from collections import Counter

from diagnose.model.frozen import NamedTuple
from diagnose.tables import Tables
from diagnose.tables.sampled_issuer import PASSES_ON

__all__ = ["SampledLoop", "sampled_loop"]

MIN_SAMPLE_SHARE = 0.5  # of the function's samples: of fewer another place has as many


class SampledLoop(NamedTuple):
    """A `for` or `while` statement."""

    head: int  # its line
    last: int  # that of its body's end
    share: float  # of the function's samples


def sampled_loop(t: Tables, file: str, function: str) -> SampledLoop | None:
    """Return the innermost loop that has most of a function's samples, None where the capture holds no such loop."""
    samples, loops = t.capture.samples, t.capture.loops.get(file)
    if samples is None or not loops:
        return None
    seen: Counter[int] = Counter()
    for row, num in Counter(samples.place.tolist()).items():
        place = samples.places[row] if row >= 0 else ("", 0, "")
        if (place[0], place[2]) == (file, function) and not PASSES_ON.search(t.capture.lines.get(place[:2], "")):
            seen[place[1]] += num
    total = sum(seen.values())
    within = {(head, last): sum(num for line, num in seen.items() if head <= line <= last) for head, last in loops}
    large = [loop for loop, num in within.items() if total and num >= MIN_SAMPLE_SHARE * total]
    if not large:
        return None
    head, last = min(large, key=lambda loop: loop[1] - loop[0])
    return SampledLoop(head, last, within[head, last] / total)

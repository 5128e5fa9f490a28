"""Finds which of many marker events ends a step.

One step may hold several optimizer steps: two optimizers, a wrapper around another optimizer, one optimizer per
parameter in the backward pass, five critic updates per generator update. The first event ever belongs to the
beginning of a step; the step ends with the rarest key that recurs regularly, and among equally rare ones with the
last in order. Skipped events (a gradient scaler that saw infinities) only lengthen one step. A key that no longer
occurs, such as the optimizer of a trial run before the training, is dropped.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from statistics import median_low

__all__ = ["StepFinder"]

REMEMBERED = 8  # distances kept per key
REGULAR_SHARE = 0.7  # of a key's distances that must be equal: scalers and unused parameters skip now and then
MAX_CYCLE_EVENTS = 16  # occurrences of the commonest key in one step; rarer keys are bookkeeping, not the step
NEWCOMER_EVENTS = 32  # so long a key seen once may still turn out to recur
SILENT_CYCLES = 4  # of its usual distances without a key: it will not come again


class StepFinder:
    """Takes keys one by one and decides which of them end a step.

    With ``at_start`` events mark the beginning of what they stand for: the step then goes from the first key of
    the cycle to the next such key.
    """

    def __init__(self, *, at_start: bool = False) -> None:
        self._at_start = at_start
        self.anchor: Hashable = None  # the key whose events end a step
        self.locked = False  # a locked finder keeps its anchor
        self._num_events = 0
        self._last: dict[Hashable, int] = {}  # key -> number of its last event, in order of first appearance
        self._distances: dict[Hashable, deque[int]] = {}

    def on_event(self, key: Hashable) -> tuple[bool, bool]:
        """Take the next event; return whether it ends a step, and whether the definition of a step has just changed."""
        if self.locked:
            return key == self.anchor, False
        self._num_events += 1
        if key in self._last:
            self._distances[key].append(self._num_events - self._last[key])
        else:
            self._distances[key] = deque(maxlen=REMEMBERED)
        self._last[key] = self._num_events
        changed = False
        first = next(iter(self._last))
        if key == first or self._is_silent(first):  # once a cycle: keys may be hundreds
            self._forget_silent()
        if key == next(iter(self._last)):
            before, self.anchor = self.anchor, self._choose()
            changed = before != self.anchor
        return self.anchor is not None and key == self.anchor, changed

    def _forget_silent(self) -> None:
        for key in [key for key in self._last if self._is_silent(key)]:
            del self._last[key], self._distances[key]

    def _is_silent(self, key: Hashable) -> bool:
        known = self._distances[key]
        usual = median_low(known) if known else len(self._last)  # a cycle may hold every key once
        return self._num_events - self._last[key] > SILENT_CYCLES * usual + NEWCOMER_EVENTS

    @property
    def events_per_step(self) -> int:
        """Return the number of events from one step's end to the next."""
        distances = self._distances.get(self.anchor)
        return median_low(distances) if distances else 1

    @property
    def undecided(self) -> bool:
        """Return whether a key seen only once may still recur and change what a step is."""
        return any(
            not self._distances[key] and self._num_events - last < NEWCOMER_EVENTS for key, last in self._last.items()
        )

    def _choose(self) -> Hashable:
        recurring = {key: median_low(d) for key, d in self._distances.items() if d}
        if not recurring:
            return None
        commonest = min(recurring.values())
        regular = {
            key: distance
            for key, distance in recurring.items()
            if distance <= MAX_CYCLE_EVENTS * commonest and _is_regular(self._distances[key])
        }
        rarest = max((regular or recurring).values())
        equals = [key for key, distance in (regular or recurring).items() if distance == rarest]
        return equals[0 if self._at_start else -1]


def _is_regular(distances: deque[int]) -> bool:
    return Counter(distances).most_common(1)[0][1] >= REGULAR_SHARE * len(distances)

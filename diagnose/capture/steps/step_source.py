"""Which source of events marks the steps, where the user gave none."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median, median_low
from types import FrameType
from typing import Any

from diagnose.model.limits import FEWEST, StepOn

# Which calls of a module prepare data: those of a dataset, and of modules that hold nothing to be trained.
#
# The transforms of torchvision are modules, and an evaluation calls them once a sample, its model once a batch.

DATA_METHODS = frozenset({"__getitem__", "__getitems__"})
_HOOKS = ("diagnose.", "torch.utils._contextlib")  # between a region and who has entered it
_OF_TORCH = ("torch.nn.", "torch.optim.")
_MODULES = "torch.nn.modules.module"
_MODULE_CALLS = frozenset({"_call_impl", "_wrapped_call_impl"})


def prepares_data(module: Any) -> bool:
    """Return whether a module that is being called has neither parameters nor buffers, or is called by a dataset."""
    try:
        empty = next(module.parameters(), None) is None and next(module.buffers(), None) is None
    except Exception:  # a module of the script may answer in any way
        return False
    return empty or _is_below(lambda frame: frame.f_code.co_name in DATA_METHODS)


def in_module() -> bool:
    """Return whether this is executed by the forward pass of a module."""
    return _is_below(
        lambda frame: frame.f_code.co_name in _MODULE_CALLS and frame.f_globals.get("__name__") == _MODULES
    )


def by_torch() -> bool:
    """Return whether torch itself switches gradients off: it copies a state, initialises or updates weights."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_HOOKS):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith(_OF_TORCH)


def _is_below(wanted: Callable[[FrameType], bool]) -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(60):  # a loop's own stack is far shallower
        if frame is None:
            return False
        if wanted(frame):
            return True
        frame = frame.f_back
    return False


# How much a batch holds, as far as that is easily found.

MAX_BATCH_DEPTH = 3  # of a batch that is looked at


def num_numbers(batch: Any, depth: int = 0) -> int:
    """Return how many numbers the tensors of a batch hold, as far as they are easily found."""
    count = getattr(batch, "numel", None)
    if callable(count):
        with contextlib.suppress(Exception):  # a class of the script's own
            return int(count())
        return 0
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    parts = batch[:16] if isinstance(batch, tuple | list) and depth < MAX_BATCH_DEPTH else ()
    return sum([num_numbers(part, depth + 1) for part in parts])


# Decides from step times when a script has reached its steady state.


def converged_since(times: Sequence[float], smallest: int = FEWEST) -> int | None:
    """Return the first step from which ``times`` have converged, None while they have not.

    The last two windows (a quarter of all steps each, at least ``smallest``) must have the same median. Windows grow
    with the wait, so noise averages out while a slow warm-up does not look flat.
    """
    window = max(smallest, len(times) // 4)
    if len(times) < 2 * window:
        return None
    before, after = times[-2 * window : -window], times[-window:]
    level_before, level_after = median(before), median(after)
    noise = median(abs(t - level_before) for t in before) + median(abs(t - level_after) for t in after)
    # Twice the step-to-step noise of a quiet machine, about 5 %, and far below what compiling or autotuning costs;
    # nor is a difference significant that is within the noise of the medians.
    allowed = max(0.10 * min(level_before, level_after), noise / window**0.5)
    return len(times) - 2 * window if abs(level_after - level_before) <= allowed else None


# Finds which of many marker events ends a step.
#
# One step may hold several optimizer steps: two optimizers, a wrapper around another optimizer, one optimizer per
# parameter in the backward pass, five critic updates per generator update. The first event ever belongs to the
# beginning of a step; the step ends with the rarest key that recurs regularly, and among equally rare ones with the
# last in order. Skipped events (a gradient scaler that saw infinities) only lengthen one step. A key that no longer
# occurs, such as the optimizer of a trial run before the training, is dropped.

NEWCOMER_EVENTS = 32  # so long a key seen once may still turn out to recur


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
            self._distances[key] = deque(maxlen=8)
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
        # It will not come again.
        return self._num_events - self._last[key] > 4 * usual + NEWCOMER_EVENTS

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
            # Rarer keys are bookkeeping, not the step.
            if distance <= 16 * commonest
            # Scalers and unused parameters skip now and then.
            and Counter(self._distances[key]).most_common(1)[0][1] >= 0.7 * len(self._distances[key])
        }
        rarest = max((regular or recurring).values())
        equals = [key for key, distance in (regular or recurring).items() if distance == rarest]
        return equals[0 if self._at_start else -1]


RANK = {"transform": -1, "forward": 0, "dataloader": 1, "optimizer": 2, "marker": 3}


class SourceChoice:
    """Takes the best source seen so far: marks, then optimizers, then DataLoaders, then forward calls.

    A better one may still take over until the measurement begins. While an optimizer exists that has not stepped,
    lesser sources must be patient: a step may be gathering gradients. Modules that prepare data end a step only where
    nothing else does for long: ``chosen`` is "forward" for them too.
    """

    def __init__(self, step_on: StepOn) -> None:
        self.chosen: str | None = None
        self.optimizer_exists = False
        self._forced = None if step_on == "auto" else step_on
        self._num_lesser = self._num_transforms = 0
        self._rank = min(RANK.values()) - 1  # of what is chosen

    def on_event(self, source: str, *, gradients: bool, prepares_data: bool = False) -> bool:
        """Take an event of ``source``; return whether the choice has just changed to it."""
        if self._forced is not None:
            changed = source == self._forced != self.chosen
            self.chosen = source if changed else self.chosen
            return changed
        rank = RANK["transform" if prepares_data else source]
        if rank <= self._rank or not self._ripe(rank, gradients=gradients):
            return False
        self.chosen, self._rank = source, rank
        return True

    def counts(self, source: str, *, prepares_data: bool) -> bool:
        """Return whether an event of ``source`` may end a step."""
        if source != self.chosen:
            return False
        return not prepares_data or self._forced is not None or self._rank == RANK["transform"]

    def _ripe(self, rank: int, *, gradients: bool) -> bool:
        if rank >= RANK["optimizer"]:
            return True
        if rank == RANK["transform"]:
            self._num_transforms += 1
            # Calls without any other: more than the largest usual batch.
            return self._num_transforms > 512
        if not self.optimizer_exists:
            return True
        self._num_lesser += 1
        # One step is expected to have so many micro-batches at most; a whole evaluation may come before the training.
        return self._num_lesser > (256 if gradients else 1024)

"""Runs Python's garbage collector between steps, on a schedule.

What it cures
    `gc-pause`: automatic collections inside a step, and `gc.collect()` calls that walk every object of the process.
    Ranks that collect in the same step no longer wait for each other (`straggler`).

When it does not help
    When objects die by themselves, without cycles, and few of them live: then the collector hardly runs. It does not
    find a leak; memory that grows with automatic collection grows here too.

Cost
    Cyclic garbage, and the device memory that hangs on it, waits for up to ``every`` steps. What exists after the
    warm-up is not collected until the block ends, even if it becomes garbage.

Numerics
    None: nothing is computed differently.

Example::

    from diagnose.kernels.gc_schedule import scheduled_gc

    with scheduled_gc(every=100) as collect:
        for x, y in loader:
            loss = train_step(x, y)
            collect.step()  # after the step's work was queued
    # the collector is as it was before
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CollectionSchedule", "scheduled_gc"]

EVERY = 100
"""Steps between collections: seconds to minutes of training, as long as automatic full collections usually take."""

WARM_UP = 3
"""Steps before what lives is frozen: optimizer state, compiled graphs and worker pools exist after the first few."""

MAX_YOUNG = 1_000_000
"""Containers made and not freed since the last collection that bring the next one forward: about 100 MB of them."""


class CollectionSchedule:
    """Counts steps and collects when it is time; made by ``scheduled_gc``.

    ``collections`` counts what was run so far, ``seconds`` how long it took together.
    """

    def __init__(self, *, every: int, warm_up: int, max_young: int) -> None:
        self.every, self.warm_up, self.max_young = every, warm_up, max_young
        self.steps = 0
        self.collections = 0
        self.seconds = 0.0
        self.has_frozen = False

    def step(self) -> bool:
        """Count a finished step; collect if it is time, and return whether it was."""
        self.steps += 1
        if not self.has_frozen:
            if self.steps < self.warm_up:
                return False
            self.freeze()
            return True
        if (self.steps - self.warm_up) % self.every and gc.get_count()[0] < self.max_young:
            return False
        self.collect()
        return True

    def collect(self) -> None:
        """Collect now, frozen objects left out."""
        start = time.perf_counter()
        gc.collect()
        self.collections += 1
        self.seconds += time.perf_counter() - start

    def freeze(self) -> None:
        """Collect, and take everything that is left out of later collections."""
        self.collect()
        gc.freeze()
        self.has_frozen = True


@contextmanager
def scheduled_gc(
    *, every: int = EVERY, warm_up: int = WARM_UP, max_young: int = MAX_YOUNG
) -> Iterator[CollectionSchedule]:
    """Switch automatic collection off within the block and yield the schedule whose ``step`` the loop calls.

    After ``warm_up`` steps what lives is frozen (0: at once); from then on a collection runs every ``every`` steps, or
    earlier when ``max_young`` containers have piled up. On leaving, also by an exception, automatic collection is as
    it was, and what was frozen here is collectable again; objects that the script had frozen itself stay frozen.

    Raises:
        ValueError: ``every`` or ``max_young`` is less than one, or ``warm_up`` is negative.
    """
    if every < 1 or max_young < 1 or warm_up < 0:
        raise ValueError(
            f"scheduled_gc needs every >= 1, max_young >= 1 and warm_up >= 0, not {every}, {max_young} and {warm_up}; "
            "leave them out for the defaults."
        )
    schedule = CollectionSchedule(every=every, warm_up=warm_up, max_young=max_young)
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    try:
        if not warm_up:
            schedule.freeze()
        yield schedule
    finally:
        if schedule.has_frozen and not was_frozen:  # gc.unfreeze takes all or nothing
            gc.unfreeze()
        if was_enabled:
            gc.enable()

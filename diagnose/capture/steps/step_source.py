"""Which source of events marks the steps, where the user gave none."""

from __future__ import annotations

from diagnose.capture.options import StepOn

__all__ = ["SourceChoice"]

RANK = {"transform": -1, "forward": 0, "dataloader": 1, "optimizer": 2, "marker": 3}
TRAINING_PATIENCE = 256  # events without an optimizer's step: the most micro-batches that one step is expected to have
EVALUATION_PATIENCE = 1024  # the same without gradients: a whole evaluation may well come before the training
TRANSFORM_PATIENCE = 512  # calls of modules that prepare data without any other: the largest usual batch


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
            return self._num_transforms > TRANSFORM_PATIENCE
        if not self.optimizer_exists:
            return True
        self._num_lesser += 1
        return self._num_lesser > (TRAINING_PATIENCE if gradients else EVALUATION_PATIENCE)

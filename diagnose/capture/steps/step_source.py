"""Which source of events marks the steps, where the user gave none."""

from __future__ import annotations

from diagnose.capture.options import StepOn

__all__ = ["SourceChoice"]

RANK = {"forward": 0, "dataloader": 1, "optimizer": 2, "marker": 3}
TRAINING_PATIENCE = 256  # events without an optimizer's step: the most micro-batches that one step is expected to have
EVALUATION_PATIENCE = 1024  # the same without gradients: a whole evaluation may well come before the training


class SourceChoice:
    """Takes the best source seen so far: marks, then optimizers, then DataLoaders, then forward calls.

    A better one may still take over until the measurement begins. While an optimizer exists that has not stepped,
    lesser sources must be patient: a step may be gathering gradients.
    """

    def __init__(self, step_on: StepOn) -> None:
        self.chosen: str | None = None
        self.optimizer_exists = False
        self._forced = None if step_on == "auto" else step_on
        self._num_lesser = 0

    def on_event(self, source: str, *, gradients: bool) -> bool:
        """Take an event of ``source``; return whether the choice has just changed to it."""
        if source == self.chosen or (self._forced is not None and source != self._forced):
            return False
        if self._forced is None:
            if self.chosen is not None and RANK[source] < RANK[self.chosen]:
                return False
            if not self._ripe(source, gradients=gradients):
                return False
        self.chosen = source
        return True

    def _ripe(self, source: str, *, gradients: bool) -> bool:
        if RANK[source] >= RANK["optimizer"] or not self.optimizer_exists:
            return True
        self._num_lesser += 1
        return self._num_lesser > (TRAINING_PATIENCE if gradients else EVALUATION_PATIENCE)

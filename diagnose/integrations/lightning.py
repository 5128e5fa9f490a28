"""A callback and a profiler for the Trainer of Lightning.

from diagnose.integrations.lightning import DiagnoseCallback, DiagnoseProfiler

trainer = lightning.Trainer(callbacks=[DiagnoseCallback("resnet")])  # watches the whole training
trainer = lightning.Trainer(profiler=DiagnoseProfiler())  # records a few steps of it
"""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import Profiler
from torch.optim.optimizer import register_optimizer_step_post_hook

from diagnose.api import Tracing, trace, watch
from diagnose.errors import DiagnoseError
from diagnose.model.diagnosis import Diagnosis
from diagnose.monitor.long_run import Watch
from diagnose.reports import text

__all__ = ["DiagnoseCallback", "DiagnoseProfiler"]

EPOCH, BATCH = "run_training_epoch", "run_training_batch"  # actions as Lightning names them


class DiagnoseCallback(Callback):
    """Watches a training, as ``diagnose.watch`` does with the same arguments; a step is an update of the optimizer.

    ``watched`` is the watch, from the begin of the training on. Of several optimizers, the updates after one batch are
    one step.
    """

    def __init__(self, name: str = "run", **options: Any) -> None:  # as diagnose.watch
        self.watched: Watch | None = None
        self._name, self._options = name, options
        self._updates = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # as Lightning calls it
        """Begin to watch."""
        self._updates = trainer.global_step
        self.watched = watch(self._name, **self._options)
        self.watched.__enter__()

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """End a step where the batch was the last one whose gradients an update needed."""
        if self.watched is not None and trainer.global_step != self._updates:
            self._updates = trainer.global_step
            self.watched.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the watch."""
        if self.watched is not None:
            self.watched.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the watch of a training that failed."""
        if self.watched is not None:
            self.watched.close(type(exception).__name__)


class DiagnoseProfiler(Profiler):
    """Records a few steady steps of a training, as ``diagnose.trace`` does with the same arguments.

    The summary, which Lightning logs at the end, is the report; ``diagnosis`` is the diagnosis, None where no step was
    recorded. A step is a batch after which an optimizer has updated.
    """

    def __init__(self, **options: Any) -> None:  # as diagnose.trace
        super().__init__()
        self.diagnosis: Diagnosis | None = None
        self._options = options
        self._tracing: Tracing | None = None
        self._text = ""
        self._updated = self._over = False

    def start(self, action_name: str) -> None:
        """Begin to record with the first epoch."""
        if action_name == EPOCH and self._tracing is None and not self._over:
            self._tracing = trace(**self._options).__enter__()
            self._handle = register_optimizer_step_post_hook(self._stepped)

    def stop(self, action_name: str) -> None:
        """End a step, and the recording where it is complete or the training fails."""
        if self._tracing is None:
            return
        if action_name == BATCH and self._updated and not self._tracing.done:
            self._updated = False
            self._tracing.step()
        elif action_name == EPOCH and (self._tracing.done or sys.exc_info()[1] is not None):
            self._end(sys.exc_info()[1])

    def summary(self) -> str:
        """Return the report."""
        self._end(None)
        return self._text

    def _stepped(self, *_: object) -> None:
        self._updated = True

    def _end(self, error: BaseException | None) -> None:
        tracing, self._tracing = self._tracing, None
        if tracing is None:
            return
        self._over = True
        self._handle.remove()
        try:
            tracing.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
            self.diagnosis = tracing.diagnosis
            self._text = text.render(self.diagnosis)
        except DiagnoseError as refusal:  # a training does not fail for what was recorded of it
            self._text = str(refusal)

"""A callback for the Trainer of Lightning.

from diagnose.integrations.lightning import DiagnoseCallback

trainer = lightning.Trainer(callbacks=[DiagnoseCallback("resnet")])  # watches the whole training
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from diagnose.api import watch
from diagnose.monitor.long_run import Watch

__all__ = ["DiagnoseCallback"]


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

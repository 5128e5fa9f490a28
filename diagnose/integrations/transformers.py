"""A callback for the Trainer of transformers.

from diagnose.integrations.transformers import DiagnoseCallback

trainer = Trainer(model, arguments, train_dataset=data, callbacks=[DiagnoseCallback("bert")])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from diagnose.api import watch
from diagnose.monitor.long_run import Watch

__all__ = ["DiagnoseCallback"]


class DiagnoseCallback(TrainerCallback):
    """Watches a training, as ``diagnose.watch`` does with the same arguments; a step is an update of the optimizer.

    ``watched`` is the watch, from the begin of the training on.
    """

    def __init__(self, name: str = "run", **options: Any) -> None:  # as diagnose.watch
        self.watched: Watch | None = None
        self._name, self._options = name, options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # as transformers calls it
        """Begin to watch."""
        self.watched = watch(self._name, **self._options)
        self.watched.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step."""
        if self.watched is not None:
            self.watched.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the watch."""
        if self.watched is not None:
            self.watched.close()

"""A watch for loops of accelerate.

from diagnose.integrations.accelerate import watch

with watch(accelerator, "llama") as w:
    for batch in loader:
        with accelerator.accumulate(model):
            ...
            optimizer.step()
        w.step()
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from accelerate import Accelerator

from diagnose import api
from diagnose.monitor.long_run import Watch

__all__ = ["AcceleratorWatch", "watch"]


class AcceleratorWatch:
    """Counts a batch as the end of a step only where its gradients were synchronised, hence the optimizer stepped."""

    def __init__(self, accelerator: Accelerator, watched: Watch) -> None:
        self.watched = watched
        self._accelerator = accelerator

    def __enter__(self) -> AcceleratorWatch:
        self.watched.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.watched.__exit__(kind, error, traceback)

    def step(self) -> None:
        """End a batch."""
        if self._accelerator.sync_gradients:
            self.watched.step()


def watch(accelerator: Accelerator, name: str = "run", **options: Any) -> AcceleratorWatch:  # as diagnose.watch
    """Watch a loop, as ``diagnose.watch`` does with the same arguments; a step is an update of the optimizer.

    Raises:
        UsageError: a bound makes no sense.
        OutputError: the folder of the run cannot be made.
    """
    return AcceleratorWatch(accelerator, api.watch(name, **options))

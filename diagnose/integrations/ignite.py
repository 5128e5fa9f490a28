"""A handler for the engines of PyTorch-Ignite.

from diagnose.integrations.ignite import DiagnoseHandler

DiagnoseHandler("resnet").attach(trainer)
"""

from __future__ import annotations

from typing import Any

from ignite.engine import Engine, Events

from diagnose.api import watch
from diagnose.monitor.long_run import Watch

__all__ = ["DiagnoseHandler"]


class DiagnoseHandler:
    """Watches a training, as ``diagnose.watch`` does with the same arguments.

    A step is ``every_iterations`` iterations of the engine: as many as gradients are accumulated over. ``watched`` is
    the watch, from the begin of the training on.
    """

    def __init__(self, name: str = "run", *, every_iterations: int = 1, **options: Any) -> None:  # as diagnose.watch
        self.watched: Watch | None = None
        self._name, self._options, self._every = name, options, every_iterations

    def attach(self, engine: Engine) -> None:
        """Watch the runs of an engine from now on."""
        engine.add_event_handler(Events.STARTED, self._begin)
        engine.add_event_handler(Events.ITERATION_COMPLETED(every=self._every), self._end_step)
        engine.add_event_handler(Events.TERMINATE, self._end)  # a training that is terminated completes, too
        engine.add_event_handler(Events.COMPLETED, self._end)
        engine.add_event_handler(Events.INTERRUPT, self._end)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._fail)

    def _begin(self, _engine: Engine) -> None:
        self.watched = watch(self._name, **self._options)
        self.watched.__enter__()

    def _end_step(self, _engine: Engine) -> None:
        if self.watched is not None:
            self.watched.step()

    def _end(self, _engine: Engine) -> None:
        if self.watched is not None:
            self.watched.close()

    def _fail(self, engine: Engine, error: BaseException) -> None:
        """End the watch with the error's name; an engine whose only handler this is would drop the error."""
        if self.watched is not None:
            self.watched.close(type(error).__name__)
        if not any(handler != self._fail for handler in _handlers(engine)):
            raise error


def _handlers(engine: Engine) -> list[Any]:
    """Return what handles an engine's errors."""
    return [handler for handler, *_ in engine._event_handlers[Events.EXCEPTION_RAISED]]

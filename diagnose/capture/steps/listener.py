"""Hooks into torch and reports when a step is over."""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from diagnose.capture.options import StepOn
from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.steps import hooks
from diagnose.capture.steps.construction_hooks import watch_constructions
from diagnose.capture.steps.hooks import Undo
from diagnose.capture.steps.period import StepFinder
from diagnose.capture.steps.step_source import SourceChoice

__all__ = ["Listener", "in_backward"]


class Listener:
    """Hooks into torch and calls ``on_boundary`` at every step boundary, on the thread that steps.

    Its argument is true where the definition of a step has just changed: steps counted before it are void.
    """

    def __init__(self, step_on: StepOn, script_config: ScriptConfig, on_boundary: Callable[[bool], None]) -> None:
        self.choice = SourceChoice(step_on)
        self.finder = StepFinder()
        self.num_events = 0
        self.installed = False
        self._step_on = step_on
        self._script_config = script_config
        self._on_boundary = on_boundary
        self._owner = os.getpid()
        self._enabled = True
        self._inside = False
        self._fresh = True  # no step was counted yet under the present definition of a step
        self._due = False  # a step ended inside a backward pass and is reported after it
        self._undo: list[Undo] = []
        self._forward: Undo | None = None
        self._backward_watched = False
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        if step_on in ("auto", "marker"):
            self._undo.append(hooks.watch_marks(lambda origin: self._on_event("marker", origin)))

    def install(self) -> None:
        """Put hooks into torch, which has just been imported."""
        self.installed = True
        self._undo.append(watch_constructions(self._constructed))  # first: watch_ddp asks for its calls
        self._undo.append(hooks.watch_optimizers(self._optimizer_stepped, self._optimizer_made))
        self._undo.append(hooks.watch_loaders(self._batch_delivered, self._loader_opened))
        self._undo.append(hooks.watch_ddp(self._script_config.watch_ddp))
        self._undo.append(hooks.watch_autocast(self._script_config.autocast_entered))
        if self._step_on in ("auto", "forward"):
            # The hook exists between outermost calls only, so what torch warns of cannot happen.
            warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")
            self._forward = hooks.watch_forward(lambda module: self._on_event("forward", module))
            self._undo.append(self._forward)

    def remove(self) -> None:
        """Remove every hook; the script goes on unhooked."""
        self._enabled = False
        while self._undo:
            self._undo.pop()()

    def lock(self) -> None:
        """Fix what a step is."""
        self.finder.locked = True
        self._leave_forward()

    @property
    def active(self) -> bool:
        """Return whether events count; a forked child must not capture."""
        return self._enabled and os.getpid() == self._owner

    @property
    def inside(self) -> bool:
        """Return whether a boundary is being reported."""
        return self._inside

    def shut_loaders(self) -> None:
        """Shut the workers of DataLoader iterators down that the script has left behind."""
        hooks.shut_workers(self._iterators)

    def _constructed(self, name: str, made: object) -> None:
        if self.active:
            self._script_config.constructed(name, made)

    def _optimizer_made(self) -> None:
        self.choice.optimizer_exists = True
        self._leave_forward()

    def _optimizer_stepped(self, optimizer: object) -> None:
        if self.active:
            self._script_config.optimizer_stepped(optimizer)
            self._on_event("optimizer", optimizer)

    def _loader_opened(self, loader: object, dataset: object) -> None:
        if self.active:
            self._script_config.loader_opened(loader, dataset)

    def _batch_delivered(self, iterator: object) -> None:
        if not self.active:
            return
        self._iterators.add(iterator)
        dataset = getattr(iterator, "_dataset", None)
        self._script_config.batch_delivered(dataset, iterator)
        if self._step_on == "dataloader" or threading.current_thread() is threading.main_thread():
            self._on_event("dataloader", dataset)  # in another thread it is a prefetcher, ahead of the steps

    def _leave_forward(self) -> None:
        """Stop watching forward calls where a better source exists and the user did not ask for them."""
        if self._forward is not None and self._step_on == "auto" and self.choice.chosen != "forward":
            self._forward()
            self._forward = None

    def _on_event(self, source: str, origin: object) -> None:
        """Take one event and report the boundary that it is, if it is one."""
        if not self.active or self._inside:
            return
        self.num_events += 1
        backward = in_backward()
        if backward and source == "forward":
            return  # activation checkpointing computes a part again
        if not self._ends_step(source, origin):
            return
        if backward:
            self._due = True
            self._watch_backward()
        else:
            self._report()

    def _ends_step(self, source: str, origin: object) -> bool:
        if not self.finder.locked and self.choice.on_event(source, gradients=_gradients()):
            self.finder = StepFinder(at_start=source == "forward")
            self._fresh = True
        if source != self.choice.chosen:
            return False
        ends_step, changed = self.finder.on_event(id(origin))
        self._fresh |= changed
        return ends_step

    def _watch_backward(self) -> None:
        """Report boundaries inside a backward pass after it: a profiler started inside would be lost with it."""
        if not self._backward_watched:
            self._backward_watched = True
            self._undo.append(hooks.watch_backward(self._backward_over))

    def _backward_over(self) -> None:
        if self._due and self.active and not in_backward():
            self._due = False
            self._report()

    def _report(self) -> None:
        fresh, self._fresh = self._fresh, False
        self._inside = True
        try:
            self._on_boundary(fresh)
        finally:
            self._inside = False


def _gradients() -> bool:
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def in_backward() -> bool:
    """Return whether this thread is executing a backward pass."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "_C") and int(torch._C._current_graph_task_id()) != -1

"""Hooks into torch and reports when a step is over."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Concatenate, ParamSpec

from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.steps import hooks
from diagnose.capture.steps import phases as phase_hooks
from diagnose.capture.steps.hooks import Undo, gradients_on, in_backward, watch_constructions
from diagnose.capture.steps.module_hooks import ModuleHooks
from diagnose.capture.steps.phases import Phases
from diagnose.capture.steps.saves import Saves
from diagnose.capture.steps.step_source import SourceChoice, StepFinder, by_torch, in_module, num_numbers, prepares_data
from diagnose.model.limits import StepOn

_P = ParamSpec("_P")


def _metered(act: Callable[Concatenate[Listener, _P], None]) -> Callable[Concatenate[Listener, _P], None]:
    """Add what a hook takes to the listener's ``own_ns``, if it has a meter."""

    def metered(self: Listener, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        meter = self.meter
        if meter is None or self.resting:
            act(self, *args, **kwargs)
            return
        began = meter()
        act(self, *args, **kwargs)
        self.own_ns += meter() - began

    return metered


class Listener:
    """Hooks into torch and calls ``on_boundary`` at every step boundary, on the thread that steps.

    Its argument is true where the definition of a step has just changed: steps counted before it are void.

    ``brief`` leaves out what only a recording needs. ``resting`` reports boundaries and nothing else; it is set at a
    boundary, once the step is locked. With a ``meter``, a clock, what the hooks take is added up in ``own_ns``.
    """

    def __init__(self, step_on: StepOn, script_config: ScriptConfig, on_boundary: Callable[[bool], None]) -> None:
        self.choice = SourceChoice(step_on)
        self.finder = StepFinder()
        self.phases = Phases()
        self.saves = Saves()
        self.module_hooks = ModuleHooks(lambda: self.num_events)
        self.num_events = 0
        self.num_epochs = 0  # DataLoaders that an iteration of was begun
        self.first_event_at: float | None = None  # of an event or a backward pass, time.monotonic()
        self.installed = False
        self._step_on = step_on
        self.script_config = script_config
        self._on_boundary = on_boundary
        self.brief = False
        self.resting = False
        self.meter: Callable[[], int] | None = None
        self.own_ns = 0
        self.active = True  # whether events count: until the hooks are removed, and not in a forked child
        _LISTENERS.add(self)
        self._main = threading.main_thread().ident
        self._inside = False
        self._fresh = True  # no step was counted yet under the present definition of a step
        self._due = False  # a step ended inside a backward pass and is reported after it
        self._undo: list[Undo] = []
        self._forward: Undo | None = None
        self._loading: dict[int, int] = {}  # how many DataLoaders a thread is waiting for, one within another
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        if step_on in ("auto", "marker"):
            self._undo.append(hooks.watch_marks(lambda origin: self._on_event("marker", origin)))

    def install(self) -> None:
        """Put hooks into torch, which has just been imported."""
        self.installed = True
        self._undo.append(watch_constructions(self._constructed))
        self._undo.append(hooks.watch_compile(self._compiles))
        self._undo.append(hooks.watch_optimizers(self._optimizer_stepped, self._optimizer_made))
        self._undo.append(hooks.watch_loaders(self._batch_delivered, self._loader_opened, self._loads))
        self._undo.append(hooks.watch_backward(self._backward_begins, self._backward_over))
        self._undo.append(phase_hooks.watch_gradients(self._gradients_off))
        self._undo.append(phase_hooks.watch_modes(self._if_here(self.phases.mode)))
        self._undo.append(phase_hooks.watch_saves(self._if_here(self.phases.saving), self._saved))
        self._undo.append(self.module_hooks.watch())
        self._undo.append(hooks.watch_autocast(self.script_config.autocast_entered))
        if self._step_on in ("auto", "forward"):
            # The hook exists between outermost calls only, so what torch warns of cannot happen.
            warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")
            self._forward = hooks.watch_forward(self._called)
            self._undo.append(self._forward)

    def remove(self) -> None:
        """Remove every hook; the script goes on unhooked."""
        self.active = False
        while self._undo:
            self._undo.pop()()

    def lock(self) -> None:
        """Fix what a step is."""
        self.finder.locked = True
        self._leave_forward()

    def rest(self) -> None:
        """Report boundaries only, until ``wake``."""
        if self._main not in self._loading:  # else the boundary lies inside a wait for a batch, whose end must be seen
            self.phases.forget()
            self.resting = True

    def wake(self) -> None:
        """Take notice of everything again, from the boundary that is being reported."""
        self.resting = False
        self.phases.begin()

    @property
    def inside(self) -> bool:
        """Return whether a boundary is being reported."""
        return self._inside

    def shut_loaders(self) -> None:
        """Shut the workers of DataLoader iterators down that the script has left behind."""
        hooks.shut_workers(self._iterators)

    def _saved(self, state: object, took_ns: int) -> None:
        if self.active and not self.resting and threading.get_ident() == self._main:
            self.saves.saved(state, took_ns)

    def _constructed(self, name: str, made: object) -> None:
        if self.active:
            self.script_config.constructed(name, made)

    def _compiles(self, target: object, backend: object) -> None:
        if self.active:
            self.script_config.compiles(target, backend)

    def _optimizer_made(self) -> None:
        self.choice.optimizer_exists = True
        self._leave_forward()

    def _optimizer_stepped(self, optimizer: object) -> None:
        if self.active:
            self.script_config.optimizer_stepped(optimizer)
            self._on_event("optimizer", optimizer)

    def _loader_opened(self, loader: object, dataset: object) -> None:
        if self.active:
            self.num_epochs += 1
            self.script_config.loader_opened(loader, dataset)

    @_metered
    def _loads(self, begins: bool, iterator: object = None) -> None:
        """Take notice of a wait for a batch; what a dataset loads from another DataLoader is part of it."""
        thread = get_ident()
        on_main = thread == self._main
        if on_main and self.resting:
            return
        depth = self._loading[thread] = self._loading.get(thread, 0) + (1 if begins else -1)
        if not depth:
            del self._loading[thread]  # threads come and go
        if not on_main or depth != begins or not self.active:
            return
        if begins and not self.brief:
            self.script_config.batch_asked(iterator)
        self.phases.loading(begins)

    def _batch_delivered(self, iterator: object, batch: object) -> None:
        if not self.active or (self.resting and self.choice.chosen != "dataloader"):
            return
        self._take_batch(iterator, batch)
        thread = get_ident()
        # Of a dataset that has a DataLoader of its own, or in another thread a prefetcher's, ahead of the steps.
        is_ahead = thread in self._loading or not (self._step_on == "dataloader" or thread == self._main)
        if not is_ahead:
            self._on_event("dataloader", getattr(iterator, "_dataset", None))

    @_metered
    def _take_batch(self, iterator: object, batch: object) -> None:
        thread, dataset = get_ident(), getattr(iterator, "_dataset", None)
        self._iterators.add(iterator)
        if not self.brief:
            self.script_config.batch_delivered(dataset, iterator)
            self.script_config.first_batch(dataset, batch)
        if thread == self._main and thread not in self._loading:
            self.phases.batch(0 if self.brief else num_numbers(batch))

    def _steps_here(self) -> bool:
        """Return whether what happens now happens on the thread that steps."""
        return get_ident() == self._main and self.active and not self.resting

    @_metered
    def _gradients_off(self, begins: bool) -> None:
        if self._steps_here() and not (begins and (by_torch() or in_module())):
            self.phases.gradients_off(begins)

    def _if_here(self, act: phase_hooks.OnSwitch) -> phase_hooks.OnSwitch:
        """Return a function that acts on the thread that steps only."""

        def acted(on: bool) -> None:
            if self._steps_here():
                act(on)

        return acted

    @_metered
    def _backward_begins(self) -> None:
        if self._steps_here():
            self.first_event_at = self.first_event_at or time.monotonic()
            self.phases.backward()

    def _leave_forward(self) -> None:
        """Stop watching forward calls where a better source exists and the user did not ask for them."""
        if self._forward is not None and self._step_on == "auto" and self.choice.chosen != "forward":
            self._forward()
            self._forward = None

    def _called(self, module: object) -> None:
        """Take a call of an outermost module; what a DataLoader calls for its batch prepares data."""
        if get_ident() not in self._loading:
            self._on_event("forward", module, prepares_data=not self.finder.locked and prepares_data(module))

    def _on_event(self, source: str, origin: object, *, prepares_data: bool = False) -> None:
        """Take one event and report the boundary that it is, if it is one."""
        if not self.active or self._inside:
            return
        self.num_events += 1
        self.first_event_at = self.first_event_at or time.monotonic()
        finder = self.finder
        if finder.locked and (source != self.choice.chosen or id(origin) != finder.anchor):
            return  # nearly every event
        backward = in_backward()
        if backward and source == "forward":
            return  # activation checkpointing computes a part again
        if not finder.locked and not self._ends_step(source, origin, prepares_data=prepares_data):
            return
        if backward:
            self._due = True
        else:
            self._report()

    def _ends_step(self, source: str, origin: object, *, prepares_data: bool) -> bool:
        if self.choice.on_event(source, gradients=gradients_on(), prepares_data=prepares_data):
            self.finder = StepFinder(at_start=source == "forward")
            self._fresh = True
        if not self.choice.counts(source, prepares_data=prepares_data):
            return False
        ends_step, changed = self.finder.on_event(id(origin))
        self._fresh |= changed
        return ends_step

    def _backward_over(self) -> None:
        """Report a boundary inside a backward pass after it: a profiler started inside would be lost with it."""
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


_LISTENERS: weakref.WeakSet[Listener] = weakref.WeakSet()


def _forked() -> None:
    """End every listener in a forked child; looking for the process's number at each event takes longer."""
    for each in _LISTENERS:
        each.active = False


os.register_at_fork(after_in_child=_forked)

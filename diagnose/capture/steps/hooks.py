"""Hooks for the events that may end a step: optimizer steps, DataLoader batches, outermost forward calls, marks.

Each ``watch_*`` function installs one hook and returns a function that removes it. They change class
attributes and torch's own global hooks only, so names that a script imported beforehand are reached too. What is
called back while a model is being compiled carries ``_torchdynamo_disable``, so it is never compiled itself; nor is
what an optimizer's hook calls.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

from diagnose.capture import step_marker as marker

# What autograd does on this thread at this moment.


def gradients_on() -> bool:
    """Return whether operators are recorded for a backward pass, or would be once torch is imported."""
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def in_backward() -> bool:
    """Return whether this thread is executing a backward pass."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "_C") and bool(torch._C._current_graph_task_id() != -1)


# Replaces a function of a class or a module, and puts it back.

OnEvent: TypeAlias = Callable[[object], None]
"""Called at each event with the object that it comes from."""
Undo: TypeAlias = Callable[[], None]


def replace_function(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Undo:
    """Replace a function of a class or module by what ``make`` returns for it.

    The function returned puts the original back, unless somebody else has replaced it since.
    """
    original, is_inherited = getattr(owner, name), name not in vars(owner)
    replacement = functools.wraps(original)(make(original))
    setattr(owner, name, replacement)

    def undo() -> None:
        if getattr(owner, name, None) is replacement:
            if is_inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    return undo


def nothing() -> None:
    """Do nothing, and return nothing."""


def undo_all(undo: Sequence[Undo]) -> Undo:
    """Return what calls these, the latest first."""

    def undo_each() -> None:
        for each in reversed(undo):
            each()

    return undo_each


def _ignore(_origin: object) -> None:
    """Take no notice."""


def around(cls: type, name: str, *, before: OnEvent = _ignore, after: OnEvent = _ignore) -> Undo:
    """Call ``before`` and ``after`` with the object around each call of the method ``name``."""

    def make(original: Any) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            before(self)
            result = original(self, *args, **kwargs)
            after(self)
            return result

        return wrapped

    return replace_function(cls, name, make)


# Hooks into the calls that changes edit: of DataLoader, optimizers, DDP and anomaly detection.

ANOMALY = ("set_detect_anomaly", "detect_anomaly")  # what turns anomaly detection on: a call, and a region

OnMade: TypeAlias = Callable[[str, object], None]
"""Called with the name that a class is known by and with the object, before its constructor returns."""


def watch_constructions(made: OnMade) -> Undo:
    """Report every object of these classes while the call that makes it is being executed; return what ends that.

    Of anomaly detection only what turns it on is reported.
    """
    import torch
    from torch.autograd import anomaly_mode
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.optimizer import Optimizer
    from torch.utils.data import DataLoader

    def turned(setting: object) -> None:
        if torch.is_anomaly_enabled():
            made(ANOMALY[0], setting)

    return undo_all(
        [
            around(anomaly_mode.set_detect_anomaly, "__init__", after=turned),
            around(anomaly_mode.detect_anomaly, "__enter__", before=lambda region: made(ANOMALY[1], region)),
            around(DataLoader, "__init__", after=lambda loader: made("DataLoader", loader)),
            around(Optimizer, "__init__", after=lambda optimizer: made(type(optimizer).__name__, optimizer)),
            around(DistributedDataParallel, "__init__", after=lambda model: made("DistributedDataParallel", model)),
        ]
    )


def watch_compile(compiles: Callable[[object, object], None]) -> Undo:
    """Report what is given to ``torch.compile``, and the backend, unless the call switches compiling off."""
    import torch

    def make(original: Any) -> Callable[..., Any]:
        def watched(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            if model is not None and not kwargs.get("disable"):
                compiles(model, kwargs.get("backend"))
            return original(model, *args, **kwargs)

        return watched

    return replace_function(torch, "compile", make)


# Calls back right after a module was imported, so that nothing is imported before the script asks for it.
#
# A script may set environment variables that torch reads while it is imported (OMP_NUM_THREADS, PYTORCH_ALLOC_CONF,
# TORCH_LOGS); importing torch ahead of the script would defeat them.


def when_imported(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call ``then`` once ``name`` has been imported, at once if it already is; return what forgets the request."""
    if name in sys.modules:
        then()
        return lambda: None
    watcher = _Watcher(name, then)
    sys.meta_path.insert(0, watcher)
    return watcher.forget


class _Watcher(MetaPathFinder):
    """Finds one module as the other finders would and wraps its loader."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = then
        self.searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec with a loader that calls back; None for every other module."""
        if fullname != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self)
        return spec

    def forget(self) -> None:
        """Stop watching."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _CallingLoader(Loader):
    """Loads like the loader it wraps and calls back afterwards; leaves no trace of itself in the module."""

    def __init__(self, loader: Any, watcher: _Watcher) -> None:  # loaders share no useful type
        self.loader = loader
        self.watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the wrapped loader creates."""
        created: ModuleType | None = self.loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, put its own loader back and call back."""
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.watcher.forget()
        self.watcher.then()


def watch_marks(on_event: OnEvent) -> Undo:
    """Report each call of ``diagnose.step()``."""
    marker.set_listener(lambda: on_event(marker))
    return lambda: marker.set_listener(None)


def watch_optimizers(on_event: OnEvent, made: Callable[[], None]) -> Undo:
    """Report the end of every optimizer's step, and call ``made`` when an optimizer is constructed."""
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

    uncompiled: OnEvent | None = None

    def stepped(optimizer: object, args: object, kwargs: object) -> None:  # torch's signature
        nonlocal uncompiled
        if uncompiled is None:
            # A function may be compiled that steps an optimizer.
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            if disable is None:
                on_event(optimizer)
                return
            uncompiled = disable(on_event)
        uncompiled(optimizer)

    _keep_uncompiled(stepped)
    handle = register_optimizer_step_post_hook(stepped)
    return undo_all([handle.remove, around(Optimizer, "__init__", before=lambda _optimizer: made())])


def watch_loaders(
    delivered: Callable[[object, object], None],
    opened: Callable[[object, object], None],
    loading: Callable[[bool, object], None],
) -> Undo:
    """Report every batch, after its iterator; call ``opened`` with loader and dataset when an epoch begins.

    ``loading`` is called with true and the iterator when a batch is asked for, and with false once it is there or
    there is none.
    """
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def watched(next_batch: Any) -> Callable[[Any], object]:
        def watched_next(self: Any) -> object:  # torch's iterator, whose type is private
            loading(True, self)
            try:
                batch = next_batch(self)
            finally:
                loading(False, self)
            delivered(self, batch)
            return batch

        return watched_next

    undo_opened = around(DataLoader, "__iter__", before=lambda loader: opened(loader, getattr(loader, "dataset", None)))
    return undo_all([undo_opened, replace_function(_BaseDataLoaderIter, "__next__", watched)])


def shut_workers(iterators: Iterable[Any]) -> None:
    """Shut the workers of DataLoader iterators down.

    Left to the collector of cycles, their queues would be gone before the workers receive the request to end, and
    each worker would be waited for in vain (5 s each, in torch 2.13).
    """
    for iterator in list(iterators):
        with contextlib.suppress(Exception):  # it has none, or they were killed; the capture is published all the same
            iterator._shutdown_workers()


def watch_autocast(entered: OnEvent) -> Undo:
    """Report every autocast region that is entered outside compiled code."""
    from torch.amp.autocast_mode import autocast

    return around(autocast, "__enter__", before=entered)


def watch_backward(began: Callable[[], None], over: Callable[[], None]) -> Undo:
    """Report begin and end of every backward pass that ``Tensor.backward`` or ``torch.autograd.backward`` starts."""
    import torch

    def watched(backward: Any) -> Callable[..., None]:
        def watched_backward(*args: Any, **kwargs: Any) -> None:
            began()
            backward(*args, **kwargs)
            over()

        return watched_backward

    return replace_function(torch.autograd, "backward", watched)


class watch_forward:  # it must remember which call is the outermost
    """Report the beginning of every call of an outermost module; calling the object removes the hooks.

    The global hook exists only between outermost calls: inside one, modules run and compile unhooked.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._stopped = False
        self._inner: Any = None
        self._outer: Any = None
        _keep_uncompiled(self._begins, self._ends)
        self._undo_compile = self._wrap_compile()
        self._register()

    def __call__(self) -> None:
        """Remove the hooks."""
        self._stopped = True
        self._undo_compile()
        self._unhook()
        self._outer.remove()

    def _register(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._stopped:
            return
        if self._outer is None:
            self._outer = register_module_forward_pre_hook(self._begins)
        else:  # as it was
            self._outer.hooks_dict_ref()[self._outer.id] = self._begins

    def _begins(self, module: Any, args: object) -> None:  # torch's signature
        if self._inner is not None:
            return
        self._outer.remove()
        self._inner = module
        if getattr(module, "_compiled_call_impl", None) is None:
            # What register_forward_hook does, in a fifth of the time: a policy is called thousands of times a step.
            module._forward_hooks[self._outer.id] = self._ends
            module._forward_hooks_always_called[self._outer.id] = True
        self._on_event(module)

    def _unhook(self) -> None:
        if self._inner is not None:
            self._inner._forward_hooks.pop(self._outer.id, None)
            self._inner._forward_hooks_always_called.pop(self._outer.id, None)
            self._inner = None

    def _wrap_compile(self) -> Undo:
        """Report modules that compile themselves in place from outside their compiled call, which absorbs hooks."""
        from torch.nn import Module

        def compiled(module: Any) -> None:
            call = module._compiled_call_impl

            @functools.wraps(call)
            def outermost(*args: Any, **kwargs: Any) -> Any:
                if self._stopped or self._inner is not None:
                    return call(*args, **kwargs)
                self._begins(module, args)
                try:
                    return call(*args, **kwargs)
                finally:
                    self._ends(module, args, None)

            module._compiled_call_impl = outermost

        return around(Module, "compile", after=compiled)

    def _ends(self, module: object, args: object, output: object) -> None:  # torch's signature
        if self._inner is not None:
            self._unhook()
            self._register()


def _keep_uncompiled(*functions: Any) -> None:  # functions and bound methods alike
    for function in functions:
        getattr(function, "__func__", function)._torchdynamo_disable = True

"""Follows which module calls an operator, and which storages hold parameters, buffers, gradients and states."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.nn import Module

from diagnose.capture.dataflow.storages import Storages
from diagnose.capture.steps.hooks import Undo, nothing, replace_function
from diagnose.model.dataflow import Role


def plain_path(path: str) -> str:
    """Return a module's or a parameter's path without what torch.compile puts into it."""
    return ".".join([part for part in path.split(".") if part != "_orig_mod"])


class Modules:
    """The modules that are being called, per thread; outermost ones are known by a weak reference."""

    def __init__(self) -> None:
        self._calls: dict[int, list[int]] = {}  # ids of modules by thread, innermost last
        self._outermost: dict[int, weakref.ref[Module]] = {}
        self._paths: dict[int, tuple[int, str]] = {}  # outermost module and the path within it, by id of a module
        self._kinds: dict[int, str] = {}
        self._undo: Undo = nothing

    def start(self) -> None:
        """Begin to follow."""
        self._undo = replace_function(Module, "_call_impl", self._followed)

    def stop(self) -> None:
        """End following."""
        self._undo()

    def current(self, thread: int) -> int:
        """Return the id of the innermost module that a thread is calling, 0 outside of any."""
        calls = self._calls.get(thread)
        return calls[-1] if calls else 0

    @property
    def threads(self) -> set[int]:
        """Return the threads that have called modules."""
        return set(self._calls)

    def outermost(self) -> Iterator[tuple[Module, str]]:
        """Yield the outermost modules that are alive, and what the names of their parameters begin with."""
        alive = [module for ref in self._outermost.values() if (module := ref()) is not None]
        several = sum(any(True for _ in module.parameters()) for module in alive) > 1
        for module in alive:
            yield module, f"{type(module).__name__}." if several else ""

    def names(self) -> Callable[[int], str]:
        """Return a function from a module's id to its name: a path, or of an outermost module its class."""
        starts = {id(module): start for module, start in self.outermost()}

        def name(module: int) -> str:
            outermost, path = self._paths.get(module, (0, ""))
            return starts.get(outermost, "") + path if path else self._kinds.get(module, "")

        return name

    def _followed(self, call: Any) -> Callable[..., Any]:
        def followed_call(module: Any, *args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            calls = self._calls.get(thread)
            if calls is None:
                calls = self._calls[thread] = []
            number = id(module)
            if number not in self._kinds:
                self._meet(module, is_outermost=not calls)
            calls.append(number)
            try:
                return call(module, *args, **kwargs)
            finally:
                calls.pop()

        return followed_call

    def _meet(self, module: Module, *, is_outermost: bool) -> None:
        self._kinds[id(module)] = type(module).__name__
        if is_outermost:
            self._outermost[id(module)] = weakref.ref(module)
            for path, each in module.named_modules():
                self._paths.setdefault(id(each), (id(module), plain_path(path)))


# Which storages hold parameters, buffers, gradients and the state of optimizers.


class Owner(NamedTuple):
    """What a storage is to the program."""

    role: Role
    name: str


class Roles:
    """The owners of storages, looked up at the ends of steps and when an optimizer steps."""

    def __init__(self, modules: Modules, storages: Storages) -> None:
        self.of_storage: dict[int, Owner] = {}
        self.wide: dict[str, tuple[str, int]] = {}  # buffers of 64-bit floats: file and line of their class's __init__
        self._modules, self._storages = modules, storages
        self._names: dict[int, str] = {}  # of parameters, by their storage
        self._optimizers: dict[int, Any] = {}
        self._is_still: dict[int, bool] = {}  # by storage of a parameter: whether its learning rate is 0 for good
        self._parameter_of: dict[int, int] = {}  # by storage of an optimizer's state

    def optimizer_steps(self, optimizer: Any) -> None:
        """Note an optimizer's parameters and gradients: gradients may be gone at the step's end."""
        self._optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            # A scheduler multiplies the initial rate.
            rates = group.get("lr"), group.get("initial_lr", 0.0)
            is_still = all(isinstance(rate, (int, float)) and rate == 0 for rate in rates)
            for parameter in group["params"]:
                self._note_parameter(parameter, "")
                storage = self._storage(parameter)
                self._is_still[storage] = is_still and self._is_still.get(storage, True)

    @property
    def held(self) -> frozenset[int]:
        """Return the storages of parameters whose learning rate is 0, and of their optimizer's state."""
        still = {storage for storage, is_still in self._is_still.items() if is_still and storage >= 0}
        return frozenset((*still, *(state for state, of in self._parameter_of.items() if of in still)))

    def end_step(self) -> None:
        """Note the owners that there are at the end of a step."""
        for module, start in self._modules.outermost():
            for name, parameter in module.named_parameters():
                self._note_parameter(parameter, start + plain_path(name))
            for name, buffer in module.named_buffers():
                self._note(buffer, "buffer", start + plain_path(name))
                if buffer.dtype is torch.float64:
                    made = type(module.get_submodule(name.rpartition(".")[0])).__init__
                    if isinstance(code := getattr(made, "__code__", None), CodeType):
                        self.wide[start + plain_path(name)] = code.co_filename, code.co_firstlineno
        for optimizer in self._optimizers.values():
            for parameter, state in optimizer.state.items():
                storage = self._storage(parameter)
                for tensor in _tensors(state):
                    self._note(tensor, "optimizer state", self._names.get(storage, ""))
                    self._parameter_of[self._storage(tensor)] = storage

    def _note_parameter(self, parameter: Any, name: str) -> None:
        self._note(parameter, "parameter", name)
        if name:
            self._names[self._storage(parameter)] = name
        if parameter.grad is not None:
            self._note(parameter.grad, "gradient", name)

    def _note(self, tensor: Any, role: Role, name: str) -> None:
        storage = self._storage(tensor)
        known = self.of_storage.get(storage)
        if storage >= 0 and (known is None or (name and not known.name)):
            self.of_storage[storage] = Owner(role, name)

    def _storage(self, tensor: Any) -> int:
        value = self._storages.present(getattr(tensor, "_local_tensor", tensor))  # of a DTensor
        return self._storages.values[value].storage if value >= 0 else -1


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for each in state.values():
            yield from _tensors(each)
    elif isinstance(state, (list, tuple)):
        for each in state:
            yield from _tensors(each)

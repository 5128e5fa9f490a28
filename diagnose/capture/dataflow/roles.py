"""Which storages hold parameters, buffers, gradients and the state of optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from diagnose.capture.dataflow.modules import Modules, plain_path
from diagnose.capture.dataflow.storages import Storages
from diagnose.model.dataflow import Role

__all__ = ["Owner", "Roles"]


class Owner(NamedTuple):
    """What a storage is to the program."""

    role: Role
    name: str


class Roles:
    """The owners of storages, looked up at the ends of steps and when an optimizer steps."""

    def __init__(self, modules: Modules, storages: Storages) -> None:
        self.of_storage: dict[int, Owner] = {}
        self._modules, self._storages = modules, storages
        self._names: dict[int, str] = {}  # of parameters, by their storage
        self._optimizers: dict[int, Any] = {}

    def optimizer_steps(self, optimizer: Any) -> None:
        """Note an optimizer's parameters and gradients: gradients may be gone at the step's end."""
        self._optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._note_parameter(parameter, "")

    def end_step(self) -> None:
        """Note the owners that there are at the end of a step."""
        for module, start in self._modules.outermost():
            for name, parameter in module.named_parameters():
                self._note_parameter(parameter, start + plain_path(name))
            for name, buffer in module.named_buffers():
                self._note(buffer, "buffer", start + plain_path(name))
        for optimizer in self._optimizers.values():
            for parameter, state in optimizer.state.items():
                name = self._names.get(self._storage(parameter), "")
                for tensor in _tensors(state):
                    self._note(tensor, "optimizer state", name)

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

"""Weights that arrive with the first call of the module that owns them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

__all__ = ["Pending"]


class Pending:
    """The tensors of a model that are still on the meta device; ``names`` lists them.

    Each module takes its own before its first forward pass, under one lock, so calls from several threads are safe.
    """

    def __init__(self, model: nn.Module, tensors: dict[str, Tensor], place: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._model, self._tensors, self._place = model, dict(tensors), place
        self._lock = threading.RLock()  # placing a weight may call into a module of a tensor subclass
        self._twins: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # by the one on meta, so that ties stay ties
        self._handles: dict[str, Any] = {}
        for path, module in model.named_modules():
            if self._own(path, module):
                self._handles[path] = module.register_forward_pre_hook(self._hook(path), prepend=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors that no call has needed so far."""
        return tuple(self._tensors)

    def load_rest(self) -> None:
        """Load what is left, such as before saving the model."""
        for path in list(self._handles):
            self._load(path, self._model.get_submodule(path))

    def _hook(self, path: str) -> Callable[[nn.Module, Any], None]:
        return lambda module, _: self._load(path, module)

    def _own(self, path: str, module: nn.Module) -> list[str]:
        held = {**module._parameters, **module._buffers}
        return [name for name in held if (f"{path}.{name}" if path else name) in self._tensors]

    def _load(self, path: str, module: nn.Module) -> None:
        with self._lock:
            if path not in self._handles:  # another thread was first
                return
            for name in self._own(path, module):
                full = f"{path}.{name}" if path else name
                if name in module._parameters:
                    module._parameters[name] = self._parameter(module._parameters[name], full)
                else:
                    wanted = module._buffers[name]
                    assert wanted is not None
                    module._buffers[name] = self._place(self._tensors[full], wanted)
                del self._tensors[full]
            self._handles.pop(path).remove()  # only now: a thread that finds no hook must find the weights

    def _parameter(self, wanted: nn.Parameter | None, name: str) -> nn.Parameter:
        assert wanted is not None
        if id(wanted) not in self._twins:
            placed = nn.Parameter(self._place(self._tensors[name], wanted), requires_grad=wanted.requires_grad)
            self._twins[id(wanted)] = (wanted, placed)
        return self._twins[id(wanted)][1]

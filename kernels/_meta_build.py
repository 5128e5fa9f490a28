"""A model without memory for its weights: everything on the meta device but what no checkpoint holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from diagnose.kernels._state import random_state

__all__ = ["built_on_meta", "tied_names"]

M = TypeVar("M", bound=nn.Module)

_patching = threading.Lock()


def built_on_meta(build: Callable[[], M]) -> M:
    """Return ``build()`` with parameters and persistent buffers on the meta device.

    Buffers that are not persistent and tensors kept as plain attributes (masks, frequencies) are in no checkpoint: they
    hold the values that the constructor gives them, on the CPU. The random generators are as before the call.
    """
    restore = random_state()
    try:
        with torch.device("meta"):
            model = _checked(build())
        if list(_unsaved_on_meta(model)):
            _take_unsaved(model, _without_weights(build))
    except (RuntimeError, NotImplementedError):  # a constructor that looks at values, which meta tensors lack
        model = _without_weights(build)
    finally:
        restore()
    return model


def tied_names(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that the model has under several names."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _without_weights(build: Callable[[], M]) -> M:
    """Build on the CPU, each parameter going to meta as it is registered, before its values are written.

    Memory that is only allocated is not resident, so this costs what constructors compute themselves
    (``nn.Parameter(torch.randn(...))``), one tensor at a time.
    """
    with _parameters_to_meta():
        return _checked(build())


def _checked(model: M) -> M:
    if not isinstance(model, nn.Module):
        raise TypeError(f"build must return a module, not {type(model).__name__}.")
    return model


@contextmanager
def _parameters_to_meta() -> Iterator[None]:
    register = nn.Module.register_parameter

    def to_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is None or param.is_meta:
            return
        if param not in moved:
            on_meta = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            on_meta.__dict__.update(param.__dict__)
            moved[param] = on_meta
        self._parameters[name] = moved[param]

    moved = WeakTensorKeyDictionary()  # a parameter that is registered twice becomes one
    with _patching:
        nn.Module.register_parameter = to_meta  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.register_parameter = register  # type: ignore[method-assign]


def _unsaved(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield what the module holds of tensors that its state_dict leaves out."""
    for name in module._non_persistent_buffers_set:
        yield name, module._buffers[name]
    for name, value in vars(module).items():
        if name not in ("_parameters", "_buffers", "_modules"):
            yield name, value


def _is_on_meta(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.is_meta
    if isinstance(value, dict):
        return any(map(_is_on_meta, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_is_on_meta, value))


def _unsaved_on_meta(model: nn.Module) -> Iterator[tuple[str, str]]:
    for path, module in model.named_modules():
        yield from ((path, name) for name, value in _unsaved(module) if _is_on_meta(value))


def _take_unsaved(model: nn.Module, real: nn.Module) -> None:
    for path, name in list(_unsaved_on_meta(model)):
        setattr(model.get_submodule(path), name, getattr(real.get_submodule(path), name))

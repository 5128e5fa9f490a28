"""Trying something out without a trace of it: random generators, models and optimizers are put back afterwards."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["Stateful", "fingerprint", "random_state", "trial_passes", "unchanged"]

Undo = Callable[[], None]


@runtime_checkable
class Stateful(Protocol):
    """What can hand out its state and take it back: a model, an optimizer, a scheduler, a scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:  # modules return what was missing
        """Take the state back."""


@contextmanager
def unchanged(*objects: Stateful, generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Put the global random generators, ``generators`` and the state of ``objects`` back on leaving, whatever happened.

    Modules keep the identity of their parameters and buffers and get back their gradients and training flags.
    Memory: one copy of the objects' state while the block runs.
    """
    undo = [random_state(generators), *map(_saved, objects)]
    try:
        yield
    finally:
        for restore in undo:
            restore()


@contextmanager
def trial_passes(model: nn.Module) -> Iterator[None]:
    """Put back what forward and backward passes change: buffers, gradients, random generators.

    Parameters are not copied, so this costs the memory of the buffers alone; gradients start from none in the block.
    """
    restore = random_state()
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        restore()
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def random_state(generators: Iterable[torch.Generator] = ()) -> Undo:
    """Remember the random state of Python, torch and, where they are in use, numpy and the device; return the undo."""
    own = [(generator, generator.get_state()) for generator in generators]
    host, python = torch.get_rng_state(), random.getstate()
    device = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    numpy = sys.modules.get("numpy")
    numbers = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        random.setstate(python)
        torch.set_rng_state(host)
        if device is not None:
            torch.cuda.set_rng_state_all(device)
        if numpy is not None:
            numpy.random.set_state(numbers)
        for generator, state in own:
            generator.set_state(state)

    return restore


def fingerprint() -> tuple[object, ...]:
    """Return what differs as soon as anything drew from a global random generator of the host."""
    numpy = sys.modules.get("numpy")
    numbers = numpy.random.get_state() if numpy is not None else ("", b"", 0, 0, 0.0)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), bytes(numbers[1]), numbers[2:]


def _saved(thing: Stateful) -> Undo:
    if isinstance(thing, nn.Module):
        return _saved_module(thing)
    if isinstance(thing, Optimizer):
        return _saved_optimizer(thing)
    if isinstance(thing, Stateful):
        state = copy.deepcopy(thing.state_dict())
        return lambda: thing.load_state_dict(state) and None
    raise TypeError(
        f"Only objects with state_dict and load_state_dict can be put back, not {type(thing).__name__}; "
        "leave it out, or give it those two methods."
    )


def _saved_module(module: nn.Module) -> Undo:
    tensors = [*module.parameters(), *module.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    gradients = [(p, None if p.grad is None else p.grad.detach().clone()) for p in module.parameters()]
    flags = [(m, m.training) for m in module.modules()]

    def restore() -> None:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for part, flag in flags:
            part.training = flag

    return restore


def _saved_optimizer(optimizer: Optimizer) -> Undo:
    state = {p: {key: _copied(value) for key, value in entry.items()} for p, entry in optimizer.state.items()}
    groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)

    return restore


def _copied(value: Any) -> Any:  # whatever optimizers keep
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        return value.detach().clone()
    names, context = flatten()  # a tensor class, such as torchao's, may have no operator to clone itself
    inner = {name: _copied(getattr(value, name)) for name in names}
    return type(value).__tensor_unflatten__(inner, context, value.size(), value.stride())  # type: ignore[attr-defined]

"""Builds an optimizer in the fastest implementation it has.

What it cures
    `unfused-optimizer`, and the share of `launch-bound` that is the optimizer's own: a loop over the parameters runs
    about a dozen operators for each of them.

When it does not help
    With one or two large parameters on a GPU, where every implementation is limited by memory traffic. Optimizers
    that were written outside torch keep their own implementation. Where the state does not fit, see `eight_bit`.

Cost
    ``foreach`` needs temporary memory of about the size of the parameters; with ``memory_tight`` it is not chosen.
    Building the optimizer runs one fused step of one element.

Numerics
    The same formulas in another order of operations: parameters agree to rounding (relative 1e-6 in float32 for one
    step), not bit by bit.

Example::

    from diagnose.kernels.optimizers import best_optimizer

    # before: optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    optimizer = best_optimizer(torch.optim.AdamW, model.parameters(), lr=3e-4, weight_decay=0.1)
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Implementation", "best_implementation", "best_optimizer"]

Opt = TypeVar("Opt", bound=Optimizer)
Implementation: TypeAlias = Literal["fused", "foreach", "loop"]
Parameters: TypeAlias = Iterable[Any]
"""What torch's optimizers take: tensors, (name, tensor) pairs, or groups of them."""


def best_optimizer(
    optimizer: type[Opt], parameters: Parameters, *, memory_tight: bool = False, **arguments: Any
) -> Opt:
    """Return ``optimizer(parameters, **arguments)`` in the implementation that ``best_implementation`` names.

    A choice among the arguments (``fused``, ``foreach``, ``differentiable``) is kept. Sparse gradients
    (``nn.Embedding(sparse=True)``) are not seen before the first step; pass ``fused=False`` with them.
    """
    groups = _listed(parameters)
    if not any(arguments.get(name) for name in ("fused", "foreach", "differentiable")):
        chosen = best_implementation(optimizer, groups, memory_tight=memory_tight, **arguments)
        accepted = _accepted(optimizer)
        wanted = {"fused": chosen == "fused", "foreach": chosen == "foreach"}
        arguments |= {name: value for name, value in wanted.items() if name in accepted and name not in arguments}
    return optimizer(groups, **arguments)


def best_implementation(
    optimizer: type[Optimizer],
    parameters: Parameters,
    *,
    memory_tight: bool = False,
    **arguments: Any,  # the optimizer's own
) -> Implementation:
    """Name the fastest implementation that the optimizer's class has for all of these parameters.

    ``arguments`` are the optimizer's own; one may rule the fused kernel out. Fused is chosen where one step of it
    works for every device and dtype at hand, as tried on one element. What torch cannot fuse runs as ``foreach``. It is
    a loop if memory is tight, the class has neither, a parameter is of a tensor class that torch's batched operators
    do not take, or one group has whole parameters and sharded ones, as after ``tensor_parallel``.
    """
    accepted = _accepted(optimizer)
    groups = _listed(parameters)
    tensors = _flat(groups)
    if not all(_is_ordinary(tensor) for tensor in tensors) or any(map(_is_mixed, _groups(groups))):
        return "loop"
    kinds = {(tensor.device, tensor.dtype) for tensor in tensors}
    may_fuse = "fused" in accepted and arguments.get("fused") is not False
    if may_fuse and kinds and all(_fused_works(optimizer, *kind, arguments) for kind in kinds):
        return "fused"
    may_batch = "foreach" in accepted and arguments.get("foreach") is not False and not memory_tight
    return "foreach" if may_batch else "loop"


def _is_ordinary(tensor: Tensor) -> bool:
    """Return whether the batched kernels take the tensor's class; they take a DTensor, which has ``to_local``."""
    return type(tensor) in (Tensor, torch.nn.Parameter) or hasattr(tensor, "to_local")


def _is_mixed(group: list[Tensor]) -> bool:
    """Return whether a group has tensors that torch's batched operators do not take in one list."""
    return len({getattr(tensor, "device_mesh", None) for tensor in group}) > 1


def _accepted(optimizer: type[Optimizer]) -> frozenset[str]:
    """Return the names of the arguments that the class takes."""
    return frozenset(inspect.signature(optimizer).parameters)


def _listed(parameters: Parameters) -> list[Any]:
    """Return the parameters as lists, so that generators can be read more than once."""
    if isinstance(parameters, Tensor):
        raise TypeError("An optimizer takes an iterable of parameters, not one tensor; put it into a list.")
    return [
        {**entry, "params": _listed([entry["params"]] if isinstance(entry["params"], Tensor) else entry["params"])}
        if isinstance(entry, Mapping)
        else entry
        for entry in parameters
    ]


def _groups(listed: list[Any]) -> list[list[Tensor]]:
    """Return the tensors of each group of the optimizer."""
    if any(isinstance(entry, Mapping) for entry in listed):
        return [_flat([entry]) for entry in listed]
    return [_flat(listed)]


def _flat(groups: list[Any]) -> list[Tensor]:
    """Return every tensor of parameters, named parameters and groups."""
    found: list[Tensor] = []
    for entry in groups:
        if isinstance(entry, Mapping):
            found += _flat(entry["params"])
        else:
            found.append(entry[1] if isinstance(entry, tuple) else entry)
    return found


def _fused_works(
    optimizer: type[Optimizer], device: torch.device, dtype: torch.dtype, arguments: Mapping[str, Any]
) -> bool:
    """Try one fused step of one element; torch's own lists of what it supports differ between releases."""
    if not dtype.is_floating_point or device.type == "meta":
        return False
    probe = torch.nn.Parameter(torch.ones(1, device=device, dtype=dtype))
    probe.grad = torch.ones_like(probe)
    others = {name: value for name, value in arguments.items() if name != "foreach"}  # both at once are refused
    try:
        optimizer([probe], **{**others, "fused": True}).step()
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return False
    return True

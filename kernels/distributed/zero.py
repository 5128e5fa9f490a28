"""Splits the optimizer state over ranks (ZeRO, first stage).

What it cures
    `memory-pressure` of the optimizer: of Adam's two copies of the model each rank keeps a share.

When it does not help
    Where parameters and gradients are too large themselves: see `fully_sharded`. Whole parameters are dealt out, so one
    large embedding stays on one rank: see `memory_estimate`.

Cost
    After each step every rank broadcasts the parameters that it updated: the bytes of the model, not hidden.

Numerics
    Identical to the optimizer alone: each parameter is updated once, and copied.

Example::

    from diagnose.kernels.distributed.zero import whole_state, zero_optimizer

    ddp = DistributedDataParallel(model)
    optimizer = zero_optimizer(torch.optim.AdamW, ddp.parameters(), lr=3e-4)
    for x, y in loader:
        criterion(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = whole_state(optimizer)  # on all ranks; None but on rank 0, which saves it
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from diagnose.kernels.distributed._agreement import whole_group

__all__ = ["whole_state", "zero_optimizer"]


def zero_optimizer(
    optimizer: type[Optimizer],
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
    *,
    group: dist.ProcessGroup | None = None,
    **arguments: Any,  # the optimizer's own
) -> Optimizer:
    """Return ``optimizer(parameters, **arguments)`` with its state split over the ranks of ``group``.

    Raises:
        RuntimeError: there is no process group.
        ValueError: there are fewer parameters than ranks, or one is sharded already.
    """
    group = whole_group(group)
    listed: list[Any] = list(parameters)
    tensors = [p for entry in listed for p in ([entry] if isinstance(entry, Tensor) else entry["params"])]
    if len(tensors) < group.size():
        raise ValueError(
            f"{len(tensors)} parameters cannot be dealt out to {group.size()} ranks; use the plain optimizer."
        )
    if any(hasattr(p, "to_local") for p in tensors):
        raise ValueError("These parameters are sharded, and so will be their state; use the plain optimizer.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, which torch.distributed.optim imports
        from torch.distributed.optim import ZeroRedundancyOptimizer
    made: Optimizer = ZeroRedundancyOptimizer(listed, optimizer, process_group=group, **arguments)
    return made


def whole_state(optimizer: Optimizer, *, to: int = 0) -> dict[str, Any] | None:
    """Collect the state of all ranks on one of them, and return it there, None elsewhere; all ranks call it.

    It loads into the optimizer alone as well as into ``zero_optimizer``.

    Raises:
        TypeError: the optimizer is none of ``zero_optimizer``.
    """
    consolidate = getattr(optimizer, "consolidate_state_dict", None)
    if not callable(consolidate):
        raise TypeError(f"whole_state takes what zero_optimizer made, not {type(optimizer).__name__}.")
    consolidate(to=to)
    rank = dist.get_rank(getattr(optimizer, "process_group", None))
    return optimizer.state_dict() if rank == to else None

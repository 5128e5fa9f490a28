"""Trying a model in DDP without leaving its hooks behind in the parameters."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["MakeStep", "in_ddp", "of_all_ranks", "timed_steps"]

MakeStep: TypeAlias = Callable[[DistributedDataParallel], Callable[[Any], Any]]
R = TypeVar("R")


def in_ddp(
    module: nn.Module,
    make_step: MakeStep,
    use: Callable[[DistributedDataParallel, Callable[[Any], Any]], R],
    arguments: dict[str, Any],
) -> R:
    """Put the module in DDP, hand it and its step to ``use``, and take it out again.

    Raises:
        RuntimeError: the model in DDP lives on elsewhere.
    """
    ddp = DistributedDataParallel(module, **arguments)
    alive = weakref.ref(ddp)
    step = make_step(ddp)
    try:
        found = use(ddp, step)
    finally:
        del ddp, step
        gc.collect()
    if alive() is not None:
        raise RuntimeError(
            "The model in DDP that make_step was given is still in use elsewhere, and would go on exchanging "
            "gradients; make_step should keep it in the function that it returns only."
        )
    return found


def timed_steps(
    step: Callable[[Any], Any], batches: Sequence[Any], num: int, device: torch.device
) -> tuple[list[float], list[Any]]:
    """Take ``num`` steps over the batches, and return the milliseconds and the result of each."""
    times, results = [], []
    for batch in islice(cycle(batches), num):
        start = time.perf_counter()
        result = step(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - start) * 1e3)
        results.append(result.detach().clone() if isinstance(result, torch.Tensor) else result)
    return times, results


def of_all_ranks(
    values: Sequence[float], op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup, device: torch.device
) -> list[float]:
    """Return the values reduced over the ranks: all ranks then decide by the same numbers."""
    everyones = torch.tensor(values, dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
    dist.all_reduce(everyones, op, group=group)
    return list(map(float, everyones.tolist()))

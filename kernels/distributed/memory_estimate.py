"""Computes what a rank's memory will hold under each way of sharding, before anything is built.

What it cures
    `memory-pressure` found out by trial: which of DDP, ZeRO, FSDP, hybrid sharding and tensor parallelism fits is seen
    from shapes alone, also of a model on the meta device that no memory could hold.

When it does not help
    Activations depend on the batch: measure them with `activation_bytes` on a small one and scale. Allocator rounding,
    the CUDA context and library workspaces are not in it; keep 10 % and a gigabyte.

Cost
    One step of a 64 × 64 parameter on the CPU, to see what the optimizer keeps.

Numerics
    None. Parameters, gradients, optimizer state and buffers are those of the largest rank, equal to what the tests
    count afterwards; what is gathered meanwhile is an upper bound.

Example::

    from diagnose.kernels.distributed.memory_estimate import estimate_memory

    for strategy in ("ddp", "zero", "fsdp"):
        log(strategy, estimate_memory(model, strategy, num_ranks=8, optimizer=torch.optim.AdamW))
    estimate = estimate_memory(model, "hsdp", num_ranks=4, optimizer=torch.optim.SGD, momentum=0.9)
    assert estimate.total < 80e9
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnose.kernels.distributed._blocks import Blocks, find_blocks
from diagnose.kernels.distributed._hook import num_bytes

__all__ = ["MemoryEstimate", "Strategy", "activation_bytes", "estimate_memory", "state_per_byte"]

Strategy: TypeAlias = Literal["ddp", "zero", "fsdp", "hsdp"]
PROBE = 64  # rows and columns: enough that counters and factored states do not matter
GATHERED_BLOCKS = 2  # the one that computes, and the next one that is fetched meanwhile


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the largest rank; ``transient`` comes and goes within a step."""

    parameters: int
    gradients: int
    optimizer_state: int
    buffers: int
    transient: int
    activations: int = 0

    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(getattr(self, f.name) for f in fields(self))

    def __str__(self) -> str:
        parts = [f"{f.name.replace('_', ' ')} {getattr(self, f.name) / 1e9:.3g}" for f in fields(self)]
        return f"{self.total / 1e9:.3g} GB a rank: {', '.join(parts)}"


def estimate_memory(  # noqa: PLR0913  # what the memory depends on
    model: nn.Module,
    strategy: Strategy,
    *,
    num_ranks: int,
    optimizer: type[Optimizer],
    blocks: Blocks = None,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    activations: int = 0,
    **optimizer_arguments: Any,  # noqa: ANN401  # the optimizer's own
) -> MemoryEstimate:
    """Return what a rank holds; ``num_ranks`` are those that share one copy (with ``hsdp``: inside a replica).

    ``ddp`` keeps everything on each rank and gradients as views into buckets; ``zero`` splits the optimizer state by
    whole parameters; ``fsdp`` and ``hsdp`` split everything along the first dimension, and gather ``blocks`` in
    ``param_dtype``. ``activations`` are added as they are.

    Raises:
        ValueError: there is no such strategy, or ``num_ranks`` is less than one.
    """
    if strategy not in get_args(Strategy) or num_ranks < 1:
        raise ValueError(
            f"estimate_memory takes one of {', '.join(get_args(Strategy))} and num_ranks >= 1, "
            f"not {strategy!r} and {num_ranks}."
        )
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    per_byte = state_per_byte(optimizer, **optimizer_arguments)
    buffers = num_bytes(model.buffers())
    whole, gradients = num_bytes(parameters), num_bytes(trained)
    if strategy == "ddp":
        return MemoryEstimate(whole, gradients, round(gradients * per_byte), buffers, 0, activations)
    if strategy == "zero":
        state = round(_largest_part([num_bytes([p]) for p in trained], num_ranks) * per_byte)
        return MemoryEstimate(whole, gradients, state, buffers, 0, activations)
    mine, trained_mine = (sum(_shard_bytes(p, num_ranks) for p in ps) for ps in (parameters, trained))
    transient = _gathered(model, blocks, num_ranks, param_dtype, reduce_dtype)
    return MemoryEstimate(mine, trained_mine, round(trained_mine * per_byte), buffers, transient, activations)


def state_per_byte(optimizer: type[Optimizer], **arguments: Any) -> float:  # noqa: ANN401  # the optimizer's own
    """Return how many bytes of state the optimizer keeps for each byte of a parameter, by one step of a small one.

    Raises:
        TypeError: the optimizer does not take such arguments.
    """
    probe = nn.Parameter(torch.zeros(PROBE, PROBE))
    probe.grad = torch.ones_like(probe)
    made = optimizer([probe], **arguments)
    made.step()
    kept = [v for v in made.state[probe].values() if isinstance(v, Tensor) and v.numel() >= PROBE]
    return num_bytes(kept) / num_bytes([probe])


def activation_bytes(forward: Callable[[], Any], *, without: Sequence[Tensor] = ()) -> int:
    """Run ``forward`` and return the bytes that autograd keeps of it for the backward.

    Each piece of memory counts once. ``without`` lists what is held anyway: pass ``list(model.parameters())``.
    """
    held = {t.untyped_storage().data_ptr() for t in without}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            kept[storage.data_ptr()] = tensor  # alive, so that its address is not given out again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
    found = sum(t.untyped_storage().nbytes() for t in kept.values())
    del result
    return found


def _shard_bytes(p: Tensor, num_ranks: int) -> int:
    """Return the bytes of the first rank's rows, which are the most."""
    if p.dim() == 0:
        return num_bytes([p])
    return math.ceil(p.shape[0] / num_ranks) * math.prod(p.shape[1:]) * p.element_size()


def _largest_part(sizes: list[int], num_ranks: int) -> int:
    """Return the most that a rank gets of whole parameters, dealt as ZeroRedundancyOptimizer does: largest first."""
    parts = [0] * num_ranks
    for size in sorted(sizes, reverse=True):
        parts[parts.index(min(parts))] += size
    return max(parts)


def _gathered(
    model: nn.Module, blocks: Blocks, num_ranks: int, param_dtype: torch.dtype | None, reduce_dtype: torch.dtype | None
) -> int:
    """Return the bytes of whole parameters and gradients that are there at once, at most.

    What is in no block stays gathered from forward to backward; of the blocks two are there with their parameters and
    one with its gradients, twice: as computed, and as it is sent.
    """
    if num_ranks == 1:
        return 0
    found = find_blocks(model, blocks)
    inside = {id(p) for b in found for p in b.parameters()}
    rest = [p for p in model.parameters() if id(p) not in inside]
    sizes = sorted((_as(list(b.parameters()), param_dtype) for b in found), reverse=True)
    largest = max(found, key=lambda b: _as(list(b.parameters()), param_dtype)) if found else model
    trained = [p for p in largest.parameters() if p.requires_grad]
    sent = _as(trained, reduce_dtype or param_dtype)
    return _as(rest, param_dtype) + sum(sizes[:GATHERED_BLOCKS]) + _as(trained, param_dtype) + sent


def _as(parameters: Sequence[Tensor], dtype: torch.dtype | None) -> int:
    return sum(p.numel() * (dtype.itemsize if dtype else p.element_size()) for p in parameters)

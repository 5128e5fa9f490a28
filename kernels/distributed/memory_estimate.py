"""Estimates a rank's memory for each way of sharding.

What it cures
    `memory-pressure` found out by trial: which of DDP, ZeRO, FSDP, hybrid sharding, tensor parallelism and a pipeline
    fits is seen from shapes alone, also of a model on the meta device that no memory could hold.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnose.kernels.distributed._blocks import Blocks, find_blocks
from diagnose.kernels.distributed._hook import num_bytes
from diagnose.kernels.distributed._plans import COMMON_PLAN, Side, planned
from diagnose.kernels.distributed._stages import balanced

__all__ = ["MemoryEstimate", "Strategy", "activation_bytes", "estimate_memory", "state_per_byte"]

Strategy: TypeAlias = Literal["ddp", "zero", "fsdp", "hsdp", "tensor", "pipeline"]
PROBE = 64  # rows and columns: enough that counters and factored states do not matter
GATHERED_BLOCKS = 3  # the one that computes, and the next one twice: as it arrives, and laid out as parameters


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


def estimate_memory(  # what the memory depends on
    model: nn.Module,
    strategy: Strategy,
    *,
    num_ranks: int,
    optimizer: type[Optimizer],
    blocks: Blocks = None,
    plan: Mapping[str, Side] = COMMON_PLAN,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    activations: int = 0,
    **optimizer_arguments: Any,  # the optimizer's own
) -> MemoryEstimate:
    """Return what a rank holds; ``num_ranks`` are those that share one copy (with ``hsdp``: inside a replica).

    ``ddp`` keeps everything on each rank and gradients as views into buckets; ``zero`` splits the optimizer state by
    whole parameters; ``fsdp`` and ``hsdp`` split everything along the first dimension, and gather ``blocks`` in
    ``param_dtype``; ``tensor`` splits the linear layers that ``plan`` names; ``pipeline`` divides the children of
    ``model``, a chain, by their sizes. ``activations`` are added as they are.

    Raises:
        ValueError: there is no such strategy, ``num_ranks`` is less than one, or a chain has fewer layers than ranks.
    """
    if strategy not in get_args(Strategy) or num_ranks < 1:
        raise ValueError(
            f"estimate_memory takes one of {', '.join(get_args(Strategy))} and num_ranks >= 1, "
            f"not {strategy!r} and {num_ranks}."
        )
    per_byte = state_per_byte(optimizer, **optimizer_arguments)
    if strategy == "pipeline":
        model = _largest_stage(model, num_ranks)
    mine = _parts(model, strategy, num_ranks, plan)
    trained = {name: mine[name] for name, p in model.named_parameters() if p.requires_grad}
    with_state = _largest_part(list(trained.values()), num_ranks) if strategy == "zero" else sum(trained.values())
    is_gathered = strategy in ("fsdp", "hsdp")
    return MemoryEstimate(
        parameters=sum(mine.values()),
        gradients=sum(trained.values()),
        optimizer_state=round(with_state * per_byte),
        buffers=num_bytes(model.buffers()),
        transient=_gathered(model, blocks, num_ranks, param_dtype, reduce_dtype) if is_gathered else 0,
        activations=activations,
    )


def _parts(model: nn.Module, strategy: Strategy, num_ranks: int, plan: Mapping[str, Side]) -> dict[str, int]:
    """Return the bytes of each parameter on the first rank, which holds the most."""
    split: dict[str, int] = {}  # the dimension that is
    if strategy in ("fsdp", "hsdp"):
        split = {name: 0 for name, p in model.named_parameters() if p.dim()}
    elif strategy == "tensor":
        for layer, side in planned(model, plan).items():
            split |= {f"{layer}.weight": 0, f"{layer}.bias": 0} if side == "column" else {f"{layer}.weight": 1}
    return {name: _part(p, split.get(name), num_ranks) for name, p in model.named_parameters()}


def _part(p: Tensor, dim: int | None, num_ranks: int) -> int:
    if dim is None:
        return num_bytes([p])
    return num_bytes([p]) // max(p.shape[dim], 1) * math.ceil(p.shape[dim] / num_ranks)


def _largest_stage(model: nn.Module, num_ranks: int) -> nn.Module:
    layers = list(model.children())
    cuts = balanced([float(sum(p.numel() for p in layer.parameters())) for layer in layers], num_ranks)
    stages = [nn.Sequential(*layers[a:b]) for a, b in pairwise(cuts)]
    return max(stages, key=lambda stage: num_bytes(stage.parameters()))


def state_per_byte(optimizer: type[Optimizer], **arguments: Any) -> float:  # the optimizer's own
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

    What is in no block arrives, is laid out, and stays from forward to backward. Then come the blocks' parameters, and
    in the backward one's gradients, twice: as computed, and as they are sent.
    """
    if num_ranks == 1:
        return 0
    found = find_blocks(model, blocks)
    inside = {id(p) for b in found for p in b.parameters()}
    rest = _as([p for p in model.parameters() if id(p) not in inside], param_dtype)
    sizes = sorted((_as(list(b.parameters()), param_dtype) for b in found), reverse=True)
    largest = max(found, key=lambda b: _as(list(b.parameters()), param_dtype)) if found else model
    trained = [p for p in largest.parameters() if p.requires_grad]
    gradients = _as(trained, param_dtype) + _as(trained, reduce_dtype or param_dtype)
    return rest + max(rest, sum(sizes[:GATHERED_BLOCKS]) + gradients)


def _as(parameters: Sequence[Tensor], dtype: torch.dtype | None) -> int:
    return sum(p.numel() * (dtype.itemsize if dtype else p.element_size()) for p in parameters)

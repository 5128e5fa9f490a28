"""Shards parameters, gradients and optimizer state (FSDP2, HSDP).

What it cures
    `memory-pressure`: each rank holds its share, and whole parameters of one or two blocks at a time.

When it does not help
    Models that fit with DDP, which sends less. Without blocks everything is gathered at once. Between hosts on slow
    links, use a mesh of two dimensions: shards inside a host, replicas between hosts.

Cost
    An all-gather of each block in the forward and again in the backward, and a reduce-scatter of its gradients: 1.5
    times the bytes of DDP; hidden under the blocks' computation where that is long enough. ``reshard=False`` gathers
    once and keeps the parameters until the backward.

Numerics
    Equal to DDP to rounding; with ``param_dtype`` blocks compute in it, and master weights stay as they are.

Example::

    from diagnose.kernels.distributed.fully_sharded import fully_sharded
    from diagnose.kernels.distributed.mesh import build_mesh

    mesh = build_mesh("cuda", {"shard": -1})
    model = fully_sharded(model, mesh, blocks=nn.Linear, param_dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())  # after sharding: it takes the shards
    for x, y in loader:
        criterion(model(x).float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._blocks import Blocks, find_blocks, shared_across

__all__ = ["fully_sharded"]

M = TypeVar("M", bound=nn.Module)


def fully_sharded(  # what sharding leaves open
    model: M,
    mesh: DeviceMesh,
    *,
    blocks: Blocks = None,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = torch.float32,
    reshard: bool = True,
    offload: bool = False,
) -> M:
    """Shard a model in place over a mesh, and return it; call it on all ranks and make the optimizer afterwards.

    A mesh of one dimension shards over all its ranks, one of two replicates over the first and shards over the second.
    ``blocks`` are gathered one by one: by default the repeated children of lists. ``offload`` keeps shards and
    optimizer state in host memory.

    Raises:
        TypeError: the model is in DistributedDataParallel.
        ValueError: the mesh has more dimensions, the model is sharded already, no block is as described, or blocks
            share parameters.
    """
    _check(model, mesh)
    found = find_blocks(model, blocks)
    if shared := shared_across(model, found):
        raise ValueError(
            f"Several blocks share {', '.join(shared[:3])}, which would be gathered and freed twice; "
            "choose blocks that hold all users of it, or leave them out with blocks=[…]."
        )
    precision = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype if param_dtype else None)
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
    parts: list[nn.Module] = [*(b for b in found if b is not model), model]
    for block in parts:
        fully_shard(
            block,
            mesh=mesh,
            reshard_after_forward=reshard and block is not model,
            mp_policy=precision,
            offload_policy=policy,
        )
    return model


def _check(model: nn.Module, mesh: DeviceMesh) -> None:
    if isinstance(model, DistributedDataParallel):
        raise TypeError("fully_sharded takes the model itself, not in DistributedDataParallel; pass ddp.module.")
    if mesh.ndim > 2:
        raise ValueError(
            f"fully_sharded takes a mesh of one or two dimensions, not {mesh.ndim}; pass those of data parallelism, "
            'such as mesh["replicate", "shard"].'
        )
    if any(isinstance(m, FSDPModule) for m in model.modules()):
        raise ValueError("The model is sharded already; shard it once, with all its blocks.")

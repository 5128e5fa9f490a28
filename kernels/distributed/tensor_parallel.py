"""Splits linear layers over ranks, by columns and rows.

What it cures
    `memory-pressure` of layers too large for a rank, and `exposed-communication` of FSDP at batches so small that
    gathering the weights takes longer than computing with them.

When it does not help
    Between hosts: each pair exchanges activations in every forward and backward, and nothing hides it. Layers of less
    than a few thousand columns. Models whose code between the layers of a pair reads whole rows: they are refused.

Cost
    Two all-reduces of the activations for each pair and step, and one of four numbers for each forward. Once, forward
    and backward of the sample, unsplit and split.

Numerics
    Equal to rounding: partial products are summed over ranks in another order. ``sample`` is run before and after the
    split, and outputs and gradients are compared: attention that reshapes by its number of heads, or a parameter that
    all heads share, is refused. The check is as fine as the dtype: split a model in float32. Each forward compares the
    ranks' batches; targets are compared only if the model takes them. Dropout between the layers of a pair drops the
    same places of each rank's part.

Example::

    from diagnose.kernels.distributed.mesh import build_mesh
    from diagnose.kernels.distributed.tensor_parallel import clip_gradients, tensor_parallel

    mesh = build_mesh("cuda", {"tensor": -1})  # all ranks share each batch: the loader needs no DistributedSampler
    x, y = next(iter(loader))
    tensor_parallel(model, mesh["tensor"], {"0": "column", "2": "row"}, sample=(x,), data_ranks=1)
    optimizer = torch.optim.AdamW(model.parameters())  # after splitting
    for x, y in loader:  # the same batch on all ranks of the tensor dimension
        criterion(model(x), y).backward()
        clip_gradients(model.parameters(), 1.0)  # torch's clip_grad_norm_ takes no mixture of split and whole ones
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from diagnose.kernels._gradient_norm import clip_gradients
from diagnose.kernels.distributed._plans import COMMON_PLAN, Side, planned
from diagnose.kernels.distributed._same_batches import SameOnRanks, apart, checksum, generator_state
from diagnose.kernels.distributed._split_parity import Passes, Sample, difference, draws_in_training, passes

__all__ = ["COMMON_PLAN", "Side", "clip_gradients", "tensor_parallel"]

SIDES: tuple[Side, ...] = ("column", "row")
BATCHES = (
    "The ranks of one tensor-parallel group were given different batches, which their layers would mix; "
    "give the loader DistributedSampler(dataset, num_replicas=data_ranks, rank=number of the group)."
)
GENERATORS = (
    "The ranks of one tensor-parallel group would draw different dropout masks; seed the ranks of a group alike "
    "(torch.manual_seed), and draw nothing on one of them only."
)


def tensor_parallel(
    model: nn.Module,
    mesh: DeviceMesh,
    plan: Mapping[str, Side] = COMMON_PLAN,
    *,
    sample: Sample,
    data_ranks: int,
    tolerance: float | None = None,
) -> dict[str, Side]:
    """Split linear layers of ``model`` in place over a mesh of one dimension; return each one's name and side.

    ``plan`` maps regular expressions, each for a layer's whole name, to ``column`` (outputs are split) or ``row``
    (inputs are split, outputs summed). What a ``row`` layer is given must come from ``column`` layers, through
    operations that treat features one by one. The common plan leaves layers whole that have no such partner.

    ``sample``: the arguments of one call of the model, positional or a mapping of names, the same on the ranks of the
    mesh. ``data_ranks``: how many groups of ranks take different batches; their gradients are averaged by
    ``fully_sharded`` over the other dimension. ``tolerance``: how far results may be apart, relative; by default the
    root of their dtype's rounding (3e-4 in float32). All ranks call it; they begin with the parameters of rank 0.

    Raises:
        ValueError: nothing matches, the mesh has several dimensions, a layer's features cannot be split evenly, or a
            ``row`` layer has no ``column`` layer next to it, or the other way round; ``data_ranks`` times the ranks of
            the mesh are not all ranks; samples differ; the split model computes something else, or its split cannot be
            checked. The model is whole then. Later, a forward: the ranks of the mesh were given different batches.
        TypeError: a matching layer is not linear, or belongs to nn.MultiheadAttention, which computes past it; the
            sample is a tensor.
    """
    if mesh.ndim != 1:
        raise ValueError(f'tensor_parallel takes a mesh of one dimension, not {mesh.ndim}; pass mesh["tensor"].')
    if isinstance(sample, Tensor):
        raise TypeError("tensor_parallel takes the arguments of one call as sample; write sample=(x,).")
    sides = planned(model, plan)
    if not sides:
        raise ValueError(f"No layer of {type(model).__name__} is named as in the plan; write one for its layers.")
    for name, side in sides.items():
        _check(model, name, side, mesh.size())
    _check_pairs(sides)
    num_ranks, group = dist.get_world_size(), mesh.get_group()
    if data_ranks * mesh.size() != num_ranks:
        raise ValueError(
            f"{num_ranks} ranks in groups of {mesh.size()} take {num_ranks // mesh.size()} different batches at once, "
            f"not {data_ranks}; pass that as data_ranks, and share out batches among the groups."
        )
    _begin_alike(model, mesh.device_type)
    _agreed(BATCHES if apart(checksum(sample)[None].to(mesh.device_type), group).any() else "")
    draws, expected = draws_in_training(model, sample), passes(model, sample)
    _agreed(_unchecked(sides, expected))
    hooks = {name: _hooks(model.get_submodule(name)) for name in sides}
    styles: dict[str, ParallelStyle] = {
        name: ColwiseParallel() if side == "column" else RowwiseParallel() for name, side in sides.items()
    }
    parallelize_module(model, mesh, styles)
    try:
        _agreed(_different(model, sample, expected, tolerance))
    except ValueError:
        for name, before in hooks.items():
            _join(model.get_submodule(name), before)
        raise
    _compare_batches(model, group, draws=draws)
    return sides


def _compare_batches(model: nn.Module, group: dist.ProcessGroup, *, draws: bool) -> None:
    """Let each forward raise if the ranks hand it different arguments, or would draw different masks in training."""
    device = next(model.parameters()).device
    same = SameOnRanks(group, device, (BATCHES, GENERATORS))

    def compare(module: nn.Module, args: Any, kwargs: Any) -> None:  # a module's arguments
        same.check([*args, kwargs], generator_state(device) if draws and module.training else None)

    model.register_forward_pre_hook(compare, with_kwargs=True)


def _begin_alike(model: nn.Module, device_type: str) -> None:
    """Give all ranks the parameters and buffers of rank 0, as DistributedDataParallel does."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            sent = tensor.detach().to(device_type).contiguous()
            dist.broadcast(sent.view(-1).view(torch.uint8), 0)
            tensor.copy_(sent)


def _agreed(text: str) -> None:
    """Raise what the first rank has to object, on all ranks."""
    everyones = [""] * dist.get_world_size()
    dist.all_gather_object(everyones, text)
    if found := next(filter(None, everyones), ""):
        raise ValueError(found)


def _unchecked(sides: Mapping[str, Side], expected: Passes) -> str:
    still = (n for n in sides if (g := expected.gradients.get(f"{n}.weight")) is not None and not g.any())
    name = next(still, "")
    return name and (
        f"The sample gives {name}.weight no gradient, so that its split cannot be checked; pass a sample that does, "
        "and set layers that begin with zeros to zero after the split."
    )


def _different(model: nn.Module, sample: Sample, expected: Passes, tolerance: float | None) -> str:
    """Return why the split model does not do what the whole one did, empty if it does."""
    try:
        found = passes(model, sample)
    except (RuntimeError, ValueError, TypeError) as error:
        what = f"stops with {type(error).__name__}: {error}"
    else:
        what = difference(expected, found, tolerance or expected.tolerance)
    return what and (
        f"Split by this plan, {type(model).__name__} computes something else: {what}. Code between the layers of a "
        "pair must take its rank's share, such as view(batch, length, -1, head_size) for heads; or leave those layers "
        "out of the plan."
    )


def _hooks(layer: nn.Module) -> tuple[dict[int, Any], dict[int, Any]]:
    return dict(layer._forward_pre_hooks), dict(layer._forward_hooks)


def _join(layer: nn.Module, hooks: tuple[dict[int, Any], dict[int, Any]]) -> None:
    """Make a split layer whole again."""
    for name, p in list(layer.named_parameters(recurse=False)):
        whole: Tensor = p.full_tensor() if hasattr(p, "full_tensor") else p
        layer.register_parameter(name, nn.Parameter(whole.detach(), requires_grad=p.requires_grad))
    for kept, before in zip((layer._forward_pre_hooks, layer._forward_hooks), hooks, strict=True):
        for number in [n for n in kept if n not in before]:
            del kept[number]


def _check(model: nn.Module, name: str, side: Side, num_ranks: int) -> None:
    layer, parent = model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"{name} is a {type(layer).__name__}; tensor_parallel splits nn.Linear only.")
    if isinstance(parent, nn.MultiheadAttention):
        raise TypeError(f"{name} belongs to nn.MultiheadAttention, which computes past it; leave it whole.")
    if side not in SIDES:
        raise ValueError(f"The plan has {side!r} for {name}; use 'column' or 'row'.")
    features = layer.out_features if side == "column" else layer.in_features
    if features % num_ranks:
        raise ValueError(f"The {features} {side}s of {name} cannot be split evenly over {num_ranks} ranks.")


def _check_pairs(sides: Mapping[str, Side]) -> None:
    parents = {side: {name.rpartition(".")[0] for name in sides if sides[name] == side} for side in SIDES}
    for name, side in sides.items():
        if side == "row" and name.rpartition(".")[0] not in parents["column"]:
            raise ValueError(f"{name} is split by rows, and no layer next to it by columns: its input would be whole.")
        if side == "column" and name.rpartition(".")[0] not in parents["row"]:
            raise ValueError(
                f"{name} is split by columns, and no layer next to it by rows: its output would be a part of each row. "
                "Add the layer that takes it to the plan as a row, or leave this one out."
            )

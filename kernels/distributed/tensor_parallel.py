"""Splits the linear layers of a model over ranks: columns first, rows after, one all-reduce for each pair.

What it cures
    `memory-pressure` of layers too large for a rank, and `exposed-communication` of FSDP at batches so small that
    gathering the weights takes longer than computing with them.

When it does not help
    Between hosts: each pair exchanges activations in every forward and backward, and nothing hides it. Layers of less
    than a few thousand columns.

Cost
    Two all-reduces of the activations for each pair and step. Attention has heads to split: code that reshapes by the
    number of heads has to use its own share of them (``-1`` in ``view`` does).

Numerics
    Equal to rounding: partial products are summed over ranks in another order.

Example::

    from diagnose.kernels.distributed.mesh import build_mesh
    from diagnose.kernels.distributed.tensor_parallel import tensor_parallel

    mesh = build_mesh("cuda", {"replicate": -1, "tensor": 2})
    tensor_parallel(model, mesh["tensor"], {"0": "column", "2": "row"})
    optimizer = torch.optim.AdamW(model.parameters())  # after splitting
    for x, y in loader:  # the same batch on all ranks of the tensor dimension
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from diagnose.kernels.distributed._plans import COMMON_PLAN, Side, planned

__all__ = ["COMMON_PLAN", "Side", "tensor_parallel"]

SIDES: tuple[Side, ...] = ("column", "row")


def tensor_parallel(model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, Side] = COMMON_PLAN) -> dict[str, Side]:
    """Split linear layers of ``model`` in place over a mesh of one dimension; return each one's name and side.

    ``plan`` maps regular expressions, each for a layer's whole name, to ``column`` (outputs are split) or ``row``
    (inputs are split, outputs summed). What a ``row`` layer is given must come from ``column`` layers, through
    operations that treat features one by one. The common plan leaves layers whole that have no such partner.

    Raises:
        ValueError: nothing matches, the mesh has several dimensions, a layer's features cannot be split evenly, or a
            ``row`` layer stands beside no ``column`` layer, or the other way round.
        TypeError: a matching layer is not linear, or belongs to nn.MultiheadAttention, which computes past it.
    """
    if mesh.ndim != 1:
        raise ValueError(f'tensor_parallel takes a mesh of one dimension, not {mesh.ndim}; pass mesh["tensor"].')
    sides = planned(model, plan)
    if not sides:
        raise ValueError(f"No layer of {type(model).__name__} is named as in the plan; write one for its layers.")
    for name, side in sides.items():
        _check(model, name, side, mesh.size())
    _check_pairs(sides)
    styles: dict[str, ParallelStyle] = {
        name: ColwiseParallel() if side == "column" else RowwiseParallel() for name, side in sides.items()
    }
    parallelize_module(model, mesh, styles)
    return sides


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
            raise ValueError(f"{name} is split by rows, and no layer beside it by columns: its input would be whole.")
        if side == "column" and name.rpartition(".")[0] not in parents["row"]:
            raise ValueError(
                f"{name} is split by columns, and no layer beside it by rows: its output would be a part of each row. "
                "Add the layer that takes it to the plan as a row, or leave this one out."
            )

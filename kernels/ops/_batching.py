"""The rule by which `vmap` runs an operator: on the whole batch at once where rows are batched, else by samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

__all__ = ["batching"]


def batching(defined: CustomOpDef, rows: frozenset[int]) -> Callable[..., Any]:
    """Return the rule by which `vmap` runs the operator on a whole batch at once, or sample by sample."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:  # torch's
        # Arguments that were left at their defaults are handed over without a dimension of their own.
        dims = [*in_dims, *[None] * (len(arguments) - len(in_dims))]
        batched = {position for position, dim in enumerate(dims) if dim is not None}
        if batched <= rows:
            at_front = [
                _with_batch_first(argument, dim, info.batch_size) if position in rows else argument
                for position, (argument, dim) in enumerate(zip(arguments, dims, strict=True))
            ]
            result = defined(*at_front)
        else:
            result = _sample_by_sample(defined, arguments, dims, info.batch_size)
        return result, tuple(0 for _ in result) if isinstance(result, tuple) else 0

    return rule


def _sample_by_sample(defined: CustomOpDef, arguments: Sequence[Any], dims: Sequence[int | None], size: int) -> Any:
    results = [
        defined(*[a if dim is None else a.select(dim, sample) for a, dim in zip(arguments, dims, strict=True)])
        for sample in range(size)
    ]
    if isinstance(results[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return torch.stack(results)


def _with_batch_first(argument: Any, dim: int | None, size: int) -> Any:  # a tensor or None
    if not isinstance(argument, Tensor):
        return argument
    return argument.unsqueeze(0).expand(size, *argument.shape) if dim is None else argument.movedim(dim, 0)

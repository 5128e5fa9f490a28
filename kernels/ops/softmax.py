"""Softmax over rows of any length as one operator, with its backward pass.

What it cures
    `unfused-elementwise`, where a model writes softmax out (maximum, subtract, exp, sum, divide): five kernels, four
    intermediates.

When it does not help
    In place of ``torch.softmax``, which is one kernel already. Within attention, where
    ``F.scaled_dot_product_attention`` never writes the scores to memory at all.

Cost
    One read and one write of the tensor; rows over 16,384 elements are read twice. Keeps the result for the backward
    pass. Another dimension than the last is moved there by a copy, and the result has the layout of a new tensor.

Numerics
    Calculated in float32 (float64 for float64) around each row's maximum, rounded once. A row of -inf alone, or with
    NaN or +inf, gives NaN, as in torch.

Example::

    from diagnose.kernels.ops.softmax import softmax

    scores = torch.randn(4, 16, requires_grad=True)
    # before: e = torch.exp(scores - scores.amax(-1, keepdim=True)); e / e.sum(-1, keepdim=True)
    shares = softmax(scores)
    shares.square().sum().backward()
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnose.kernels.ops.custom_op import checked, operator, same_shape

__all__ = ["softmax"]


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return softmax of ``x`` over ``dim``; under autocast in float32, as torch's on GPUs.

    Raises:
        TypeError: ``x`` is no floating tensor.
        ValueError: ``x`` has no such dimension.
    """
    checked("softmax", x=x)
    rank = x.dim()
    if not -rank <= dim < rank:
        raise ValueError(f"softmax needs dim within the {rank} dimensions of x, not {dim}.")
    if dim in (-1, rank - 1):
        return _softmax(x)  # type: ignore[no-any-return]  # one tensor, by its schema
    return _softmax(x.movedim(dim, -1)).movedim(-1, dim)  # type: ignore[no-any-return]


def _check(x: Tensor) -> None:
    checked("softmax", x=x)
    if x.dim() == 0:
        raise ValueError("softmax needs a tensor of at least one dimension as x.")


def _check_backward(grad: Tensor, y: Tensor) -> None:
    checked("softmax_backward", grad=grad, y=y)
    same_shape("softmax_backward", y=y, grad=grad)


def _eager(x: Tensor) -> Tensor:
    return torch.softmax(x.contiguous(), -1)


def _eager_backward(grad: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(grad.contiguous(), y.contiguous(), -1, y.dtype)  # type: ignore[no-any-return]


def _new(*arguments: Tensor) -> Tensor:
    return torch.empty(arguments[-1].shape, dtype=arguments[-1].dtype, device=arguments[-1].device)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # torch's names
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    return _softmax_backward(grad, ctx.saved_tensors[0])  # type: ignore[no-any-return]


_softmax = operator(
    "diagnose::softmax",
    "(Tensor x) -> Tensor",
    check=_check,
    eager=_eager,
    fake=_new,
    program="softmax:forward",
    rows=(0,),
    autocast=torch.float32,
)
_softmax_backward = operator(
    "diagnose::softmax_backward",
    "(Tensor grad, Tensor y) -> Tensor",
    check=_check_backward,
    eager=_eager_backward,
    fake=_new,
    program="softmax:backward",
    rows=(0, 1),
    twice=True,
)
_softmax.register_autograd(_backward, setup_context=_setup)

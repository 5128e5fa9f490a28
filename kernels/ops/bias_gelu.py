"""Bias and GELU as one operator: what follows the matrix product of a feed-forward layer.

What it cures
    `unfused-elementwise` between the two layers of a feed-forward block: the addition of the bias and GELU are two
    kernels over the largest activation of the model.

When it does not help
    Where the matrix product adds the bias itself, as ``nn.Linear`` does on GPUs (cuBLAS takes it along for nothing):
    use it where the bias is added apart, after a product without one.

Cost
    One read and one write of the activation forward, two reads and a write backward, the bias's gradient summed in the
    same pass. Keeps the product without its bias for the backward pass.

Numerics
    Calculated in float32 (float64 for float64) and rounded once, where plain code rounds the sum too.

Example::

    from diagnose.kernels.ops.bias_gelu import bias_gelu

    weight, bias, x = torch.randn(256, 64), torch.zeros(256), torch.randn(8, 64)
    # before: hidden = F.gelu(x @ weight.t() + bias)
    hidden = bias_gelu(x @ weight.t(), bias)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # its usual name

from diagnose.kernels.ops.custom_op import checked, operator, same_shape
from diagnose.kernels.ops.gelu import check_form

__all__ = ["bias_gelu"]


def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """Return GELU of ``x + bias``, the bias along the last dimension, in the dtype of ``x``.

    Raises:
        TypeError: ``x`` is no floating tensor, or ``bias`` neither of its dtype nor float32.
        ValueError: ``bias`` does not fit the last dimension; ``approximate`` is no form of GELU.
    """
    return _bias_gelu(x, bias, approximate)  # type: ignore[no-any-return]  # one tensor, by its schema


def _check(x: Tensor, bias: Tensor, approximate: str) -> None:
    checked("bias_gelu", x=x, bias=bias)
    check_form("bias_gelu", approximate)
    if x.dim() == 0 or bias.shape != x.shape[-1:]:
        raise ValueError(
            f"bias_gelu needs bias in the shape of the last dimension of x, which is {tuple(x.shape)}, "
            f"not {tuple(bias.shape)}."
        )
    if bias.dtype not in (x.dtype, torch.float32):
        raise TypeError(f"bias_gelu needs bias in {x.dtype}, as x, or in float32, not {bias.dtype}.")


def _check_backward(grad: Tensor, x: Tensor, bias: Tensor, approximate: str, *_: Any) -> None:
    _check(x, bias, approximate)
    same_shape("bias_gelu_backward", x=x, grad=grad)


def _sum(x: Tensor, bias: Tensor) -> Tensor:
    return x + bias if x.dtype == torch.float64 else x.float() + bias.float()


def _eager(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    return F.gelu(_sum(x, bias), approximate=approximate).to(x.dtype).contiguous()


def _eager_backward(grad: Tensor, x: Tensor, bias: Tensor, approximate: str, with_bias: bool) -> tuple[Tensor, Tensor]:
    total = _sum(x, bias)
    slope = torch.ops.aten.gelu_backward(grad.to(total.dtype), total, approximate=approximate)
    leading = tuple(range(x.dim() - 1))
    dbias = slope.sum(leading) if leading else slope.clone()
    return slope.to(x.dtype).contiguous(), dbias.to(bias.dtype) if with_bias else bias.new_empty(0)


def _fake_backward(grad: Tensor, x: Tensor, bias: Tensor, approximate: str, with_bias: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), bias.new_empty(bias.shape if with_bias else 0)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # torch's names
    ctx.save_for_backward(*inputs[:2])
    ctx.approximate = inputs[2]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, bias = ctx.saved_tensors
    with_bias = ctx.needs_input_grad[1]
    dx, dbias = _bias_gelu_backward(grad, x, bias, ctx.approximate, with_bias)
    return dx, dbias if with_bias else None, None


_bias_gelu = operator(
    "diagnose::bias_gelu",
    "(Tensor x, Tensor bias, str approximate) -> Tensor",
    check=_check,
    eager=_eager,
    fake=lambda x, bias, approximate: x.new_empty(x.shape),
    program="pairs:bias_gelu",
    rows=(0,),
)
_bias_gelu_backward = operator(
    "diagnose::bias_gelu_backward",
    "(Tensor grad, Tensor x, Tensor bias, str approximate, bool with_bias) -> (Tensor, Tensor)",
    check=_check_backward,
    eager=_eager_backward,
    fake=_fake_backward,
    program="pairs:bias_gelu_backward",
    twice=True,
)
_bias_gelu.register_autograd(_backward, setup_context=_setup)

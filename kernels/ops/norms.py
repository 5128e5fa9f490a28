"""RMSNorm and LayerNorm, on their own or together with the addition of the residual before them.

What it cures
    `unfused-elementwise`, in models that write RMSNorm out (square, mean, rsqrt, two products: five kernels), and the
    addition ``x + residual`` before every norm, which reads and writes the whole stream once more.

When it does not help
    In place of ``nn.LayerNorm`` or, where torch has a kernel for it, ``nn.RMSNorm`` without a residual: those are one
    kernel already. Rows of a few dozen elements leave most of each program idle.

Cost
    One read and one write of each tensor; rows over 16,384 elements (8,192 in the backward pass) are read two or three
    times. Keeps the sum, and one or two numbers a row.

Numerics
    Calculated in float32 (float64 for float64), the sum rounded as the addition alone would. Models that round
    the normalized row before the weight is applied differ in the last bit of 16-bit results.

Example::

    from diagnose.kernels.ops.norms import add_rms_norm, layer_norm, rms_norm

    x, residual, weight = torch.randn(2, 8, 64), torch.randn(2, 8, 64), torch.ones(64)
    # before: residual = x + residual; x = rms_norm(residual, weight)
    x, residual = add_rms_norm(x, residual, weight, eps=1e-6)
    x = rms_norm(x, weight)
    x = layer_norm(x, weight, torch.zeros(64))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnose.kernels.ops.custom_op import checked, operator, same_shape, transforming

__all__ = ["add_layer_norm", "add_rms_norm", "layer_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Return ``x / sqrt(mean(x²) + eps) * weight`` over the weight's dimensions, or the last; in the dtype of ``x``.

    Raises:
        TypeError: ``x`` is no floating tensor, or ``weight`` neither of its dtype nor float32.
        ValueError: the last dimensions of ``x`` are not those of ``weight``; ``eps`` is negative.
    """
    return _normed("rms_norm", x, None, weight, None, eps, False)[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return ``rms_norm(x + residual, weight, eps)``, and the sum: the residual of what follows."""
    return _normed("add_rms_norm", x, residual, weight, None, eps, False)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Return LayerNorm over the weight's dimensions, or the last; ``bias`` needs ``weight``. In float32 under autocast.

    Raises:
        TypeError: ``x`` is no floating tensor, or ``weight`` neither of its dtype nor float32.
        ValueError: the shapes do not fit; ``bias`` without ``weight``; ``eps`` is negative.
    """
    return _normed("layer_norm", x, None, weight, bias, eps, True)[0]


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Return ``layer_norm(x + residual, weight, bias, eps)``, and the sum: the residual of what follows."""
    return _normed("add_layer_norm", x, residual, weight, bias, eps, True)


def _normed(  # every norm's arguments
    name: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    center: bool,
) -> tuple[Tensor, Tensor]:
    checked(name, x=x, residual=residual, weight=weight, bias=bias)
    if bias is not None and weight is None:
        raise ValueError(f"{name} takes a bias only with a weight; pass torch.ones_like(bias).")
    shape, num = x.shape, 1 if weight is None else weight.dim()
    if weight is not None and (num == 0 or shape[len(shape) - num :] != weight.shape or num > len(shape)):
        raise ValueError(
            f"{name} needs weight in the shape of the last dimensions of x, which is {tuple(shape)}, "
            f"not {tuple(weight.shape)}."
        )
    if center and _autocast(x.device.type):
        x, residual = x.float(), None if residual is None else residual.float()
    if num > 1:
        x, weight = x.flatten(-num), weight.flatten() if weight is not None else None
        residual = None if residual is None else residual.flatten(-num)
        bias = None if bias is None else bias.flatten()
    y, h, _, _ = _norm(x, residual, weight, bias, float(eps), center)
    return y.reshape(shape), h.reshape(shape) if residual is not None else h


def _autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _check(  # the schema's
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, center: bool
) -> None:
    name = "layer_norm" if center else "rms_norm"
    checked(name, x=x, residual=residual, weight=weight, bias=bias)
    same_shape(name, x=x, residual=residual)
    if x.dim() == 0:
        raise ValueError(f"{name} needs a tensor of at least one dimension as x.")
    for argument, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.shape != x.shape[-1:]:
            raise ValueError(f"{name} needs {argument} in the shape {tuple(x.shape[-1:])}, not {tuple(tensor.shape)}.")
    if weight is not None and weight.dtype not in (x.dtype, torch.float32):
        raise TypeError(f"{name} needs weight in {x.dtype}, as x, or in float32, not {weight.dtype}.")
    same_shape(name, weight=weight, bias=bias) if bias is not None else None
    if not eps >= 0:
        raise ValueError(f"{name} needs eps >= 0, not {eps}.")


def _statistics(h: Tensor, eps: float, center: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows normalized, their means and the inverses of their deviations, in what is calculated in."""
    wide = h.double() if h.dtype == torch.float64 else h.float()
    mean = wide.mean(-1) if center else wide.new_empty(0)
    if center:
        wide = wide - mean.unsqueeze(-1)
    rstd = torch.rsqrt(wide.square().mean(-1) + eps)
    return wide * rstd.unsqueeze(-1), mean, rstd


def _eager(  # the schema's
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, center: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    h = x if residual is None else (x + residual).contiguous()
    nothing = x.new_empty(0)
    if center and _torch_can(h, weight):
        y, mean, rstd = torch.native_layer_norm(h, h.shape[-1:], weight, bias, eps)
        return y.contiguous(), nothing if residual is None else h, mean.squeeze(-1), rstd.squeeze(-1)
    y, mean, rstd = _statistics(h, eps, center)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    y = y.to(x.dtype).contiguous()
    return y, nothing if residual is None else h, mean.contiguous(), rstd.contiguous()


def _eager_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    center: bool,
    with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if center and _torch_can(h, weight):
        return _torch_backward(grad, grad_h, h, weight, mean, rstd, with_bias)
    # The statistics are calculated again, so that derivatives of this formula see where they come from.
    normal, _, inverse = _statistics(h, eps, center)
    wide = grad.to(normal.dtype)
    weighted = wide if weight is None else wide * weight
    dx = weighted - normal * (weighted * normal).mean(-1, keepdim=True)
    if center:
        dx = dx - weighted.mean(-1, keepdim=True)
    dx = dx * inverse.unsqueeze(-1)
    if grad_h is not None:
        dx = dx + grad_h
    nothing = dx.new_empty(0)
    leading = tuple(range(h.dim() - 1))
    dweight = _summed(wide * normal, leading).to(weight.dtype) if weight is not None else nothing
    dbias = _summed(wide, leading).to(weight.dtype) if with_bias and weight is not None else nothing.clone()
    return dx.to(h.dtype).contiguous(), dweight, dbias


def _torch_can(h: Tensor, weight: Tensor | None) -> bool:
    """Return whether torch's kernel for LayerNorm calculates the same, in float32 or float64 throughout."""
    alike = h.dtype in (torch.float32, torch.float64) and (weight is None or weight.dtype == h.dtype)
    return alike and h.numel() > 0 and not transforming()


def _torch_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    statistics = mean.unsqueeze(-1), rstd.unsqueeze(-1)
    bias = weight if with_bias else None  # which torch asks for nothing but its shape
    wanted = [True, weight is not None, with_bias]
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        grad.contiguous(), h.contiguous(), h.shape[-1:], *statistics, weight, bias, wanted
    )
    dx = dx if grad_h is None else dx + grad_h
    return dx.contiguous(), h.new_empty(0) if weight is None else dweight, dbias if with_bias else h.new_empty(0)


def _summed(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    return tensor.sum(dims) if dims else tensor.clone()


def _fake(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    center: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y = x.new_empty(x.shape)
    rstd = x.new_empty(x.shape[:-1], dtype=_kept_dtype(x))
    h = y.new_empty(0 if residual is None else x.shape)
    return y, h, rstd.new_empty(x.shape[:-1] if center else 0), rstd


def _fake_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    center: bool,
    with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = rstd.new_empty(0)
    dweight = nothing if weight is None else weight.new_empty(h.shape[-1:])
    dbias = weight.new_empty(h.shape[-1:]) if with_bias and weight is not None else rstd.new_empty(0)
    return h.new_empty(h.shape), dweight, dbias


def _kept_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _check_backward(grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor | None, *_: Any) -> None:
    checked("norm_backward", grad=grad, grad_h=grad_h, h=h, weight=weight)
    same_shape("norm_backward", h=h, grad=grad, grad_h=grad_h)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # torch's names
    x, residual, weight, bias, eps, center = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x if residual is None else output[1], weight, output[2], output[3])
    ctx.numbers = (eps, center, bias is not None)
    ctx.with_residual = residual is not None


def _backward(ctx: Any, grad: Tensor | None, grad_h: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    h, weight, mean, rstd = ctx.saved_tensors
    if not ctx.with_residual:
        grad_h = None
    if grad is None and grad_h is None:
        return (None,) * 6
    grad = torch.zeros_like(h) if grad is None else grad
    dx, dweight, dbias = _norm_backward(grad, grad_h, h, weight, mean, rstd, *ctx.numbers)
    return (
        dx,
        dx if ctx.with_residual else None,
        None if weight is None else dweight,
        dbias if ctx.numbers[2] else None,
        None,
        None,
    )


_norm = operator(
    "diagnose::norm",
    "(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float eps, bool center)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    check=_check,
    eager=_eager,
    fake=_fake,
    program="norms:forward",
    rows=(0, 1),
)
_norm_backward = operator(
    "diagnose::norm_backward",
    "(Tensor grad, Tensor? grad_h, Tensor h, Tensor? weight, Tensor mean, Tensor rstd, float eps, bool center,"
    " bool with_bias) -> (Tensor, Tensor, Tensor)",
    check=_check_backward,
    eager=_eager_backward,
    fake=_fake_backward,
    program="norms:backward",
    twice=True,
)
_norm.register_autograd(_backward, setup_context=_setup)

"""The last layer and its cross entropy as one operator, which calculates the gradients together with the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # its usual name

from diagnose.kernels.ops._losses import backward_formula, check_target, rows_backward, rows_losses, widened
from diagnose.kernels.ops.custom_op import checked, operator

__all__ = ["linear_loss"]


def _check_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *_: Any) -> None:
    checked("linear_cross_entropy", hidden=hidden, weight=weight, bias=bias)
    check_target("linear_cross_entropy", target, hidden)
    if not hidden.dtype == weight.dtype == (weight if bias is None else bias).dtype:
        raise TypeError(
            f"linear_cross_entropy needs hidden, weight and bias in one dtype, not {hidden.dtype} and {weight.dtype}; "
            "convert one with .to()."
        )


def _linear(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, chunk: int, ignored: int, smoothing: float,
    mean: bool, with_hidden: bool, with_weight: bool, with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the loss and its gradients; the logits of one chunk of rows, and their gradient, are in memory.

    What is summed over chunks is summed in float32 at least; products of 16 bits are rounded once, and so is the sum.
    """
    loss, dhidden, dweight, dbias = _fake_linear(
        hidden, weight, bias, target, chunk, ignored, smoothing, mean, with_hidden, with_weight, with_bias
    )
    dtypes = dweight.dtype, dbias.dtype
    loss, dweight, dbias = (torch.zeros_like(part, dtype=loss.dtype) for part in (loss, dweight, dbias))
    rows, wanted = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    factor = (wanted != ignored).sum().to(loss.dtype).reciprocal() if mean else loss.new_ones(())
    with torch.autocast(hidden.device.type, enabled=False), torch.no_grad():
        for start in range(0, len(rows), chunk):
            part, its = rows[start : start + chunk], wanted[start : start + chunk]
            logits = F.linear(part, weight, bias)
            losses, lse = rows_losses(logits, its, ignored, smoothing)
            loss += losses.sum()
            if not (with_hidden or with_weight or with_bias):
                continue
            slope = rows_backward(factor.expand(its.shape), logits, its, lse, ignored, smoothing)
            del logits
            if with_hidden:
                torch.mm(slope, weight, out=dhidden.view(-1, hidden.shape[-1])[start : start + chunk])
            if with_weight:
                if dweight.dtype == part.dtype:
                    dweight.addmm_(slope.t(), part)
                else:
                    dweight += slope.t() @ part
            if with_bias:
                dbias += slope.sum(0, dtype=dbias.dtype)
    return loss * factor, dhidden, dweight.to(dtypes[0]), dbias.to(dtypes[1])


def _fake_linear(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, chunk: int, ignored: int, smoothing: float,
    mean: bool, with_hidden: bool, with_weight: bool, with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    return (
        hidden.new_empty((), dtype=dtype),
        hidden.new_empty(hidden.shape if with_hidden else 0),
        weight.new_empty(weight.shape if with_weight else 0),
        weight.new_empty(weight.shape[:1] if with_bias else 0),
    )


def _linear_backward(
    grad: Tensor, dhidden: Tensor, dweight: Tensor, dbias: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return tuple((widened(part) * grad).to(part.dtype) for part in (dhidden, dweight, dbias))  # type: ignore[return-value]  # three


def _linear_backward_formula(
    grad: Tensor, dhidden: Tensor, dweight: Tensor, dbias: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None,
    target: Tensor, ignored: int, smoothing: float, mean: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the same from the logits, all at once, so that a second derivative sees where it comes from."""
    rows, wanted = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    kept = (wanted != ignored).to(widened(rows).dtype)
    of_each = (grad * (kept / kept.sum() if mean else kept)).expand(wanted.shape)
    logits = F.linear(rows, weight, bias)
    slope = backward_formula(of_each, logits, wanted, logits, ignored, smoothing)
    return (
        (slope @ weight).reshape(hidden.shape) if dhidden.numel() else dhidden.clone(),
        slope.t() @ rows if dweight.numel() else dweight.clone(),
        slope.sum(0) if dbias.numel() else dbias.clone(),
    )


def _setup_linear(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # torch's names
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], *inputs[:4])
    ctx.numbers, ctx.wants = inputs[5:8], inputs[8:]


def _backward_linear(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 11
    found = _linear_loss_backward(grad, *ctx.saved_tensors, *ctx.numbers)
    slopes = [part if wanted else None for part, wanted in zip(found, ctx.wants, strict=True)]
    return (*slopes, *(None,) * 8)


linear_loss = operator(
    "diagnose::linear_cross_entropy",
    "(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, int chunk, int ignore_index, float label_smoothing,"
    " bool mean, bool with_hidden, bool with_weight, bool with_bias) -> (Tensor, Tensor, Tensor, Tensor)",
    check=_check_linear,
    eager=_linear,
    fake=_fake_linear,
)
_linear_loss_backward = operator(
    "diagnose::linear_cross_entropy_backward",
    "(Tensor grad, Tensor dhidden, Tensor dweight, Tensor dbias, Tensor hidden, Tensor weight, Tensor? bias,"
    " Tensor target, int ignore_index, float label_smoothing, bool mean) -> (Tensor, Tensor, Tensor)",
    check=lambda *_: None,
    eager=_linear_backward,
    fake=lambda grad, dhidden, dweight, dbias, *_: tuple(map(torch.empty_like, (dhidden, dweight, dbias))),
    twice=_linear_backward_formula,
)
linear_loss.register_autograd(_backward_linear, setup_context=_setup_linear)

"""Cross entropy of rows of logits as operators: the loss of each row, their sum or mean, and the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnose.kernels.ops.custom_op import checked, operator, transforming

__all__ = ["backward_formula", "check_target", "rows_backward", "rows_losses", "sum_of_losses", "widened"]

TARGETS = (torch.int64,)


def check_target(operation: str, target: Tensor, beside: Tensor) -> None:
    checked(operation, target=target, dtypes=TARGETS)
    if target.device != beside.device:
        raise ValueError(
            f"{operation} needs all tensors on one device, not on {beside.device} and target on {target.device}."
        )


def _check(logits: Tensor, target: Tensor, *_: Any) -> None:
    checked("cross_entropy", logits=logits)
    check_target("cross_entropy", target, logits)
    if logits.dim() == 0 or logits.shape[:-1] != target.shape:
        raise ValueError(
            f"cross_entropy needs target in the shape of logits without their last dimension, which are "
            f"{tuple(logits.shape)}, not {tuple(target.shape)}."
        )
    if logits.shape[-1] == 0 and target.numel():
        raise ValueError("cross_entropy needs logits of at least one class, not of none.")


def _eager(logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    wide = widened(logits)
    kept = target != ignored
    index = torch.where(kept, target, 0)
    num = logits.shape[-1]
    _refuse_strangers(index, num)
    if num == 0:
        return wide.sum(-1), wide.new_zeros((*target.shape, 2))
    # The largest logit goes first: what is left is near zero, and no digits of it are lost to logits that are not.
    largest = wide.detach().amax(-1, keepdim=True)
    largest = torch.where(largest.isfinite(), largest, 0.0)
    shifted = wide - largest
    rest = shifted.exp().sum(-1).log()
    loss = rest - (1 - smoothing) * shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    if smoothing:
        loss = loss - smoothing * shifted.mean(-1)
    return torch.where(kept, loss, 0.0).contiguous(), torch.stack((largest.squeeze(-1), rest), -1).contiguous()


def _refuse_strangers(index: Tensor, num: int) -> None:
    """Raise where a target is no class. Only looks at real numbers on the CPU, which are at hand without waiting."""
    if index.device.type != "cpu" or not index.numel() or transforming():
        return
    if type(index) is Tensor:  # no fake one
        least, most = (int(number) for number in index.aminmax())
        if least < 0 or most >= num:
            wrong = least if least < 0 else most
            raise ValueError(f"cross_entropy needs targets from 0 to {num - 1}, or ignore_index, not {wrong}.")


def backward_formula(  # the schema's
    grad: Tensor, logits: Tensor, target: Tensor, lse: Tensor, ignored: int, smoothing: float
) -> Tensor:
    del lse  # calculated again, so that derivatives of this formula see where it comes from
    ignore = (target == ignored).unsqueeze(-1)
    index = target.unsqueeze(-1).masked_fill(ignore, 0)
    share = torch.softmax(widened(logits), -1)
    hit = torch.full_like(index, smoothing - 1, dtype=share.dtype)
    even, factor = smoothing / max(logits.shape[-1], 1), grad.unsqueeze(-1)
    if transforming():  # which needs the values that in-place operators would overwrite
        share = torch.where(ignore, 0.0, (share.scatter_add(-1, index, hit) - even) * factor)
    elif share.numel():
        share = share.scatter_add_(-1, index, hit).sub_(even).mul_(factor).masked_fill_(ignore, 0.0)
    return share.to(logits.dtype).contiguous()


def widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _eager_sum(
    logits: Tensor, target: Tensor, ignored: int, smoothing: float, mean: bool
) -> tuple[Tensor, Tensor, Tensor]:
    losses, lse = _eager(logits, target, ignored, smoothing)
    factor = (target != ignored).sum().to(losses.dtype).reciprocal() if mean else losses.new_ones(())
    return losses.sum() * factor, lse, factor


def _fake(logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.new_empty(target.shape, dtype=dtype), logits.new_empty((*target.shape, 2), dtype=dtype)


def _fake_sum(
    logits: Tensor, target: Tensor, ignored: int, smoothing: float, mean: bool
) -> tuple[Tensor, Tensor, Tensor]:
    losses, lse = _fake(logits, target, ignored, smoothing)
    return losses.new_empty(()), lse, losses.new_empty(())


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # torch's names
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], inputs[1], output[1])
    ctx.numbers = inputs[2:]


def _backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return None, None, None, None
    return rows_backward(grad, *ctx.saved_tensors, *ctx.numbers), None, None, None


def _setup_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], inputs[1], *output[1:])
    ctx.numbers = inputs[2:4]


def _backward_sum(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 5
    logits, target, lse, factor = ctx.saved_tensors
    of_each = (grad * factor).expand(target.shape)
    return rows_backward(of_each, logits, target, lse, *ctx.numbers), None, None, None, None


rows_losses = operator(
    "diagnose::cross_entropy",
    "(Tensor logits, Tensor target, int ignore_index, float label_smoothing) -> (Tensor, Tensor)",
    check=_check,
    eager=_eager,
    fake=_fake,
    program="cross_entropy:forward",
    rows=(0, 1),
)
rows_backward = operator(
    "diagnose::cross_entropy_backward",
    "(Tensor grad, Tensor logits, Tensor target, Tensor lse, int ignore_index, float label_smoothing) -> Tensor",
    check=lambda grad, logits, target, *_: _check(logits, target),
    eager=backward_formula,
    fake=lambda grad, logits, *_: logits.new_empty(logits.shape),
    program="cross_entropy:backward",
    rows=(0, 1, 2, 3),
    twice=True,
)
sum_of_losses = operator(
    "diagnose::cross_entropy_sum",
    "(Tensor logits, Tensor target, int ignore_index, float label_smoothing, bool mean) -> (Tensor, Tensor, Tensor)",
    check=_check,
    eager=_eager_sum,
    fake=_fake_sum,
    program="cross_entropy:reduced",
)
rows_losses.register_autograd(_backward, setup_context=_setup)
sum_of_losses.register_autograd(_backward_sum, setup_context=_setup_sum)

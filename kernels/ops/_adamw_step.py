"""One step of AdamW over a list of parameters as an operator: the formula, and the program that runs it on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diagnose.kernels.ops.custom_op import FLOATING, checked, operator

__all__ = ["adamw_step", "squares_by_formula", "step_by_formula"]


def adamw_step(  # AdamW's arguments
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.01,
    eps: float = 1e-8,
    maximize: bool = False,
    grad_scale: Tensor | None = None,
) -> None:
    """Run step number ``step`` (the first is 1) of AdamW on every parameter, in place.

    The lists have one entry a parameter. Gradients are multiplied by ``grad_scale``, one number in a tensor.

    Raises:
        TypeError: a tensor is not floating; a gradient has another dtype than its parameter.
        ValueError: the lists differ in length or in shapes; tensors of a parameter are on several devices; a number is
            out of its range.
    """
    _adamw(
        list(params), list(grads), list(exp_avgs), list(exp_avg_sqs), grad_scale,
        step, float(lr), *map(float, betas), float(weight_decay), float(eps), maximize,
    )  # fmt: skip


def step_by_formula(  # the schema's
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    grad_scale: Tensor | None,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    """Run the step in torch's batched operators, 16 bits widened first and rounded once at the end."""
    if not params:
        return
    values, firsts, seconds = (_widened(column) for column in (params, exp_avgs, exp_avg_sqs))
    slopes = _widened(grads)
    if grad_scale is not None:
        slopes = [slope * grad_scale.to(slope.device, slope.dtype) for slope in slopes]
    if maximize:
        slopes = list(torch._foreach_neg(slopes))
    torch._foreach_mul_(values, 1 - lr * weight_decay)
    torch._foreach_lerp_(firsts, slopes, 1 - beta1)
    torch._foreach_mul_(seconds, beta2)
    torch._foreach_addcmul_(seconds, slopes, slopes, 1 - beta2)
    roots = torch._foreach_sqrt(seconds)
    torch._foreach_div_(roots, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(roots, eps)
    torch._foreach_addcdiv_(values, firsts, roots, -lr / (1 - beta1**step))
    for column, results in ((params, values), (exp_avgs, firsts), (exp_avg_sqs, seconds)):
        for tensor, result in zip(column, results, strict=True):
            if tensor is not result:
                tensor.copy_(result)


def squares_by_formula(grads: Sequence[Tensor]) -> Tensor:
    """Return the squared norm of each gradient, in float32 at least."""
    return torch.stack([norm.to(grads[0].device) for norm in torch._foreach_norm(_widened(grads))]).square()


def _widened(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor for tensor in tensors]


def _check(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    grad_scale: Tensor | None,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,  # any number
    eps: float,
    *_: Any,
) -> None:
    if not len(params) == len(grads) == len(exp_avgs) == len(exp_avg_sqs):
        raise ValueError(
            "adamw_step needs a gradient and two states for each parameter, not lists of "
            f"{len(params)}, {len(grads)}, {len(exp_avgs)} and {len(exp_avg_sqs)}."
        )
    for place, (param, grad, first, second) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
        names = (f"params[{place}]", "its gradient", "its exp_avg", "its exp_avg_sq")
        named: dict[str, Any] = dict(zip(names, (param, grad, first, second), strict=True))
        checked("adamw_step", **named)
        if not param.shape == grad.shape == first.shape == second.shape:
            raise ValueError(
                f"adamw_step needs the gradient and the states of params[{place}] in its shape, {tuple(param.shape)}."
            )
        if grad.dtype != param.dtype:
            raise TypeError(f"adamw_step needs the gradient of params[{place}] in {param.dtype}, not {grad.dtype}.")
    if grad_scale is not None and (grad_scale.numel() != 1 or grad_scale.dtype not in FLOATING):
        raise ValueError("adamw_step needs one floating number as grad_scale.")
    if step < 1 or not lr >= 0 or not eps >= 0 or not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(
            f"adamw_step needs step >= 1, lr >= 0, eps >= 0 and betas within 0 and 1, not {step}, {lr}, {eps} and "
            f"({beta1}, {beta2})."
        )


_adamw = operator(
    "diagnose::adamw",
    "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, Tensor? grad_scale,"
    " int step, float lr, float beta1, float beta2, float weight_decay, float eps, bool maximize) -> ()",
    check=_check,
    eager=step_by_formula,
    fake=lambda *_: None,
    program="adamw:step",
    mutates=("params", "exp_avgs", "exp_avg_sqs"),
)

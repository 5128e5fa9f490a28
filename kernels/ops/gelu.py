"""GELU in its erf and tanh forms as one operator, with an analytic backward pass.

What it cures
    `unfused-elementwise`, where a model writes GELU out (``0.5 * x * (1 + torch.tanh(...))``), which runs eight kernels
    and keeps as many intermediates for the backward pass.

When it does not help
    In place of ``F.gelu``, which is one kernel already: the same traffic, so the same time at best.

Cost
    Reads and writes the tensor once in each direction, and keeps the input for the backward pass.

Numerics
    Calculated in float32 (float64 for float64), rounded once. The two forms differ by up to 4.7e-4: choose the one
    that the model was trained with.

Example::

    from diagnose.kernels.ops.gelu import gelu

    x = torch.randn(8, 64, requires_grad=True)
    # before: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))
    y = gelu(x, approximate="tanh")
    y.sum().backward()
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # its usual name

from diagnose.kernels.ops.custom_op import checked, operator, same_shape

__all__ = ["check_form", "gelu"]


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return GELU of ``x``, any shape and strides: x Φ(x) for "none", its tanh form for "tanh".

    Raises:
        TypeError: ``x`` is no floating tensor.
        ValueError: ``approximate`` is neither of the two.
    """
    return _gelu(x, approximate)  # type: ignore[no-any-return]  # one tensor, by its schema


def check_form(operation: str, approximate: str) -> None:
    """Raise ValueError where ``approximate`` names no form of GELU."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f'{operation} needs approximate "none" or "tanh", not {approximate!r}.')


def _check(x: Tensor, approximate: str) -> None:
    checked("gelu", x=x)
    check_form("gelu", approximate)


def _check_backward(grad: Tensor, x: Tensor, approximate: str) -> None:
    checked("gelu_backward", grad=grad, x=x)
    same_shape("gelu_backward", x=x, grad=grad)
    check_form("gelu_backward", approximate)


def _eager(x: Tensor, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)


def _eager_backward(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    return torch.ops.aten.gelu_backward(grad, x, approximate=approximate)  # type: ignore[no-any-return]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # torch's names
    ctx.save_for_backward(inputs[0])
    ctx.approximate = inputs[1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _gelu_backward(grad, ctx.saved_tensors[0], ctx.approximate), None


_gelu = operator(
    "diagnose::gelu",
    "(Tensor x, str approximate) -> Tensor",
    check=_check,
    eager=_eager,
    fake=lambda x, approximate: torch.empty_like(x),
    program="gelu:forward",
    rows=(0,),
)
_gelu_backward = operator(
    "diagnose::gelu_backward",
    "(Tensor grad, Tensor x, str approximate) -> Tensor",
    check=_check_backward,
    eager=_eager_backward,
    fake=lambda grad, x, approximate: torch.empty_like(x),
    program="gelu:backward",
    rows=(0, 1),
    twice=True,
)
_gelu.register_autograd(_backward, setup_context=_setup)

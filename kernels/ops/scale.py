"""A tensor times a number: the smallest operator there is, in plain PyTorch, Triton, C++ and CUDA under one schema.

What it cures
    `unfused-elementwise`, as an example: it shows all that an operator of your own needs.

When it does not help
    In place of ``x * factor``, which takes as long.

Cost
    One read and one write.

Numerics
    The factor is a double in the schema: 0.1 times a float64 tensor is exact to float64.

Example::

    from diagnose.kernels.ops.scale import scale

    x = torch.randn(8, requires_grad=True)
    scale(x, 0.1).sum().backward()
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnose.kernels.ops.custom_op import checked, operator

__all__ = ["scale"]


def scale(x: Tensor, factor: float) -> Tensor:
    """Return ``x`` times ``factor`` in the dtype of ``x``, any shape and strides.

    Raises:
        TypeError: ``x`` is no floating tensor.
    """
    return _scale(x, float(factor))  # type: ignore[no-any-return]  # one tensor, by its schema


def _check(x: Tensor, factor: float) -> None:  # any number
    checked("scale", x=x)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # torch's names
    ctx.factor = inputs[1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _scale(grad, ctx.factor), None


_scale = operator(
    "diagnose::scale",
    "(Tensor x, float factor) -> Tensor",
    check=_check,
    eager=lambda x, factor: x * factor,
    fake=lambda x, factor: torch.empty_like(x),
    program="scale:forward",
    rows=(0,),
)
_scale.register_autograd(_backward, setup_context=_setup)

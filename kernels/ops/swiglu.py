"""SwiGLU: ``silu(gate) * up`` as one operator.

What it cures
    `unfused-elementwise` in the feed-forward part of LLaMA-like models: two kernels and an intermediate as large as
    the hidden layer, forward and kept for the backward pass.

When it does not help
    Where `torch.compile` sees the expression. In small layers, where the matrix products around it are all that counts.

Cost
    Two reads and a write forward, three reads and two writes backward. Keeps ``gate`` and ``up``; ``silu(gate)`` is
    calculated again instead of kept.

Numerics
    Calculated in float32 (float64 for float64) and rounded once, where plain code rounds ``silu(gate)`` too.

Example::

    from diagnose.kernels.ops.swiglu import swiglu

    gate_proj, up_proj, x = nn.Linear(64, 256), nn.Linear(64, 256), torch.randn(8, 64)
    # before: hidden = F.silu(gate_proj(x)) * up_proj(x)
    hidden = swiglu(gate_proj(x), up_proj(x))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # its usual name

from diagnose.kernels.ops.custom_op import checked, operator, same_shape, transforming

__all__ = ["swiglu"]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` of two tensors of one shape and dtype, which may be the halves of one tensor.

    Raises:
        TypeError: one is no floating tensor, or their dtypes differ.
        ValueError: their shapes or devices differ.
    """
    return _swiglu(gate, up)  # type: ignore[no-any-return]  # one tensor, by its schema


def _check(gate: Tensor, up: Tensor) -> None:
    checked("swiglu", gate=gate, up=up)
    same_shape("swiglu", gate=gate, up=up)


def _check_backward(grad: Tensor, gate: Tensor, up: Tensor) -> None:
    checked("swiglu_backward", grad=grad, gate=gate, up=up)
    same_shape("swiglu_backward", gate=gate, up=up, grad=grad)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _eager(gate: Tensor, up: Tensor) -> Tensor:
    return (F.silu(_wide(gate)) * _wide(up)).to(gate.dtype).contiguous()


def _eager_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    wide_grad, wide_gate = _wide(grad), _wide(gate)
    dgate = _through_silu(wide_grad * _wide(up), wide_gate)
    dup = wide_grad * F.silu(wide_gate)
    return dgate.to(gate.dtype).contiguous(), dup.to(gate.dtype).contiguous()


def _through_silu(grad: Tensor, x: Tensor) -> Tensor:
    if not transforming():
        return torch.ops.aten.silu_backward(grad, x)  # type: ignore[no-any-return]  # has no derivative of its own
    s = torch.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # torch's names
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    return _swiglu_backward(grad, *ctx.saved_tensors)  # type: ignore[no-any-return]


_swiglu = operator(
    "diagnose::swiglu",
    "(Tensor gate, Tensor up) -> Tensor",
    check=_check,
    eager=_eager,
    fake=lambda gate, up: gate.new_empty(gate.shape),
    program="pairs:swiglu",
    rows=(0, 1),
)
_swiglu_backward = operator(
    "diagnose::swiglu_backward",
    "(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    check=_check_backward,
    eager=_eager_backward,
    fake=lambda grad, gate, up: (gate.new_empty(gate.shape), gate.new_empty(gate.shape)),
    program="pairs:swiglu_backward",
    rows=(0, 1, 2),
    twice=True,
)
_swiglu.register_autograd(_backward, setup_context=_setup)

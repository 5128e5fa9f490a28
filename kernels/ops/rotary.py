"""Rotary position embedding of queries and keys as one operator.

What it cures
    `unfused-elementwise` in attention layers that rotate with ``x * cos + rotate_half(x) * sin``: six kernels, one a
    copy of the tensor, for queries and for keys.

When it does not help
    Where `torch.compile` sees the expression.

Cost
    One read and one write of the tensor in each direction. Keeps the angles only: the backward pass is the rotation
    back. A tensor that is not contiguous is copied first.

Numerics
    Calculated in float32 (float64 for float64) and rounded once. The angles are constants: no gradient reaches them,
    and angles that want one are refused.

Example::

    from diagnose.kernels.ops.rotary import angles, rotary

    query = torch.randn(2, 4, 16, 64)  # batch, heads, positions, features
    cos, sin = angles(16, 64)
    # before: query * cos + rotate_half(query) * sin
    query = rotary(query, cos, sin)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnose.kernels.ops.custom_op import checked, operator, same_shape

__all__ = ["angles", "rotary"]


def angles(
    length: int, features: int, *, base: float = 10_000.0, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (length, features / 2), float32, of position × base^(-2i / features).

    Raises:
        ValueError: ``features`` is not even and positive, or ``length`` negative.
    """
    if features <= 0 or features % 2 or length < 0:
        raise ValueError(f"angles needs an even number of features and a length >= 0, not {features} and {length}.")
    frequencies = base ** (-torch.arange(0, features, 2, dtype=torch.float64, device=device) / features)
    turned = torch.arange(length, dtype=torch.float64, device=device).unsqueeze(-1) * frequencies
    return turned.cos().float(), turned.sin().float()


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, seq_dim: int = -2, interleaved: bool = False) -> Tensor:
    """Return ``x`` with its pairs of features turned by the angles of their positions.

    ``cos`` and ``sin`` are (positions, R / 2) for the first R features; the rest stay. ``seq_dim`` is the dimension of
    positions: -2 in (batch, heads, positions, features), -3 in (batch, positions, heads, features). Pairs are features
    i and i + R / 2, or with ``interleaved`` 2i and 2i + 1.

    Raises:
        TypeError: ``x`` is no floating tensor, or the angles neither of its dtype nor float32.
        ValueError: the shapes do not fit; the angles want a gradient.
    """
    checked("rotary", x=x, cos=cos, sin=sin)
    if cos.requires_grad or sin.requires_grad:
        raise ValueError("rotary takes angles as constants; pass cos.detach() and sin.detach().")
    rank = x.dim()
    if not -rank <= seq_dim < rank or seq_dim in (-1, rank - 1):
        raise ValueError(f"rotary needs seq_dim among the dimensions of x before its last, not {seq_dim} of {rank}.")
    return _rotary(x, cos, sin, seq_dim if seq_dim < 0 else seq_dim - rank, interleaved, False)  # type: ignore[no-any-return]


def _check(x: Tensor, cos: Tensor, sin: Tensor, seq_dim: int, *_: Any) -> None:
    checked("rotary", x=x, cos=cos, sin=sin)
    same_shape("rotary", cos=cos, sin=sin)
    if cos.dtype not in (x.dtype, torch.float32):
        raise TypeError(f"rotary needs cos and sin in {x.dtype}, as x, or in float32, not {cos.dtype}.")
    if x.dim() < -seq_dim or cos.dim() != 2 or cos.shape[0] != x.shape[seq_dim] or 2 * cos.shape[1] > x.shape[-1]:
        raise ValueError(
            f"rotary needs cos and sin as (positions, half the turned features) of x, which is {tuple(x.shape)} with "
            f"positions in dimension {seq_dim}, not {tuple(cos.shape)}."
        )


def _eager(x: Tensor, cos: Tensor, sin: Tensor, seq_dim: int, interleaved: bool, back: bool) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    half = cos.shape[1]
    turned = wide[..., : 2 * half]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    shape = (cos.shape[0], *[1] * (-seq_dim - 2), half)
    c, s = cos.reshape(shape), (-sin if back else sin).reshape(shape)
    pairs = (a * c - b * s, b * c + a * s)
    result = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    return torch.cat((result, wide[..., 2 * half :]), -1).to(x.dtype).contiguous()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # torch's names
    ctx.save_for_backward(*inputs[1:3])
    ctx.form = inputs[3:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    cos, sin = ctx.saved_tensors
    seq_dim, interleaved, back = ctx.form
    return _rotary(grad, cos, sin, seq_dim, interleaved, not back), None, None, None, None, None


_rotary = operator(
    "diagnose::rotary",
    "(Tensor x, Tensor cos, Tensor sin, int seq_dim, bool interleaved, bool back) -> Tensor",
    check=_check,
    eager=_eager,
    fake=lambda x, *_: x.new_empty(x.shape),
    program="rotary:rotate",
    rows=(0,),
)
_rotary.register_autograd(_backward, setup_context=_setup)

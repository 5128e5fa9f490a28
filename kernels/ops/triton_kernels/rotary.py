"""Rotary position embedding, forward and backward: a rotation of pairs of columns by an angle of the position."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.triton_kernels.layout import ELEMENTS, compute_dtype, flat_grid
from diagnose.kernels.ops.triton_kernels.pairs import place

__all__ = ["rotate"]


@triton.jit
def rotate_kernel(
    x_ptr, cos_ptr, sin_ptr, out_ptr, num, width, half, inner, length,
    INTERLEAVED: tl.constexpr, BACK: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # (a, b) becomes (a cos - b sin, b cos + a sin); backward turns the other way; columns past 2 half stay
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column = place(width, BLOCK)
    position = (row // inner) % length
    if INTERLEAVED:
        pair = column // 2
        second = column % 2 == 1
        partner = tl.where(second, at - 1, at + 1)
    else:
        second = column >= half
        pair = tl.where(second, column - half, column)
        partner = tl.where(second, at - half, at + half)
    turned = (column < 2 * half) & (at < num)
    x = tl.load(x_ptr + at, mask=at < num).to(COMPUTE)
    other = tl.load(x_ptr + partner, mask=turned, other=0.0).to(COMPUTE)
    cos = tl.load(cos_ptr + position * half + pair, mask=turned, other=1.0).to(COMPUTE)
    sin = tl.load(sin_ptr + position * half + pair, mask=turned, other=0.0).to(COMPUTE)
    if BACK:
        sin = -sin
    y = x * cos + tl.where(second, other, -other) * sin
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=at < num)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, seq_dim: int, interleaved: bool, back: bool) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        inner = math.prod(x.shape[seq_dim + 1 : -1]) if seq_dim != -1 else 1
        with torch.cuda.device_of(x):
            rotate_kernel[flat_grid(x.numel())](
                x.contiguous(), cos.contiguous(), sin.contiguous(), out, x.numel(), x.shape[-1], cos.shape[-1], inner,
                x.shape[seq_dim], interleaved, back, compute_dtype(x), ELEMENTS,
            )  # fmt: skip
    return out

"""Softmax over rows of any length: short rows in one read, long ones in two with a running maximum and sum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.triton_kernels.layout import compute_dtype, row_block, rows_of, warps

__all__ = ["backward", "forward", "grow"]


@triton.jit
def grow(largest, total, x):
    """Take the values ``x`` into a row's running maximum and the running sum of exp(x - maximum)."""
    larger = tl.maximum(largest, tl.max(x, 0))
    # While all values are -inf the maximum is too, and -inf - -inf would be NaN, for the rest of the row as well.
    base = tl.where(larger == float("-inf"), 0.0, larger)
    return larger, total * tl.exp(largest - base) + tl.sum(tl.exp(x - base), 0)


@triton.jit
def forward_kernel(x_ptr, out_ptr, stride, width, COMPUTE: tl.constexpr, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    out_ptr += row * width
    at = tl.arange(0, BLOCK)
    if ONE_BLOCK:
        x = tl.load(x_ptr + at, mask=at < width, other=float("-inf")).to(COMPUTE)
        e = tl.exp(x - tl.max(x, 0))
        tl.store(out_ptr + at, (e / tl.sum(e, 0)).to(out_ptr.dtype.element_ty), mask=at < width)
    else:
        largest = tl.full((), float("-inf"), COMPUTE)
        total = tl.zeros((), COMPUTE)
        for start in range(0, width, BLOCK):
            x = tl.load(x_ptr + start + at, mask=start + at < width, other=float("-inf")).to(COMPUTE)
            largest, total = grow(largest, total, x)
        for start in range(0, width, BLOCK):
            x = tl.load(x_ptr + start + at, mask=start + at < width, other=float("-inf")).to(COMPUTE)
            y = tl.exp(x - largest) / total
            tl.store(out_ptr + start + at, y.to(out_ptr.dtype.element_ty), mask=start + at < width)


@triton.jit
def backward_kernel(
    grad_ptr, y_ptr, out_ptr, grad_stride, y_stride, width,
    COMPUTE: tl.constexpr, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    # dx = y (dy - sum(dy y))
    row = tl.program_id(0).to(tl.int64)
    grad_ptr += row * grad_stride
    y_ptr += row * y_stride
    out_ptr += row * width
    at = tl.arange(0, BLOCK)
    if ONE_BLOCK:
        grad = tl.load(grad_ptr + at, mask=at < width, other=0.0).to(COMPUTE)
        y = tl.load(y_ptr + at, mask=at < width, other=0.0).to(COMPUTE)
        dx = y * (grad - tl.sum(grad * y, 0))
        tl.store(out_ptr + at, dx.to(out_ptr.dtype.element_ty), mask=at < width)
    else:
        total = tl.zeros((), COMPUTE)
        for start in range(0, width, BLOCK):
            grad = tl.load(grad_ptr + start + at, mask=start + at < width, other=0.0).to(COMPUTE)
            y = tl.load(y_ptr + start + at, mask=start + at < width, other=0.0).to(COMPUTE)
            total += tl.sum(grad * y, 0)
        for start in range(0, width, BLOCK):
            grad = tl.load(grad_ptr + start + at, mask=start + at < width, other=0.0).to(COMPUTE)
            y = tl.load(y_ptr + start + at, mask=start + at < width, other=0.0).to(COMPUTE)
            tl.store(out_ptr + start + at, (y * (grad - total)).to(out_ptr.dtype.element_ty), mask=start + at < width)


def forward(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        width = x.shape[-1]
        rows, (block, whole) = rows_of(x, width), row_block(width)
        with torch.cuda.device_of(x):
            forward_kernel[(len(rows),)](
                rows, out, rows.stride(0), width, compute_dtype(x), block, whole,
                num_warps=warps(block),
            )  # fmt: skip
    return out


def backward(grad: Tensor, y: Tensor) -> Tensor:
    out = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if y.numel():
        width = y.shape[-1]
        grads, rows, (block, whole) = rows_of(grad, width), rows_of(y, width), row_block(width)
        with torch.cuda.device_of(y):
            backward_kernel[(len(rows),)](
                grads, rows, out, grads.stride(0), rows.stride(0), width, compute_dtype(y), block, whole,
                num_warps=warps(block),
            )  # fmt: skip
    return out

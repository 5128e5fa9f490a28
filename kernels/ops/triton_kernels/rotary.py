"""Rotary position embedding, forward and backward: a rotation of pairs of columns by an angle of the position."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.triton_kernels.layout import compute_dtype

__all__ = ["rotate"]

TILE = 512  # pairs of one program; angles come from the cache, so a loop that would keep them only costs


@triton.jit
def rotate_kernel(
    x_ptr, cos_ptr, sin_ptr, out_ptr, outer_stride, minor_stride, position_stride, inner_stride,
    num_minor, num_positions, num_inner, width, half, row_blocks,
    INTERLEAVED: tl.constexpr, BACK: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
    REST: tl.constexpr,
):  # fmt: skip
    # (a, b) becomes (a cos - b sin, b cos + a sin); backward turns the other way; columns past 2 half stay
    row = tl.program_id(0) % row_blocks * ROWS + tl.arange(0, ROWS)
    num_rows = num_positions * num_inner
    position = row // num_inner
    pair = tl.arange(0, HALF)[None, :]
    inside = (row < num_rows)[:, None] & (pair < half)
    cos = tl.load(cos_ptr + position[:, None] * half + pair, mask=inside, other=1.0).to(COMPUTE)
    sin = tl.load(sin_ptr + position[:, None] * half + pair, mask=inside, other=0.0).to(COMPUTE)
    if BACK:
        sin = -sin
    from_row = (position.to(tl.int64) * position_stride + (row % num_inner).to(tl.int64) * inner_stride)[:, None]
    to_row = (row.to(tl.int64) * width)[:, None]
    outer = (tl.program_id(0) // row_blocks).to(tl.int64)
    from_ptr = x_ptr + outer // num_minor * outer_stride + outer % num_minor * minor_stride + from_row
    to_ptr = out_ptr + outer * num_rows * width + to_row
    if INTERLEAVED:
        both = tl.arange(0, 2 * HALF)[None, :]
        within = (row < num_rows)[:, None] & (both < 2 * half)
        x = tl.load(from_ptr + both, mask=within, other=0.0).to(COMPUTE)
        a, b = tl.split(tl.reshape(x, (ROWS, HALF, 2)))
        y = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (ROWS, 2 * HALF))
        tl.store(to_ptr + both, y.to(out_ptr.dtype.element_ty), mask=within)
    else:
        a = tl.load(from_ptr + pair, mask=inside, other=0.0).to(COMPUTE)
        b = tl.load(from_ptr + half + pair, mask=inside, other=0.0).to(COMPUTE)
        tl.store(to_ptr + pair, (a * cos - b * sin).to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(to_ptr + half + pair, (b * cos + a * sin).to(out_ptr.dtype.element_ty), mask=inside)
    if REST > 0:
        column = 2 * half + tl.arange(0, REST)[None, :]
        beyond = (row < num_rows)[:, None] & (column < width)
        tl.store(to_ptr + column, tl.load(from_ptr + column, mask=beyond), mask=beyond)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, seq_dim: int, interleaved: bool, back: bool) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        place, width, half = x.dim() + seq_dim, x.shape[-1], cos.shape[-1]
        num_positions = x.shape[place]
        parts = _parts(x, place)
        if parts is None:
            x = x.contiguous()
            parts = _parts(x, place)
            assert parts is not None
        (num_outer, outer_stride, num_minor, minor_stride), (num_inner, inner_stride) = parts
        columns = triton.next_power_of_2(max(half, 1))
        rows = max(min(TILE // columns, triton.next_power_of_2(num_positions * num_inner)), 1)
        blocks = triton.cdiv(num_positions * num_inner, rows)
        rest = width - 2 * half
        with torch.cuda.device_of(x):
            rotate_kernel[(blocks * num_outer * num_minor,)](
                x, cos.contiguous(), sin.contiguous(), out, outer_stride, minor_stride, x.stride(place), inner_stride,
                num_minor, num_positions, num_inner, width, half, blocks, interleaved, back, compute_dtype(x), rows,
                columns, triton.next_power_of_2(rest) if rest else 0,
            )  # fmt: skip
    return out


def _parts(x: Tensor, place: int) -> tuple[tuple[int, int, int, int], tuple[int, int]] | None:
    """Return sizes and strides of two groups of dimensions before the positions and of one after, or None."""
    before = _merged(x, range(place))
    after = _merged(x, range(place + 1, x.dim() - 1))
    if len(before) > 2 or len(after) > 1 or (x.stride(-1) != 1 and x.shape[-1] > 1):
        return None
    (outer, minor), (inner,) = [*[(1, 0)] * (2 - len(before)), *before], after or [(1, 0)]
    return (*outer, *minor), inner


def _merged(x: Tensor, dims: range) -> list[tuple[int, int]]:
    """Return sizes and strides of these dimensions, neighbours as one where a single stride leads through both."""
    found: list[tuple[int, int]] = []
    for dim in dims:
        size, stride = x.shape[dim], x.stride(dim)
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return found

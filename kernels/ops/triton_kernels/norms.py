"""RMSNorm and LayerNorm of rows, after the residual was added: one pass for short rows, several for long ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.triton_kernels.layout import (
    compute_dtype,
    num_processors,
    row_block,
    rows_of,
    torch_compute_dtype,
    warps,
)

__all__ = ["backward", "forward"]

MAX_HELD = 8192  # columns whose weight gradients one program sums in registers; more would spill
PROGRAMS_PER_SM = 8  # of the backward pass; each leaves one row of partial sums behind
TILE_ROWS, TILE_COLUMNS = 16, 128


@triton.jit
def _sum_of(x_ptr, residual_ptr, at, width, RESIDUAL: tl.constexpr, COMPUTE: tl.constexpr):
    """Return x + residual as it is stored: rounded to x's dtype, as the addition on its own would."""
    x = tl.load(x_ptr + at, mask=at < width, other=0.0)
    if RESIDUAL:
        other = tl.load(residual_ptr + at, mask=at < width, other=0.0)
        x = (x.to(COMPUTE) + other.to(COMPUTE)).to(x.dtype)
    return x.to(COMPUTE)


@triton.jit
def _affine(x, weight_ptr, bias_ptr, at, width, WEIGHT: tl.constexpr, BIAS: tl.constexpr, COMPUTE: tl.constexpr):
    if WEIGHT:
        x = x * tl.load(weight_ptr + at, mask=at < width, other=0.0).to(COMPUTE)
    if BIAS:
        x = x + tl.load(bias_ptr + at, mask=at < width, other=0.0).to(COMPUTE)
    return x


@triton.jit
def forward_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, h_ptr, mean_ptr, rstd_ptr, x_stride, residual_stride, width,
    EPS: tl.constexpr, RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, CENTER: tl.constexpr,
    COMPUTE: tl.constexpr, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    residual_ptr += row * residual_stride
    y_ptr += row * width
    h_ptr += row * width
    columns = tl.arange(0, BLOCK)
    mean = tl.zeros((), COMPUTE)
    if ONE_BLOCK:
        h = _sum_of(x_ptr, residual_ptr, columns, width, RESIDUAL, COMPUTE)
        if RESIDUAL:
            tl.store(h_ptr + columns, h.to(h_ptr.dtype.element_ty), mask=columns < width)
        if CENTER:
            mean = tl.sum(h, 0) / width
            h = tl.where(columns < width, h - mean, 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(h * h, 0) / width + EPS)
        y = _affine(h * rstd, weight_ptr, bias_ptr, columns, width, WEIGHT, BIAS, COMPUTE)
        tl.store(y_ptr + columns, y.to(y_ptr.dtype.element_ty), mask=columns < width)
    else:
        if CENTER:
            for start in range(0, width, BLOCK):
                mean += tl.sum(_sum_of(x_ptr, residual_ptr, start + columns, width, RESIDUAL, COMPUTE), 0)
            mean = mean / width
        square = tl.zeros((), COMPUTE)
        for start in range(0, width, BLOCK):
            at = start + columns
            h = _sum_of(x_ptr, residual_ptr, at, width, RESIDUAL, COMPUTE)
            h = tl.where(at < width, h - mean, 0.0)
            square += tl.sum(h * h, 0)
        rstd = 1.0 / tl.sqrt(square / width + EPS)
        for start in range(0, width, BLOCK):
            at = start + columns
            h = _sum_of(x_ptr, residual_ptr, at, width, RESIDUAL, COMPUTE)
            if RESIDUAL:
                tl.store(h_ptr + at, h.to(h_ptr.dtype.element_ty), mask=at < width)
            y = _affine((h - mean) * rstd, weight_ptr, bias_ptr, at, width, WEIGHT, BIAS, COMPUTE)
            tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < width)
    if CENTER:
        tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def _scaled(grad_ptr, h_ptr, weight_ptr, at, width, mean, rstd, WEIGHT: tl.constexpr, COMPUTE: tl.constexpr):
    """Return a row's gradient, the same times the weight, and the row normalized."""
    grad = tl.load(grad_ptr + at, mask=at < width, other=0.0).to(COMPUTE)
    h = tl.load(h_ptr + at, mask=at < width, other=0.0).to(COMPUTE)
    normal = tl.where(at < width, (h - mean) * rstd, 0.0)
    weighted = grad
    if WEIGHT:
        weighted = grad * tl.load(weight_ptr + at, mask=at < width, other=0.0).to(COMPUTE)
    return grad, weighted, normal


@triton.jit
def _store_dx(
    dx, row_grad_h, out_ptr, at, width, GRAD_H: tl.constexpr, COMPUTE: tl.constexpr
):  # the residual stream's own gradient joins here
    if GRAD_H:
        dx += tl.load(row_grad_h + at, mask=at < width, other=0.0).to(COMPUTE)
    tl.store(out_ptr + at, dx.to(out_ptr.dtype.element_ty), mask=at < width)


@triton.jit
def backward_kernel(
    grad_ptr, grad_h_ptr, h_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    grad_stride, grad_h_stride, h_stride, num_rows, width,
    GRAD_H: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, CENTER: tl.constexpr,
    COMPUTE: tl.constexpr, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    # dx = rstd (w dy - n mean(w dy n) - mean(w dy)), n the normalized row; the last term for LayerNorm only
    first = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    dweight = tl.zeros((BLOCK,), COMPUTE)
    dbias = tl.zeros((BLOCK,), COMPUTE)
    for number in range(first, num_rows, tl.num_programs(0)):
        row = tl.zeros((), tl.int64) + number
        grad_row = grad_ptr + row * grad_stride
        grad_h_row = grad_h_ptr + row * grad_h_stride
        h_row = h_ptr + row * h_stride
        dx_row = dx_ptr + row * width
        rstd = tl.load(rstd_ptr + row)
        mean = tl.zeros((), COMPUTE)
        if CENTER:
            mean = tl.load(mean_ptr + row)
        if ONE_BLOCK:
            grad, weighted, normal = _scaled(grad_row, h_row, weight_ptr, columns, width, mean, rstd, WEIGHT, COMPUTE)
            dx = weighted - normal * (tl.sum(weighted * normal, 0) / width)
            if CENTER:
                dx -= tl.sum(weighted, 0) / width
            _store_dx(dx * rstd, grad_h_row, dx_row, columns, width, GRAD_H, COMPUTE)
            if WEIGHT:
                dweight += grad * normal
            if BIAS:
                dbias += grad
        else:
            along = tl.zeros((), COMPUTE)
            total = tl.zeros((), COMPUTE)
            for start in range(0, width, BLOCK):
                at = start + columns
                grad, weighted, normal = _scaled(grad_row, h_row, weight_ptr, at, width, mean, rstd, WEIGHT, COMPUTE)
                along += tl.sum(weighted * normal, 0)
                total += tl.sum(weighted, 0)
            for start in range(0, width, BLOCK):
                at = start + columns
                grad, weighted, normal = _scaled(grad_row, h_row, weight_ptr, at, width, mean, rstd, WEIGHT, COMPUTE)
                dx = weighted - normal * (along / width)
                if CENTER:
                    dx -= total / width
                _store_dx(dx * rstd, grad_h_row, dx_row, at, width, GRAD_H, COMPUTE)
    if ONE_BLOCK:
        at = first.to(tl.int64) * width + columns
        if WEIGHT:
            tl.store(dweight_ptr + at, dweight, mask=columns < width)
        if BIAS:
            tl.store(dbias_ptr + at, dbias, mask=columns < width)


@triton.jit
def columns_kernel(
    grad_ptr, h_ptr, mean_ptr, rstd_ptr, dweight_ptr, dbias_ptr, grad_stride, h_stride, num_rows, width,
    BIAS: tl.constexpr, CENTER: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum the weight's gradients of wide rows over every n-th tile of rows, where n is the number of programs."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    dweight = tl.zeros((COLUMNS,), COMPUTE)
    dbias = tl.zeros((COLUMNS,), COMPUTE)
    for start in range(tl.program_id(1) * ROWS, num_rows, tl.num_programs(1) * ROWS):
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows < num_rows)[:, None] & (columns < width)[None, :]
        grad = tl.load(grad_ptr + rows[:, None] * grad_stride + columns[None, :], mask=inside, other=0.0).to(COMPUTE)
        h = tl.load(h_ptr + rows[:, None] * h_stride + columns[None, :], mask=inside, other=0.0).to(COMPUTE)
        if CENTER:
            h -= tl.load(mean_ptr + rows, mask=rows < num_rows, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + rows, mask=rows < num_rows, other=0.0)
        dweight += tl.sum(grad * h * rstd[:, None], 0)
        dbias += tl.sum(grad, 0)
    at = tl.program_id(1).to(tl.int64) * width + columns
    tl.store(dweight_ptr + at, dweight, mask=columns < width)
    if BIAS:
        tl.store(dbias_ptr + at, dbias, mask=columns < width)


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, center: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    width, compute = x.shape[-1], torch_compute_dtype(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    h = torch.empty_like(y) if residual is not None else x.new_empty(0)
    rstd = torch.empty(x.shape[:-1], dtype=compute, device=x.device)
    mean = torch.empty_like(rstd) if center else rstd.new_empty(0)
    if x.numel():
        rows, (block, whole) = rows_of(x, width), row_block(width)
        others = rows if residual is None else rows_of(residual, width)
        weight, bias = [None if part is None else part.contiguous() for part in (weight, bias)]
        with torch.cuda.device_of(x):
            forward_kernel[(len(rows),)](
                rows, others, weight, bias, y, h, mean, rstd, rows.stride(0), others.stride(0), width, eps,
                residual is not None, weight is not None, bias is not None, center, compute_dtype(x), block, whole,
                num_warps=warps(block),
            )  # fmt: skip
    return y, h, mean, rstd


def backward(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, eps: float,
    center: bool, with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    del eps  # rstd holds it
    width, compute = h.shape[-1], compute_dtype(h)
    dx = torch.empty(h.shape, dtype=h.dtype, device=h.device)
    num_rows = h.numel() // width if width else 0
    block, whole = row_block(width, MAX_HELD)
    num_partial = min(num_rows, num_processors(h.device) * PROGRAMS_PER_SM)
    dweight = rstd.new_empty((num_partial, width)) if weight is not None else rstd.new_empty((0,))
    dbias = torch.empty_like(dweight) if with_bias else rstd.new_empty((0,))
    if num_rows:
        grads, rows = rows_of(grad, width), rows_of(h, width)
        grads_h = grads if grad_h is None else rows_of(grad_h, width)
        dense = None if weight is None else weight.contiguous()
        with torch.cuda.device_of(h):
            backward_kernel[(num_partial if whole else num_rows,)](
                grads, grads_h, rows, dense, mean, rstd, dx, dweight, dbias,
                grads.stride(0), grads_h.stride(0), rows.stride(0), num_rows, width,
                grad_h is not None, weight is not None, with_bias, center, compute, block, whole,
                num_warps=warps(block),
            )  # fmt: skip
            if not whole and weight is not None:
                columns_kernel[(triton.cdiv(width, TILE_COLUMNS), num_partial)](
                    grads, rows, mean, rstd, dweight, dbias, grads.stride(0), rows.stride(0), num_rows, width,
                    with_bias, center, compute, TILE_ROWS, TILE_COLUMNS,
                )  # fmt: skip
    if weight is not None:
        dweight = dweight.sum(0).to(weight.dtype)
    if with_bias and weight is not None:
        dbias = dbias.sum(0).to(weight.dtype)
    return dx, dweight, dbias

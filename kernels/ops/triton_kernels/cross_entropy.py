"""Cross entropy of rows of logits: a running maximum and sum forward, and the gradient in one further read."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.triton_kernels.layout import compute_dtype, row_block, rows_of, torch_compute_dtype, warps
from diagnose.kernels.ops.triton_kernels.softmax import grow

__all__ = ["backward", "forward", "reduced"]

MAX_HELD = 8192  # columns at once, each turn of which ends with all warps waiting for the block's largest logit
FORWARD_ELEMENTS = 32  # of a thread
BACKWARD_HELD = 4096  # columns of one program, which waits for nothing
SUMMED = 2048  # rows that the program of the sum takes at once


@triton.jit
def forward_kernel(
    x_ptr, target_ptr, loss_ptr, lse_ptr, stride, width,
    IGNORED: tl.constexpr, SMOOTHING: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # loss = (1 - s) (lse - x_target) + s (lse - mean(x)), and lse = m + log(sum(exp(x - m))) with the largest logit m:
    # m is subtracted from each x first, so that no digits are lost where all of them are far from zero
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    target = tl.load(target_ptr + row)
    columns = tl.arange(0, BLOCK)
    largest = tl.full((), float("-inf"), COMPUTE)
    total = tl.zeros((), COMPUTE)
    plain = tl.zeros((), COMPUTE)
    first = tl.load(x_ptr).to(COMPUTE)
    first = tl.where(tl.abs(first) < float("inf"), first, 0.0)
    for start in range(0, width, BLOCK):
        inside = start + columns < width
        x = tl.load(x_ptr + start + columns, mask=inside, other=float("-inf")).to(COMPUTE)
        largest, total = grow(largest, total, x)
        if SMOOTHING > 0:
            plain += tl.sum(tl.where(inside, x - first, 0.0), 0)
    largest = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)
    rest = tl.log(total)
    valid = (target >= 0) & (target < width)
    loss = rest - (1.0 - SMOOTHING) * (tl.load(x_ptr + target, mask=valid, other=float("nan")).to(COMPUTE) - largest)
    if SMOOTHING > 0:
        loss -= SMOOTHING * (plain / width + (first - largest))
    loss = tl.where(target == IGNORED, 0.0, loss)
    tl.store(loss_ptr + row, loss)
    tl.store(lse_ptr + 2 * row, largest)
    tl.store(lse_ptr + 2 * row + 1, rest)


@triton.jit
def sum_kernel(
    loss_ptr, target_ptr, out_ptr, factor_ptr, num_rows,
    IGNORED: tl.constexpr, MEAN: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One program: the sum of all rows' losses, in one order always, and by what a row's gradient is multiplied.
    total = tl.zeros((BLOCK,), COMPUTE)
    count = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, num_rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        total += tl.load(loss_ptr + row, mask=row < num_rows, other=0.0)
        if MEAN:
            target = tl.load(target_ptr + row, mask=row < num_rows, other=IGNORED)
            count += tl.where(target == IGNORED, 0, 1)
    loss = tl.sum(total, 0)
    factor = tl.full((), 1.0, COMPUTE)
    if MEAN:
        factor = factor / tl.sum(count, 0).to(COMPUTE)
        loss = loss * factor
    tl.store(out_ptr, loss)
    tl.store(factor_ptr, factor)


@triton.jit
def backward_kernel(
    grad_ptr, x_ptr, target_ptr, lse_ptr, dx_ptr, grad_stride, stride, width, blocks,
    IGNORED: tl.constexpr, SMOOTHING: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # dx = dloss (softmax(x) - (1 - s) [column = target] - s / width), and zero in rows that are ignored
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(target_ptr + row)
    grad = tl.load(grad_ptr + row * grad_stride)
    largest = tl.load(lse_ptr + 2 * row)
    rest = tl.load(lse_ptr + 2 * row + 1)
    x = tl.load(x_ptr + row * stride + column, mask=column < width, other=0.0).to(COMPUTE)
    smoothing = tl.full((), SMOOTHING, COMPUTE)
    dx = tl.exp((x - largest) - rest) - smoothing / width - tl.where(column == target, 1.0 - smoothing, 0.0)
    dx = tl.where(target == IGNORED, 0.0, dx * grad)
    tl.store(dx_ptr + row * width + column, dx.to(dx_ptr.dtype.element_ty), mask=column < width)


def forward(x: Tensor, target: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    loss = torch.empty(x.shape[:-1], dtype=torch_compute_dtype(x), device=x.device)
    lse = torch.empty((*loss.shape, 2), dtype=loss.dtype, device=x.device)  # the largest logit, and what it lacks
    if x.numel():
        width = x.shape[-1]
        rows, (block, _) = rows_of(x, width), row_block(width, MAX_HELD)
        with torch.cuda.device_of(x):
            forward_kernel[(len(rows),)](
                rows, target.contiguous(), loss, lse, rows.stride(0), width, ignored, smoothing, compute_dtype(x),
                block, num_warps=warps(block, FORWARD_ELEMENTS),
            )  # fmt: skip
    return loss, lse


def reduced(x: Tensor, target: Tensor, ignored: int, smoothing: float, mean: bool) -> tuple[Tensor, Tensor, Tensor]:
    losses, lse = forward(x, target, ignored, smoothing)
    loss, factor = losses.new_empty(()), losses.new_empty(())
    with torch.cuda.device_of(x):
        sum_kernel[(1,)](
            losses, target.contiguous(), loss, factor, losses.numel(), ignored, mean, compute_dtype(x), SUMMED,
            num_warps=8,
        )  # fmt: skip
    return loss, lse, factor


def backward(grad: Tensor, x: Tensor, target: Tensor, lse: Tensor, ignored: int, smoothing: float) -> Tensor:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        width = x.shape[-1]
        rows, (block, _) = rows_of(x, width), row_block(width, BACKWARD_HELD)
        blocks = triton.cdiv(width, block)
        is_one_number = not any(grad.stride())  # a loss that was reduced: every row has the same gradient
        with torch.cuda.device_of(x):
            backward_kernel[(len(rows) * blocks,)](
                grad if is_one_number else grad.contiguous(), rows, target.contiguous(), lse.contiguous(), dx,
                0 if is_one_number else 1, rows.stride(0), width, blocks, ignored, smoothing, compute_dtype(x), block,
                num_warps=warps(block),
            )  # fmt: skip
    return dx

"""Programs over rows with a partner: SwiGLU's two halves, and GELU after a bias along the last dimension."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.triton_kernels.gelu import gelu_of, slope_of
from diagnose.kernels.ops.triton_kernels.layout import compute_dtype, num_processors, rows_of, tile_of

__all__ = ["bias_gelu", "bias_gelu_backward", "swiglu", "swiglu_backward"]

TILE = 1024  # elements of one program: eight a thread at four warps, one 128-bit read in 16 bits
BIAS_BYTES = 4096  # of a tile of the forward pass: erf keeps threads busy, which more elements each make up for
BIAS_TILE, BIAS_COLUMNS = 1024, 128  # of a turn of the programs that sum the bias's gradient, each over many rows
BIAS_PROGRAMS_PER_SM = 8


@triton.jit
def swiglu_kernel(
    gate_ptr, up_ptr, out_ptr, gate_stride, up_stride, num_rows, width, column_blocks,
    COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # silu(gate) up, silu(g) = g sigmoid(g)
    program = tl.program_id(0).to(tl.int64)
    row = (program // column_blocks * ROWS + tl.arange(0, ROWS))[:, None]
    column = (program % column_blocks * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < num_rows) & (column < width)
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside).to(COMPUTE)
    up = tl.load(up_ptr + row * up_stride + column, mask=inside).to(COMPUTE)
    tl.store(out_ptr + row * width + column, (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_backward_kernel(
    grad_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, grad_stride, gate_stride, up_stride, num_rows, width, column_blocks,
    COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # dup = dy silu(g), dgate = dy up s (1 + g (1 - s)), s = sigmoid(g)
    program = tl.program_id(0).to(tl.int64)
    row = (program // column_blocks * ROWS + tl.arange(0, ROWS))[:, None]
    column = (program % column_blocks * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < num_rows) & (column < width)
    grad = tl.load(grad_ptr + row * grad_stride + column, mask=inside).to(COMPUTE)
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside).to(COMPUTE)
    up = tl.load(up_ptr + row * up_stride + column, mask=inside).to(COMPUTE)
    s = tl.sigmoid(gate)
    at = row * width + column
    tl.store(dup_ptr + at, (grad * gate * s).to(dup_ptr.dtype.element_ty), mask=inside)
    dgate = grad * up * s * (gate * (1.0 - s) + 1.0)
    tl.store(dgate_ptr + at, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)


@triton.jit
def bias_gelu_kernel(
    x_ptr, bias_ptr, out_ptr, x_stride, num_rows, width, column_blocks,
    TANH: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row = (program // column_blocks * ROWS + tl.arange(0, ROWS))[:, None]
    column = (program % column_blocks * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < num_rows) & (column < width)
    bias = tl.load(bias_ptr + column, mask=column < width).to(COMPUTE)
    x = tl.load(x_ptr + row * x_stride + column, mask=inside).to(COMPUTE) + bias
    y = gelu_of(x, TANH, out_ptr.dtype.element_ty.primitive_bitwidth == 16)
    tl.store(out_ptr + row * width + column, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def bias_gelu_backward_kernel(
    grad_ptr, x_ptr, bias_ptr, dx_ptr, dbias_ptr, grad_stride, x_stride, num_rows, width, column_blocks,
    BIAS: tl.constexpr, TANH: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # A program takes every n-th tile of rows of its columns, and leaves one row of the bias's gradient behind.
    first = tl.program_id(0) // column_blocks
    column = ((tl.program_id(0) % column_blocks).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    bias = tl.load(bias_ptr + column, mask=column < width, other=0.0).to(COMPUTE)
    dbias = tl.zeros((ROWS, COLUMNS), COMPUTE)
    for start in range(first * ROWS, num_rows, tl.num_programs(0) // column_blocks * ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < num_rows) & (column < width)
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(COMPUTE) + bias
        grad = tl.load(grad_ptr + row * grad_stride + column, mask=inside, other=0.0).to(COMPUTE)
        dx = grad * slope_of(x, TANH, dx_ptr.dtype.element_ty.primitive_bitwidth == 16)
        tl.store(dx_ptr + row * width + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if BIAS:
            dbias += dx
    if BIAS:
        at = first.to(tl.int64) * width + column
        tl.store(dbias_ptr + at, tl.sum(dbias, 0)[None, :], mask=column < width)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if gate.numel():
        (gates, ups), num_rows, width = _aligned(gate, up)
        rows, columns = tile_of(width, TILE)
        blocks = triton.cdiv(width, columns)
        with torch.cuda.device_of(gate):
            swiglu_kernel[(triton.cdiv(num_rows, rows) * blocks,)](
                gates, ups, out, gates.stride(0), ups.stride(0), num_rows, width, blocks, compute_dtype(out),
                rows, columns,
            )  # fmt: skip
    return out


def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    dgate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    dup = torch.empty_like(dgate)
    if gate.numel():
        (grads, gates, ups), num_rows, width = _aligned(grad, gate, up)
        rows, columns = tile_of(width, TILE)
        blocks = triton.cdiv(width, columns)
        with torch.cuda.device_of(gate):
            swiglu_backward_kernel[(triton.cdiv(num_rows, rows) * blocks,)](
                grads, gates, ups, dgate, dup, grads.stride(0), gates.stride(0), ups.stride(0), num_rows, width, blocks,
                compute_dtype(gate), rows, columns,
            )  # fmt: skip
    return dgate, dup


def _aligned(*tensors: Tensor) -> tuple[list[Tensor], int, int]:
    """Return tensors of one shape as rows, their number and their width: one long row where nothing lies between."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return [tensor.reshape(1, -1) for tensor in tensors], 1, tensors[0].numel()
    width = tensors[0].shape[-1]
    return [rows_of(tensor, width) for tensor in tensors], tensors[0].numel() // width, width


def bias_gelu(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        x_rows = rows_of(x, x.shape[-1])
        num_rows, width = x_rows.shape
        rows, columns = tile_of(width, max(BIAS_BYTES // x.itemsize, 1))
        blocks = triton.cdiv(width, columns)
        with torch.cuda.device_of(x):
            bias_gelu_kernel[(triton.cdiv(num_rows, rows) * blocks,)](
                x_rows, bias.contiguous(), out, x_rows.stride(0), num_rows, width, blocks, approximate == "tanh",
                compute_dtype(x), rows, columns,
            )  # fmt: skip
    return out


def bias_gelu_backward(
    grad: Tensor, x: Tensor, bias: Tensor, approximate: str, with_bias: bool
) -> tuple[Tensor, Tensor]:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return dx, bias.new_zeros(bias.shape if with_bias else 0)
    x_rows, grads = rows_of(x, x.shape[-1]), rows_of(grad, x.shape[-1])
    num_rows, width = x_rows.shape
    columns = tile_of(width, BIAS_COLUMNS)[1]
    rows = BIAS_TILE // columns
    blocks, tiles = triton.cdiv(width, columns), triton.cdiv(num_rows, rows)
    if with_bias:
        tiles = min(tiles, triton.cdiv(num_processors(x.device) * BIAS_PROGRAMS_PER_SM, blocks))
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    dbias = torch.empty((tiles, width) if with_bias else (0, 1), dtype=dtype, device=x.device)
    with torch.cuda.device_of(x):
        bias_gelu_backward_kernel[(tiles * blocks,)](
            grads, x_rows, bias.contiguous(), dx, dbias, grads.stride(0), x_rows.stride(0), num_rows, width, blocks,
            with_bias, approximate == "tanh", compute_dtype(x), rows, columns,
        )  # fmt: skip
    return dx, dbias.sum(0).to(bias.dtype) if with_bias else bias.new_empty(0)

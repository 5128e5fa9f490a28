"""Programs over flat tensors with a partner: SwiGLU's two halves, and GELU after a bias along the last dimension."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.triton_kernels.gelu import gelu_of, slope_of
from diagnose.kernels.ops.triton_kernels.layout import ELEMENTS, compute_dtype, flat_grid, rows_of

__all__ = ["bias_gelu", "bias_gelu_backward", "place", "swiglu", "swiglu_backward"]


@triton.jit
def place(width, BLOCK: tl.constexpr):
    """Return the row and the column of a program's elements; only one division is over 64 bits, which are slow."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    row = first // width
    column = (first - row * width).to(tl.int32) + tl.arange(0, BLOCK)
    return row + column // width, column % width


@triton.jit
def swiglu_kernel(
    gate_ptr, up_ptr, out_ptr, gate_stride, up_stride, num, width, COMPUTE: tl.constexpr, BLOCK: tl.constexpr
):
    # silu(gate) up, silu(g) = g sigmoid(g)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column = place(width, BLOCK)
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=at < num).to(COMPUTE)
    up = tl.load(up_ptr + row * up_stride + column, mask=at < num).to(COMPUTE)
    tl.store(out_ptr + at, (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty), mask=at < num)


@triton.jit
def swiglu_backward_kernel(
    grad_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, gate_stride, up_stride, num, width,
    COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # dup = dy silu(g), dgate = dy up s (1 + g (1 - s)), s = sigmoid(g)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column = place(width, BLOCK)
    grad = tl.load(grad_ptr + at, mask=at < num).to(COMPUTE)
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=at < num).to(COMPUTE)
    up = tl.load(up_ptr + row * up_stride + column, mask=at < num).to(COMPUTE)
    s = tl.sigmoid(gate)
    tl.store(dup_ptr + at, (grad * gate * s).to(dup_ptr.dtype.element_ty), mask=at < num)
    dgate = grad * up * s * (gate * (1.0 - s) + 1.0)
    tl.store(dgate_ptr + at, dgate.to(dgate_ptr.dtype.element_ty), mask=at < num)


@triton.jit
def bias_gelu_kernel(
    grad_ptr, x_ptr, bias_ptr, out_ptr, num, width,
    BACKWARD: tl.constexpr, TANH: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    _, column = place(width, BLOCK)
    x = tl.load(x_ptr + at, mask=at < num).to(COMPUTE) + tl.load(bias_ptr + column, mask=at < num).to(COMPUTE)
    if BACKWARD:
        y = tl.load(grad_ptr + at, mask=at < num).to(COMPUTE) * slope_of(x, TANH)
    else:
        y = gelu_of(x, TANH)
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=at < num)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if gate.numel():
        width, (gates, ups) = _width(gate), (rows_of(part, _width(gate)) for part in (gate, up))
        with torch.cuda.device_of(gate):
            swiglu_kernel[flat_grid(out.numel())](
                gates, ups, out, gates.stride(0), ups.stride(0), out.numel(), width, compute_dtype(out), ELEMENTS
            )
    return out


def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    dgate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    dup = torch.empty_like(dgate)
    if gate.numel():
        width, (gates, ups) = _width(gate), (rows_of(part, _width(gate)) for part in (gate, up))
        with torch.cuda.device_of(gate):
            swiglu_backward_kernel[flat_grid(dup.numel())](
                grad.contiguous(), gates, ups, dgate, dup, gates.stride(0), ups.stride(0), dup.numel(), width,
                compute_dtype(gate), ELEMENTS,
            )  # fmt: skip
    return dgate, dup


def _width(tensor: Tensor) -> int:
    return tensor.shape[-1] if tensor.dim() else 1


def bias_gelu(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    return _bias_gelu(None, x, bias, approximate)


def bias_gelu_backward(grad: Tensor, x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    return _bias_gelu(grad, x, bias, approximate)


def _bias_gelu(grad: Tensor | None, x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)  # the column follows from the place: rows in order
    if x.numel():
        with torch.cuda.device_of(x):
            bias_gelu_kernel[flat_grid(x.numel())](
                out if grad is None else grad.contiguous(), x.contiguous(), bias.contiguous(), out, x.numel(),
                x.shape[-1], grad is not None, approximate == "tanh", compute_dtype(x), ELEMENTS,
            )  # fmt: skip
    return out

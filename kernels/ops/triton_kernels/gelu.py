"""GELU in its erf and tanh forms, forward and backward, over a flat tensor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.triton_kernels.layout import ELEMENTS, compute_dtype, flat_grid, like

__all__ = ["backward", "forward", "gelu_of", "slope_of"]


@triton.jit
def _gate(x):
    # x (1 + tanh u) / 2 = x sigmoid(2u), which loses no digits where tanh u nears -1; 1.595… = 2 sqrt(2/pi)
    return tl.sigmoid(x * 1.5957691216057308 * (x * x * 0.044715 + 1.0))


@triton.jit
def _normal(x, NARROW: tl.constexpr):
    """Return Phi(x) and exp(-x²/2); for results of 16 bits from that exponential, where erf would keep threads busy."""
    e = tl.exp(x * x * -0.5)
    if NARROW:
        # Phi(-|x|) = t P(t) e / 2 with t = 1 / (1 + 0.35 |x| / sqrt(2)), P fitted here to erfcx: relative error 8e-7
        t = 1.0 / (1.0 + tl.abs(x) * 0.2474873734152916)
        p = 0.100604639 - 0.0425525934 * t
        p = -0.00727486359 + p * t
        p = 0.0814718894 + p * t
        p = 0.07733615 + p * t
        p = 0.0929546711 + p * t
        p = 0.0987265518 + p * t
        p = 0.0987331438 + p * t
        tail = p * t * e
        phi = tl.where(x > 0.0, 1.0 - tail, tail)
    else:
        phi = 0.5 * (tl.erf(x * 0.7071067811865476) + 1.0)  # sqrt(1/2)
    return phi, e


@triton.jit
def gelu_of(x, TANH: tl.constexpr, NARROW: tl.constexpr):
    if TANH:
        return x * _gate(x)
    phi, _ = _normal(x, NARROW)
    return x * phi


@triton.jit
def slope_of(x, TANH: tl.constexpr, NARROW: tl.constexpr):
    if TANH:
        s = _gate(x)
        return s + x * s * _gate(-x) * 1.5957691216057308 * (x * x * 0.134145 + 1.0)  # 1 - s without its digits lost
    phi, e = _normal(x, NARROW)
    return phi + x * 0.3989422804014327 * e  # 1/sqrt(2 pi)


@triton.jit
def forward_kernel(x_ptr, out_ptr, num, TANH: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < num).to(COMPUTE)
    y = gelu_of(x, TANH, out_ptr.dtype.element_ty.primitive_bitwidth == 16)
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=at < num)


@triton.jit
def backward_kernel(grad_ptr, x_ptr, out_ptr, num, TANH: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < num).to(COMPUTE)
    grad = tl.load(grad_ptr + at, mask=at < num).to(COMPUTE)
    slope = slope_of(x, TANH, out_ptr.dtype.element_ty.primitive_bitwidth == 16)
    tl.store(out_ptr + at, (grad * slope).to(out_ptr.dtype.element_ty), mask=at < num)


def forward(x: Tensor, approximate: str) -> Tensor:
    out = torch.empty_like(x)
    if x.numel():
        x = like(x, out)
        with torch.cuda.device_of(x):
            forward_kernel[flat_grid(x.numel())](x, out, x.numel(), approximate == "tanh", compute_dtype(x), ELEMENTS)
    return out


def backward(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    out = torch.empty_like(x)
    if x.numel():
        x, grad, tanh = like(x, out), like(grad, out), approximate == "tanh"
        with torch.cuda.device_of(x):
            backward_kernel[flat_grid(x.numel())](grad, x, out, x.numel(), tanh, compute_dtype(x), ELEMENTS)
    return out

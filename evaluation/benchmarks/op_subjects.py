"""The operators that benchmarks/ops.py times: their arguments, ways to calculate them, and what they move."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from diagnose.kernels import ops

WIDTH = 1024  # columns of a row
BATCH, HEADS, HEAD = 4, 32, 128  # of a rotary embedding
Function = Callable[..., Any]


@dataclass(frozen=True)
class Subject:
    """An operator: its arguments for a number of elements, ways to calculate it, and what it has to move.

    ``forward`` and ``backward`` are tensors of ``size`` elements read or written.
    """

    name: str
    make: Callable[[int, torch.dtype, str], list[Tensor]]
    written: Function
    builtin: Function | None
    ours: Function
    forward: int
    backward: int
    native: bool = False


def tensors(num: int, width: int = WIDTH) -> Callable[[int, torch.dtype, str], list[Tensor]]:
    def make(size: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        shape = (max(size // width, 1), min(size, width))
        return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(num)]

    return make


def with_weight(num: int, width: int = WIDTH) -> Callable[[int, torch.dtype, str], list[Tensor]]:
    def make(size: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        made = tensors(num, width)(size, dtype, device)
        return [*made, torch.ones(made[0].shape[-1], dtype=dtype, device=device, requires_grad=True)]

    return make


def with_angles(size: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    length = max(size // (BATCH * HEADS * HEAD), 1)
    x = torch.randn(BATCH, HEADS, length, HEAD, dtype=dtype, device=device, requires_grad=True)
    return [x, *ops.angles(length, HEAD, device=device)]


def with_target(classes: int) -> Callable[[int, torch.dtype, str], list[Tensor]]:
    def make(size: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        rows = max(size // classes, 1)
        logits = torch.randn(rows, classes, dtype=dtype, device=device, requires_grad=True)
        return [logits, torch.randint(classes, (rows,), device=device)]

    return make


def written_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def written_softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def written_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    return written_rms_norm(h, weight), h


def written_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def written_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def written_layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    return (centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


SUBJECTS = (
    Subject(
        "gelu (tanh)", tensors(1), written_gelu, lambda x: F.gelu(x, approximate="tanh"),
        lambda x: ops.gelu(x, "tanh"), 2, 3, native=True,
    ),
    Subject("bias_gelu", with_weight(1), lambda x, bias: F.gelu(x + bias), None, ops.bias_gelu, 2, 3),
    Subject("softmax", tensors(1), written_softmax, lambda x: F.softmax(x, -1), ops.softmax, 2, 3),
    Subject(
        "rms_norm", with_weight(1), written_rms_norm, lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), ops.rms_norm, 2, 3
    ),
    Subject("add_rms_norm", with_weight(2), written_add_rms_norm, None, ops.add_rms_norm, 4, 4),
    Subject(
        "layer_norm", with_weight(1), written_layer_norm, lambda x, w: F.layer_norm(x, w.shape, w), ops.layer_norm, 2, 3
    ),
    Subject("swiglu", tensors(2), lambda g, u: F.silu(g) * u, None, ops.swiglu, 3, 5),
    Subject("rotary", with_angles, written_rotary, None, ops.rotary, 2, 2),
    Subject(
        "cross_entropy, 8k", with_target(8 * WIDTH), F.cross_entropy, F.cross_entropy, ops.cross_entropy, 1, 2
    ),
    Subject(
        "cross_entropy, 128k", with_target(128 * WIDTH), F.cross_entropy, F.cross_entropy, ops.cross_entropy, 1, 2
    ),
)  # fmt: skip

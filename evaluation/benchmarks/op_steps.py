"""Times of a step of AdamW over 200 tensors, and of a last layer with its loss; for evaluation/benchmarks/ops.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from op_timing import DEVICE, alone_ms, host_us, median_ms
from torch import Tensor
from torch.nn import functional as F

from diagnose.kernels import ops

NUM_TENSORS = 200


@dataclass(frozen=True)
class Step:
    """A step of AdamW over ``NUM_TENSORS`` tensors of ``size`` elements."""

    size: int
    way: str
    clipping: bool
    alone_ms: float  # from the call until the GPU is done
    device_ms: float
    host_us: float


def adamw_steps(repeats: int) -> Iterator[Step]:
    """Yield a step's times for each implementation, with gradients clipped and without."""
    for size in (1_000, 10_000, 1_000_000) if DEVICE == "cuda" else (1_000, 10_000):
        parameters = [torch.zeros(size, device=DEVICE, requires_grad=True) for _ in range(NUM_TENSORS)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        made: dict[str, torch.optim.Optimizer] = {
            "foreach": torch.optim.AdamW(parameters, foreach=True),
            "fused": torch.optim.AdamW(parameters, fused=True),
            "ours": ops.FusedAdamW(parameters),
        }
        for way, optimizer in made.items():
            for clipping in (False, True):
                step = clipped(optimizer, parameters) if clipping else optimizer.step
                alone, device = alone_ms(step, repeats), median_ms(step, repeats)
                yield Step(size, way, clipping, alone, device, host_us(step) if size == 1_000 else math.nan)


def clipped(optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> Callable[[], object]:
    """Return a step with the gradients' norm clipped: by torch's function, or by a factor that ours takes along."""
    if isinstance(optimizer, ops.FusedAdamW):
        return lambda: optimizer.step(max_norm=1.0)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


@dataclass(frozen=True)
class Loss:
    """The last layer and its loss, forward and backward."""

    way: str
    rows: int
    features: int
    classes: int
    both_ms: float
    peak_mb: float  # beside what was there before


def _gradients(function: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(function(), inputs)


def losses(repeats: int, *, with_compile: bool) -> Iterator[Loss]:
    """Yield time and memory of each way to calculate the last layer and its loss, with all gradients."""
    rows, features, classes = (8192, 2048, 32_768) if DEVICE == "cuda" else (256, 64, 1024)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    hidden = torch.randn(rows, features, dtype=dtype, device=DEVICE, requires_grad=True)
    weight = (0.02 * torch.randn(classes, features, dtype=dtype, device=DEVICE)).requires_grad_()
    target = torch.randint(classes, (rows,), device=DEVICE)

    def torchs() -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight), target)

    torch._dynamo.reset()
    found: dict[str, Callable[[], Tensor]] = {
        "F.linear, F.cross_entropy": torchs,
        "F.linear, cross_entropy": lambda: ops.cross_entropy(F.linear(hidden, weight), target),
        "linear_cross_entropy": lambda: ops.linear_cross_entropy(hidden, weight, target),
    }
    if with_compile:
        found["torch.compile"] = torch.compile(torchs, fullgraph=True, dynamic=False)
    for way, function in found.items():
        call = partial(_gradients, function, (hidden, weight))
        yield Loss(way, rows, features, classes, median_ms(call, repeats), _peak_mb(call))


def _peak_mb(call: Callable[[], object]) -> float:
    if DEVICE == "cpu":
        return math.nan
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20

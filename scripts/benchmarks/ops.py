"""Times the operators of diagnose.kernels.ops against what they stand for; prints Markdown tables.

Usage: scripts/python scripts/benchmarks/ops.py [--sizes 16 20 24] [--dtype float32] [--no-compile] [--native] [--check]

Columns: the expression written out, torch's own operator where there is one, torch.compile of the expression, and each
implementation of ours; on a GPU also the bandwidth of the Triton program as a share of a device-to-device copy's.
Times are medians of forward and backward together, in milliseconds. On a CPU the Triton column stays empty: its
interpreter says nothing about speed. A second table has a step of AdamW over 200 tensors. On a GPU the bars follow: the
share of a copy's bandwidth at 256 MB, and the times against torch.compile and ``fused=True``; --check exits with
1 where one is missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from diagnose.kernels import ops

WIDTH = 1024  # columns of a row; a cross entropy has eight times as many classes
HEAD = 128  # features of a head
NUM_TENSORS = 200
LARGE_BYTES, BANDWIDTH_BAR, COMPILE_BAR, FUSED_BAR = 256 << 20, 0.85, 1.0, 1.0
Function = Callable[..., Any]


@dataclass(frozen=True)
class Subject:
    """An operator: its arguments for a number of elements, ways to calculate it, passes over memory both ways."""

    name: str
    make: Callable[[int, torch.dtype, str], list[Tensor]]
    written: Function
    builtin: Function | None
    ours: Function
    passes: int
    native: bool = False


def tensors(num: int) -> Callable[[int, torch.dtype, str], list[Tensor]]:
    def make(size: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        shape = (max(size // WIDTH, 1), min(size, WIDTH))
        return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(num)]

    return make


def with_weight(num: int) -> Callable[[int, torch.dtype, str], list[Tensor]]:
    def make(size: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        made = tensors(num)(size, dtype, device)
        return [*made, torch.ones(made[0].shape[-1], dtype=dtype, device=device, requires_grad=True)]

    return make


def with_angles(size: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    x = torch.randn(8, max(size // (8 * HEAD), 1), HEAD, dtype=dtype, device=device, requires_grad=True)
    return [x, *ops.angles(x.shape[1], HEAD, device=device)]


def with_target(size: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    classes = 8 * WIDTH
    rows = max(size // classes, 1)
    logits = torch.randn(rows, classes, dtype=dtype, device=device, requires_grad=True)
    return [logits, torch.randint(classes, (rows,), device=device)]


def written_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def written_softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def written_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    wide = h.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight, h


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
        lambda x: ops.gelu(x, "tanh"), 5, native=True,
    ),
    Subject(
        "bias_gelu", with_weight(1), lambda x, bias: F.gelu(x + bias), None, ops.bias_gelu, 5
    ),
    Subject("softmax", tensors(1), written_softmax, lambda x: F.softmax(x, -1), ops.softmax, 5),
    Subject("rms_norm", with_weight(1), written_rms_norm, None, ops.rms_norm, 5),
    Subject("add_rms_norm", with_weight(2), written_add_rms_norm, None, ops.add_rms_norm, 8),
    Subject(
        "layer_norm", with_weight(1), written_layer_norm, lambda x, w: F.layer_norm(x, w.shape, w), ops.layer_norm, 5
    ),
    Subject("swiglu", tensors(2), lambda g, u: F.silu(g) * u, None, ops.swiglu, 8),
    Subject("rotary", with_angles, written_rotary, None, ops.rotary, 4),
    Subject("cross_entropy", with_target, F.cross_entropy, F.cross_entropy, ops.cross_entropy, 3),
)  # fmt: skip


def median_ms(call: Callable[[], object], repeats: int, device: str) -> float:
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        if device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            begin = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def both_directions(function: Function, arguments: list[Tensor]) -> Callable[[], object]:
    inputs = [a for a in arguments if a.requires_grad]
    with torch.no_grad():
        sample = function(*arguments)
    grads = [torch.ones_like(part) for part in (sample if isinstance(sample, tuple) else (sample,))]
    return lambda: torch.autograd.grad(function(*arguments), inputs, grads)


@dataclass(frozen=True)
class Times:
    """Milliseconds of one operator at one size; None where there is nothing to time."""

    written: float
    builtin: float | None
    compiled: float | None
    eager: float | None
    native: float | None
    triton: float | None
    bandwidth: float | None  # as a share of a copy's


def times(subject: Subject, size: int, options: argparse.Namespace, copy_ms: float) -> Times:
    device, dtype = options.device, getattr(torch, options.dtype)
    arguments = subject.make(size, dtype, device)

    def timed(function: Function | None, implementation: str = "auto") -> float | None:
        if function is None:
            return None
        with ops.using(implementation) if implementation != "auto" else nullcontext():  # type: ignore[arg-type]
            return median_ms(both_directions(function, arguments), options.repeats, device)

    torch._dynamo.reset()
    compiled = None if options.no_compile else torch.compile(subject.written, fullgraph=True)
    triton = timed(subject.ours, "triton") if device == "cuda" else None
    return Times(
        written=timed(subject.written) or 0.0,
        builtin=timed(subject.builtin),
        compiled=timed(compiled),
        eager=timed(subject.ours, "eager"),
        native=timed(subject.ours if subject.native and options.native else None, "native"),
        triton=triton,
        bandwidth=copy_ms / 2 * subject.passes / triton if triton else None,
    )


def row(subject: Subject, size: int, taken: Times) -> str:
    cells = (taken.written, taken.builtin, taken.compiled, taken.eager, taken.native, taken.triton)
    shown = ["–" if c is None else f"{c:.3f}" for c in cells]
    share = "–" if taken.bandwidth is None else f"{taken.bandwidth:.0%}"
    return "| " + " | ".join([subject.name, f"2^{int(math.log2(size))}", *shown, share]) + " |"


def copy_time(size: int, options: argparse.Namespace) -> float:
    """Return the milliseconds of copying so many elements: a read and a write of each."""
    source = torch.empty(size, dtype=getattr(torch, options.dtype), device=options.device)
    target = torch.empty_like(source)
    return median_ms(lambda: target.copy_(source), options.repeats, options.device)


def adamw(options: argparse.Namespace) -> list[float]:
    """Print the times of a step of AdamW over 200 tensors; return ``fused=True``'s over ours for each size."""
    print(f"\n| AdamW, {NUM_TENSORS} tensors of | for-loop | foreach | fused | ours |\n|---|---|---|---|---|")
    ratios = []
    for size in (1_000, 10_000, 1_000_000) if options.device == "cuda" else (1_000, 10_000):
        parameters = [torch.zeros(size, device=options.device, requires_grad=True) for _ in range(NUM_TENSORS)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        made = [torch.optim.AdamW(parameters, **forms) for forms in ({"foreach": False}, {"foreach": True})]
        made += [torch.optim.AdamW(parameters, fused=True), ops.FusedAdamW(parameters)]
        taken = [median_ms(optimizer.step, options.repeats, options.device) for optimizer in made]
        print(f"| {size} | " + " | ".join(f"{value:.3f}" for value in taken) + " |", flush=True)
        ratios.append(taken[2] / taken[3])
    return ratios


def bars(found: dict[tuple[str, int], Times], fused: list[float], options: argparse.Namespace) -> bool:
    """Print what was promised on a GPU and what was measured; return whether all of it holds."""
    if options.device != "cuda":
        print("\nBandwidth, and times against torch.compile and fused=True: not yet measured on a GPU.")
        return True
    large = LARGE_BYTES // getattr(torch, options.dtype).itemsize
    lines = []
    for subject in SUBJECTS:
        share = next((t.bandwidth for (name, size), t in found.items() if (name, size) == (subject.name, large)), None)
        lines.append((f"{subject.name}: share of a copy's bandwidth at 256 MB", share, BANDWIDTH_BAR))
        against = [
            t.compiled / t.triton for (n, _), t in found.items() if n == subject.name and t.compiled and t.triton
        ]
        lines.append(
            (f"{subject.name}: torch.compile / ours, median", statistics.median(against or [0.0]), COMPILE_BAR)
        )
    lines.append(("AdamW: fused=True / ours, median", statistics.median(fused), FUSED_BAR))
    print("\n| bar | measured | at least | held |\n|---|---|---|---|")
    for what, value, least in lines:
        held = "not measured" if not value else "yes" if value >= least else "**no**"
        print(f"| {what} | {'–' if not value else f'{value:.2f}'} | {least} | {held} |")
    return all(not value or value >= least for _, value, least in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", help="powers of two of elements")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument(
        "--no-compile", action="store_true", help="leave torch.compile out, which takes most of the time"
    )
    parser.add_argument("--native", action="store_true", help="build the C++ and CUDA library, and time it too")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar for GPUs is missed")
    options = parser.parse_args()
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    large = int(math.log2(LARGE_BYTES // getattr(torch, options.dtype).itemsize))
    sizes = options.sizes or (sorted({16, 20, 24, large, 28}) if options.device == "cuda" else [16, 20, 24])
    heads = ["written out", "torch", "torch.compile", "ours, eager", "ours, native", "ours, Triton"]
    print(f"{options.device}, {options.dtype}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| " + " | ".join(["operator", "elements", *heads, "of a copy's bandwidth"]) + " |")
    print("|" + "---|" * (len(heads) + 3))
    found = {}
    for size in (2**power for power in sizes):
        copy_ms = copy_time(size, options)
        for subject in SUBJECTS:
            found[subject.name, size] = times(subject, size, options, copy_ms)
            print(row(subject, size, found[subject.name, size]), flush=True)
    held = bars(found, adamw(options), options)
    return int(options.check and not held)


if __name__ == "__main__":
    sys.exit(main())

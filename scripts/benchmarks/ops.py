"""Times the operators of diagnose.kernels.ops against what they stand for; prints Markdown tables.

Usage: scripts/python scripts/benchmarks/ops.py [--sizes 16 20 24] [--dtypes float32] [--only gelu] [--no-compile]
       [--native] [--check] [--json FILE] [--sweep] [--seconds 200]

Compared are the expression written out, torch's own operator where there is one, torch.compile of the expression, and
each implementation of ours. On a GPU the times are the device's: the queue is filled before its first task may
start, so that no host time is in them; forward alone, and backward as the difference to both together. All columns
are measured alike, and each has its share of a copy's bandwidth: the bytes that the operator has to read and write
at least (each input and each result once, in each direction), divided by its time and by what a copy of as many
elements reaches. What a call costs on the host has its own column: forward and backward of a tiny tensor, by the wall
clock. On a CPU times are by the wall clock, and the Triton column stays empty: its interpreter says nothing about
speed. Further tables have a step of AdamW over 200 tensors, with and without clipping, and the memory and time of
the last layer with its loss. On a GPU the bars follow; --check exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from diagnose.kernels import ops

WIDTH = 1024  # columns of a row
BATCH, HEADS, HEAD = 4, 32, 128  # of a rotary embedding
NUM_TENSORS = 200
LARGE_BYTES, COMPILE_BAR, FUSED_BAR = 256 << 20, 1.0, 1.0
HOST_SIZE, HOST_CALLS = 2**12, 50
SLEEP_CYCLES_PER_CALL = 4_000_000  # about 2 ms: longer than any host takes to queue one call
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


def median_ms(call: Callable[[], object], repeats: int, device: str) -> float:
    """Return the median of the device's times of a call; on a CPU by the wall clock."""
    for _ in range(3):
        call()
    if device == "cpu":
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES_PER_CALL * repeats)  # what follows is queued behind it
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(itertools.starmap(torch.cuda.Event.elapsed_time, itertools.pairwise(events)))


def host_us(call: Callable[[], object]) -> float:
    """Return the least of some means of what a call takes on the host, by the wall clock."""
    means = []
    for _ in range(4):
        begin = time.perf_counter()
        for _ in range(HOST_CALLS):
            call()
        means.append(1e6 * (time.perf_counter() - begin) / HOST_CALLS)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return min(means)


def both_directions(function: Function, arguments: list[Tensor]) -> Callable[[], object]:
    inputs = [a for a in arguments if a.requires_grad]
    with torch.no_grad():
        sample = function(*arguments)
    grads = [torch.ones_like(part) for part in (sample if isinstance(sample, tuple) else (sample,))]
    return lambda: torch.autograd.grad(function(*arguments), inputs, grads)


@dataclass(frozen=True)
class Row:
    """One way to calculate an operator, at one size: milliseconds, and shares of a copy's bandwidth."""

    name: str
    dtype: str
    size: int
    way: str  # "written out", "torch", "torch.compile", "ours, …"
    forward_ms: float
    both_ms: float
    share: float
    forward_share: float
    backward_share: float
    host_us: float | None
    variant: Mapping[str, int] | None = None


def measured(
    subject: Subject, way: str, function: Function, size: int, dtype: torch.dtype, options: argparse.Namespace,
    copy_ms: float, *, with_host: bool = True,
) -> Row:  # fmt: skip
    arguments = subject.make(size, dtype, options.device)
    forward = median_ms(lambda: function(*arguments), options.repeats, options.device)
    both = median_ms(both_directions(function, arguments), options.repeats, options.device)
    one = copy_ms / 2  # of one read or write
    return Row(
        subject.name, str(dtype).removeprefix("torch."), size, way, forward, both,
        one * (subject.forward + subject.backward) / both, one * subject.forward / forward,
        one * subject.backward / max(both - forward, 1e-9),
        host_us(both_directions(function, subject.make(HOST_SIZE, dtype, options.device))) if with_host else None,
    )  # fmt: skip


def ways(subject: Subject, options: argparse.Namespace) -> Iterator[tuple[str, Function, str]]:
    """Yield each way to calculate a subject: its name, the function, and which implementation of ours to force."""
    yield "written out", subject.written, "auto"
    if subject.builtin is not None:
        yield "torch", subject.builtin, "auto"
    if not options.no_compile:
        torch._dynamo.reset()
        yield "torch.compile", torch.compile(subject.written, fullgraph=True, dynamic=False), "auto"
    if options.device == "cpu":
        yield "ours, eager", subject.ours, "eager"
    else:
        yield "ours, Triton", subject.ours, "triton"
    if subject.native and options.native:
        yield "ours, native", subject.ours, "native"


def forced(implementation: str) -> Any:  # a context
    return nullcontext() if implementation == "auto" else ops.using(implementation)  # type: ignore[arg-type]


def shown(row: Row) -> str:
    parts = [f"{row.forward_ms:.3f}", f"{row.both_ms - row.forward_ms:.3f}", f"{row.both_ms:.3f}"]
    shares = [f"{share:.0%}" for share in (row.forward_share, row.backward_share, row.share)]
    host = "–" if row.host_us is None else f"{row.host_us:.0f}"
    cells = [row.name, row.dtype, f"2^{int(math.log2(row.size))}", row.way, *parts, *shares, host]
    if row.variant is not None:
        cells.append(" ".join(f"{name}={value}" for name, value in row.variant.items()))
    return "| " + " | ".join(cells) + " |"


HEADS_OF_TABLE = (
    "operator", "dtype", "elements", "way", "forward, ms", "backward, ms", "both, ms", "of a copy's bandwidth, forward",
    "backward", "both", "host, µs",
)  # fmt: skip


def head() -> str:
    return "| " + " | ".join(HEADS_OF_TABLE) + " |\n|" + "---|" * len(HEADS_OF_TABLE)


def copy_time(size: int, dtype: torch.dtype, options: argparse.Namespace) -> float:
    """Return the milliseconds of copying so many elements: a read and a write of each."""
    source = torch.empty(size, dtype=dtype, device=options.device)
    target = torch.empty_like(source)
    return median_ms(lambda: target.copy_(source), options.repeats, options.device)


# What may be tuned: for each operator, the constants of its programs and values to try; those of one line together.
SWEEPS: dict[str, tuple[dict[str, tuple[int, ...]], ...]] = {
    "rms_norm": (
        {"norms.BACKWARD_ELEMENTS": (4, 8, 16), "norms.PROGRAMS_PER_SM": (4, 8, 16), "norms.BACKWARD_STAGES": (1, 3)},
        {"norms.FORWARD_ELEMENTS": (4, 8, 32)},
    ),
    "cross_entropy, 8k": (
        {"cross_entropy.MAX_HELD": (2048, 8192), "cross_entropy.FORWARD_ELEMENTS": (8, 16, 32)},
        {"cross_entropy.BACKWARD_HELD": (1024, 2048), "cross_entropy.BACKWARD_ELEMENTS": (8, 16)},
    ),
    "bias_gelu": (
        {"pairs.BIAS_TILE": (1024, 2048, 4096), "pairs.BIAS_COLUMNS": (128, 512),
         "pairs.BIAS_PROGRAMS_PER_SM": (8, 16)},
        {"pairs.TILE": (512, 2048, 4096)},
    ),
    "rotary": ({"rotary.TILE": (512, 2048), "rotary.PROGRAMS_PER_SM": (8, 32, 10_000)},),
    "softmax": ({"softmax.FORWARD_ELEMENTS": (4, 8, 32), "softmax.BACKWARD_ELEMENTS": (4, 8, 32)},),
    "swiglu": ({"pairs.TILE": (512, 2048, 4096)},),
    "gelu (tanh)": ({"gelu.ELEMENTS": (512, 2048, 4096), "layout.ELEMENTS": (512, 2048, 4096)},),
    "layer_norm": ({"norms.BACKWARD_ELEMENTS": (4, 8), "norms.PROGRAMS_PER_SM": (8, 16)},),
    "cross_entropy, 128k": (
        {"cross_entropy.MAX_HELD": (2048, 8192, 16384), "cross_entropy.FORWARD_ELEMENTS": (8, 32)},
    ),
}  # fmt: skip


@contextmanager
def tuned(variant: Mapping[str, int]) -> Iterator[None]:
    """Give constants of the Triton launchers other values within the block."""
    before = []
    for name, value in variant.items():
        module_name, constant = name.split(".")
        module = importlib.import_module(f"diagnose.kernels.ops.triton_kernels.{module_name}")
        before.append((module, constant, getattr(module, constant)))
        setattr(module, constant, value)
    try:
        yield
    finally:
        for module, constant, value in before:
            setattr(module, constant, value)


def variants(name: str) -> Iterator[dict[str, int]]:
    for constants in SWEEPS.get(name, ()):
        columns = list(constants.values())
        same = name in ("gelu (tanh)", "softmax")  # two names of one constant; forward and backward apart
        for values in zip(*columns, strict=True) if same else itertools.product(*columns):
            yield dict(zip(constants, values, strict=True))


def sweep(options: argparse.Namespace, found: list[Row], until: float) -> None:
    """Time ours with other constants, both dtypes, until the time is over."""
    size = 2 ** options.sizes[-1]
    for dtype in (torch.float32, torch.bfloat16):
        copy_ms = copy_time(size, dtype, options)
        for subject in sorted(SUBJECTS, key=lambda subject: [*SWEEPS, subject.name].index(subject.name)):
            for variant in variants(subject.name) if wanted(subject, options) else ():
                if time.monotonic() > until:
                    print(f"\nThe sweep stopped at {subject.name}, {dtype}: its time was over.")
                    return
                try:
                    with tuned(variant), ops.using("triton"):
                        row = measured(
                            subject, "ours, tuned", subject.ours, size, dtype, options, copy_ms, with_host=False
                        )
                except Exception as error:  # a variant that does not compile is no reason to lose the others
                    print(f"{subject.name} {variant}: {type(error).__name__}: {error}"[:300], flush=True)
                    continue
                found.append(Row(**{**asdict(row), "variant": variant}))
                print(shown(found[-1]), flush=True)


@dataclass(frozen=True)
class Step:
    """A step of AdamW over ``NUM_TENSORS`` tensors of ``size`` elements."""

    size: int
    way: str
    clipping: bool
    alone_ms: float  # from the call until the GPU is done
    device_ms: float
    host_us: float


def adamw_steps(options: argparse.Namespace) -> Iterator[Step]:
    """Yield a step's times for each implementation, with gradients clipped and without."""
    for size in (1_000, 10_000, 1_000_000) if options.device == "cuda" else (1_000, 10_000):
        parameters = [torch.zeros(size, device=options.device, requires_grad=True) for _ in range(NUM_TENSORS)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        made: dict[str, torch.optim.Optimizer] = {
            "for-loop": torch.optim.AdamW(parameters, foreach=False),
            "foreach": torch.optim.AdamW(parameters, foreach=True),
            "fused": torch.optim.AdamW(parameters, fused=True),
            "ours": ops.FusedAdamW(parameters),
        }
        for way, optimizer in made.items():
            for clipping in (False, True):
                step = clipped(optimizer, parameters) if clipping else optimizer.step
                yield Step(
                    size, way, clipping, alone_ms(step, options), median_ms(step, options.repeats, options.device),
                    host_us(step) if size == 1_000 else math.nan,
                )  # fmt: skip


def clipped(optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> Callable[[], object]:
    if isinstance(optimizer, ops.FusedAdamW):
        return lambda: optimizer.step(grad_scale=ops.clip_factor(parameters, 1.0))

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def alone_ms(call: Callable[[], object], options: argparse.Namespace) -> float:
    """Return the median time from a call to the end of its work on an idle device."""
    times = []
    for _ in range(options.repeats):
        begin = time.perf_counter()
        call()
        if options.device == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


@dataclass(frozen=True)
class Loss:
    """The last layer and its loss, forward and backward."""

    way: str
    rows: int
    features: int
    classes: int
    both_ms: float
    peak_mb: float  # beside what was there before


def losses(options: argparse.Namespace) -> Iterator[Loss]:
    rows, features, classes = (8192, 2048, 32_768) if options.device == "cuda" else (256, 64, 1024)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    hidden = torch.randn(rows, features, dtype=dtype, device=options.device, requires_grad=True)
    weight = (0.02 * torch.randn(classes, features, dtype=dtype, device=options.device)).requires_grad_()
    target = torch.randint(classes, (rows,), device=options.device)

    def torchs() -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight), target)

    torch._dynamo.reset()
    found: dict[str, Callable[[], Tensor]] = {
        "F.linear, F.cross_entropy": torchs,
        "linear_cross_entropy": lambda: ops.linear_cross_entropy(hidden, weight, target),
        "F.linear, cross_entropy": lambda: ops.cross_entropy(F.linear(hidden, weight), target),
    }
    if not options.no_compile:
        found["torch.compile"] = torch.compile(torchs, fullgraph=True, dynamic=False)
    for way, function in found.items():
        call = lambda function=function: torch.autograd.grad(function(), (hidden, weight))  # noqa: E731
        taken, peak = median_ms(call, options.repeats, options.device), math.nan
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        yield Loss(way, rows, features, classes, taken, peak)


def bars(found: list[Row], steps: list[Step], options: argparse.Namespace) -> bool:
    """Print what was promised on a GPU and what was measured; return whether all of it holds."""
    if options.device != "cuda":
        print("\nBars are for GPUs.")
        return True
    lines = []
    plain = [row for row in found if row.variant is None]
    for name, dtype, size in dict.fromkeys((row.name, row.dtype, row.size) for row in plain):
        of = {row.way: row.both_ms for row in plain if (row.name, row.dtype, row.size) == (name, dtype, size)}
        if "ours, Triton" not in of or size * getattr(torch, dtype).itemsize < LARGE_BYTES // 2:
            continue
        for other in ("torch", "torch.compile"):
            if other in of:
                lines.append((f"{name}, {dtype}: {other} / ours", of[other] / of["ours, Triton"], COMPILE_BAR))
    for size, clipping in dict.fromkeys((step.size, step.clipping) for step in steps):
        by = {step.way: step.alone_ms for step in steps if (step.size, step.clipping) == (size, clipping)}
        what = f"AdamW{' with clipping' if clipping else ''}, {NUM_TENSORS} × {size}: fused=True / ours"
        lines.append((what, by["fused"] / by["ours"], FUSED_BAR))
    print("\n| bar | measured | at least | held |\n|---|---|---|---|")
    for what, value, least in lines:
        print(f"| {what} | {value:.2f} | {least} | {'yes' if value >= least else '**no**'} |")
    return all(value >= least for _, value, least in lines)


def wanted(subject: Subject, options: argparse.Namespace) -> bool:
    return not options.only or any(part in subject.name for part in options.only)


def compare(options: argparse.Namespace, found: list[Row]) -> None:
    """Time every way of every subject."""
    print(head())
    for size, dtype_name in itertools.product((2**power for power in options.sizes), options.dtypes):
        dtype = getattr(torch, dtype_name)
        copy_ms = copy_time(size, dtype, options)
        print(f"| copy | {dtype_name} | 2^{int(math.log2(size))} | | {copy_ms:.3f} |" + " |" * 6)
        for subject in SUBJECTS:
            for way, function, implementation in ways(subject, options) if wanted(subject, options) else ():
                with forced(implementation):
                    with_host = (size, dtype_name) == (2 ** options.sizes[0], options.dtypes[0])
                    row = measured(subject, way, function, size, dtype, options, copy_ms, with_host=with_host)
                    found.append(row)
                print(shown(found[-1]), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", help="powers of two of elements")
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--only", nargs="+", help="parts of the names of operators")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--no-compile", action="store_true", help="leave torch.compile out, which takes most of the time"
    )
    parser.add_argument("--native", action="store_true", help="build the C++ and CUDA library, and time it too")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar for GPUs is missed")
    parser.add_argument("--json", type=Path, help="write all figures to a file too, as they come")
    parser.add_argument("--sweep", action="store_true", help="time the Triton programs with other constants too")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop the sweep after this time")
    options = parser.parse_args()
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.sizes = options.sizes or ([26] if options.device == "cuda" else [16, 20])
    options.dtypes = options.dtypes or (["float32", "bfloat16"] if options.device == "cuda" else ["float32"])
    return options


def write(options: argparse.Namespace, **found: list[Any]) -> None:
    if options.json is not None:
        kept = {name: [asdict(one) for one in rows] for name, rows in found.items()}
        options.json.write_text(json.dumps({"torch": torch.__version__, **kept}, indent=1), encoding="utf-8")


def main() -> int:
    begin = time.monotonic()
    options = arguments()
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{device}, torch {torch.__version__}\n")
    rows: list[Row] = []
    steps: list[Step] = []
    ends: list[Loss] = []
    compare(options, rows)
    write(options, rows=rows)
    print(f"\n| AdamW, {NUM_TENSORS} tensors of | way | clipping | alone, ms | device, ms | host, µs |\n|" + "---|" * 6)
    for step in adamw_steps(options):
        steps.append(step)
        cells = [f"{step.alone_ms:.3f}", f"{step.device_ms:.3f}", f"{step.host_us:.0f}"]
        print(
            "| " + " | ".join([str(step.size), step.way, "yes" if step.clipping else "no", *cells]) + " |", flush=True
        )
    print("\n| last layer and loss | rows × features × classes | both, ms | peak, MB |\n|---|---|---|---|")
    for loss in losses(options):
        ends.append(loss)
        sizes = f"{loss.rows} × {loss.features} × {loss.classes}"
        print(f"| {loss.way} | {sizes} | {loss.both_ms:.3f} | {loss.peak_mb:.0f} |", flush=True)
    held = bars(rows, steps, options)
    write(options, rows=rows, steps=steps, losses=ends)
    if options.sweep:
        sweep(options, rows, begin + options.seconds)
        write(options, rows=rows, steps=steps, losses=ends)
    print(f"\n{time.monotonic() - begin:.0f} s")
    return int(options.check and not held)


if __name__ == "__main__":
    sys.exit(main())

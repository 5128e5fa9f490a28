"""Times the operators of diagnose.kernels.ops against what they stand for; prints Markdown tables.

Usage: scripts/python evaluation/benchmarks/ops.py [--sizes 16 20 24] [--dtypes float32] [--only gelu] [--no-compile]
       [--native] [--check] [--json FILE] [--sweep SECONDS]

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
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from op_steps import NUM_TENSORS, Loss, Step, adamw_steps, losses
from op_subjects import SUBJECTS, Function, Subject
from op_sweep import tuned, variants
from op_timing import DEVICE, both_directions, copy_ms, host_us, median_ms

from diagnose.kernels import ops

LARGE_BYTES = 256 << 20
BANDWIDTH_BAR, COMPILE_BAR, TORCH_BAR, FUSED_BAR = 0.85, 0.97, 1.0, 1.0
HOST_SIZE = 2**12


@dataclass(frozen=True)
class Row:
    """One way to calculate an operator, at one size: milliseconds, and shares of a copy's bandwidth."""

    name: str
    dtype: str
    size: int
    way: str  # "written out", "torch", "torch.compile", "ours, …"
    forward_ms: float
    both_ms: float
    forward_share: float
    backward_share: float
    share: float
    host_us: float | None = None
    variant: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Condition:
    """A number of elements and a dtype, and what copying them takes."""

    size: int
    dtype: torch.dtype
    copy_ms: float
    repeats: int

    def row(self, subject: Subject, way: str, function: Function) -> Row:
        """Time one way to calculate the subject."""
        arguments = subject.make(self.size, self.dtype, DEVICE)
        forward = median_ms(lambda: function(*arguments), self.repeats)
        both = median_ms(both_directions(function, arguments), self.repeats)
        one = self.copy_ms / 2  # of one read or write
        return Row(
            subject.name, str(self.dtype).removeprefix("torch."), self.size, way, forward, both,
            one * subject.forward / forward, one * subject.backward / max(both - forward, 1e-9),
            one * (subject.forward + subject.backward) / both,
        )  # fmt: skip


def conditions(options: argparse.Namespace) -> Iterator[Condition]:
    for power, name in itertools.product(options.sizes, options.dtypes):
        dtype = getattr(torch, name)
        yield Condition(2**power, dtype, copy_ms(2**power, dtype, options.repeats), options.repeats)


def ways(subject: Subject, options: argparse.Namespace) -> Iterator[tuple[str, Function, str]]:
    """Yield each way to calculate a subject: its name, the function, and which implementation of ours to force."""
    yield "written out", subject.written, "auto"
    if subject.builtin is not None:
        yield "torch", subject.builtin, "auto"
    if not options.no_compile:
        torch._dynamo.reset()
        yield "torch.compile", torch.compile(subject.written, fullgraph=True, dynamic=False), "auto"
    if DEVICE == "cpu":
        yield "ours, eager", subject.ours, "eager"
    else:
        yield "ours, Triton", subject.ours, "triton"
    if subject.native and options.native:
        yield "ours, native", subject.ours, "native"


def compare(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the times of every way of every subject; the host's for the first size and dtype."""
    for number, condition in enumerate(conditions(options)):
        for subject in wanted(options):
            for way, function, implementation in ways(subject, options):
                with ops.using(implementation) if implementation != "auto" else nullcontext():  # type: ignore[arg-type]
                    row = condition.row(subject, way, function)
                    if number == 0:
                        small = subject.make(HOST_SIZE, condition.dtype, DEVICE)
                        row = Row(**{**asdict(row), "host_us": host_us(both_directions(function, small))})
                yield row


def sweep(options: argparse.Namespace, until: float) -> Iterator[Row]:
    """Yield the times of ours with other constants, until the time is over."""
    for condition in conditions(options):
        for subject in wanted(options):
            for variant in variants(subject.name):
                if time.monotonic() > until:
                    print(f"The sweep stopped at {subject.name}: its time was over.")
                    return
                with tuned(variant), ops.using("triton"):
                    row = condition.row(subject, "ours, tuned", subject.ours)
                yield Row(**{**asdict(row), "variant": variant})


def wanted(options: argparse.Namespace) -> list[Subject]:
    return [one for one in SUBJECTS if not options.only or any(part in one.name for part in options.only)]


HEADS = (
    "operator", "dtype", "elements", "way", "forward, ms", "backward, ms", "both, ms", "of a copy's bandwidth, forward",
    "backward", "both", "host, µs",
)  # fmt: skip


def shown(row: Row) -> str:
    parts = [f"{row.forward_ms:.3f}", f"{row.both_ms - row.forward_ms:.3f}", f"{row.both_ms:.3f}"]
    shares = [f"{share:.0%}" for share in (row.forward_share, row.backward_share, row.share)]
    host = "–" if row.host_us is None else f"{row.host_us:.0f}"
    cells = [row.name, row.dtype, f"2^{int(math.log2(row.size))}", row.way, *parts, *shares, host]
    if row.variant is not None:
        cells.append(" ".join(f"{name}={value}" for name, value in row.variant.items()))
    return line(cells)


def line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def head(*cells: str) -> str:
    return f"\n{line(cells)}\n|" + "---|" * len(cells)


def print_steps(options: argparse.Namespace) -> list[Step]:
    print(head(f"AdamW, {NUM_TENSORS} tensors of", "way", "clipping", "alone, ms", "device, ms", "host, µs"))
    found = []
    for step in adamw_steps(options.repeats):
        host = "–" if math.isnan(step.host_us) else f"{step.host_us:.0f}"
        cells = [str(step.size), step.way, "yes" if step.clipping else "no", f"{step.alone_ms:.3f}"]
        print(line([*cells, f"{step.device_ms:.3f}", host]), flush=True)
        found.append(step)
    return found


def print_losses(options: argparse.Namespace) -> list[Loss]:
    print(head("last layer and loss", "rows × features × classes", "both, ms", "peak, MB"))
    found = []
    for loss in losses(options.repeats, with_compile=not options.no_compile):
        sizes = f"{loss.rows} × {loss.features} × {loss.classes}"
        print(line([loss.way, sizes, f"{loss.both_ms:.3f}", f"{loss.peak_mb:.0f}"]), flush=True)
        found.append(loss)
    return found


def bars(rows: list[Row], steps: list[Step]) -> Iterator[tuple[str, float, float]]:
    """Yield what was promised on a GPU, what was measured, and the least that is promised."""
    large = [row for row in rows if row.size * getattr(torch, row.dtype).itemsize >= LARGE_BYTES // 2]
    for ours in (row for row in large if row.way == "ours, Triton"):
        name = f"{ours.name}, {ours.dtype}"
        yield f"{name}: share of a copy's bandwidth", ours.share, BANDWIDTH_BAR
        for other, least in (("torch", TORCH_BAR), ("torch.compile", COMPILE_BAR)):
            for row in large:
                if (row.name, row.dtype, row.size, row.way) == (ours.name, ours.dtype, ours.size, other):
                    yield f"{name}: {other} / ours", row.both_ms / ours.both_ms, least
    for mine in (step for step in steps if step.way == "ours"):
        fused = next(s for s in steps if (s.size, s.clipping, s.way) == (mine.size, mine.clipping, "fused"))
        clipping = " with clipping" if mine.clipping else ""
        what = f"AdamW{clipping}, {NUM_TENSORS} × {mine.size}: fused=True / ours"
        yield what, fused.alone_ms / mine.alone_ms, FUSED_BAR


def print_bars(found: list[tuple[str, float, float]]) -> bool:
    """Print each bar; return whether all are held."""
    print(head("bar", "measured", "at least", "held"))
    for what, value, least in found:
        print(line([what, f"{value:.2f}", str(least), "yes" if round(value, 2) >= least else "**no**"]))
    return all(round(value, 2) >= least for _, value, least in found)


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
    parser.add_argument("--json", type=Path, help="write all figures to a file too")
    parser.add_argument(
        "--sweep", type=float, default=0.0, metavar="S", help="time other constants for up to S seconds"
    )
    options = parser.parse_args()
    options.sizes = options.sizes or ([26] if DEVICE == "cuda" else [16, 20])
    options.dtypes = options.dtypes or (["float32", "bfloat16"] if DEVICE == "cuda" else ["float32"])
    return options


def main() -> int:
    options = arguments()
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{device}, torch {torch.__version__}\n{head(*HEADS)}")
    rows: list[Row] = []
    for row in compare(options):
        rows.append(row)
        print(shown(row), flush=True)
    steps, ends = print_steps(options), print_losses(options)
    held = print_bars(list(bars(rows, steps))) if DEVICE == "cuda" else True
    if options.sweep:
        print(head(*HEADS, "constants"))
    for row in sweep(options, time.monotonic() + options.sweep) if options.sweep else ():
        rows.append(row)
        print(shown(row), flush=True)
    if options.json is not None:
        found = {
            name: [asdict(one) for one in kept] for name, kept in (("rows", rows), ("steps", steps), ("losses", ends))
        }
        options.json.write_text(json.dumps({"torch": torch.__version__, **found}, indent=1), encoding="utf-8")
    return int(options.check and not held)


if __name__ == "__main__":
    sys.exit(main())

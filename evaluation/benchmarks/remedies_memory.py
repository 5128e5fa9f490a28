"""What the remedies for memory and optimizers give on this machine, each against the code that it replaces.

    python evaluation/benchmarks/remedies_memory.py [--quick] [-o evaluation/pages/remedies-memory.md]

Loads run in fresh processes, one after the other, with the file in the page cache; memory is the growth of the
process's largest resident size. Times are medians of runs that take turns. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import copy
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rows import NOT_ON_A_GPU, Row, missed, one_thread, table
from torch import nn

from diagnose.kernels.checkpointing import COSTLY_OPS, checkpoint_blocks, plan_checkpoints
from diagnose.kernels.eight_bit import BACKENDS, Backend, eight_bit_adamw, state_bytes
from diagnose.kernels.memory_snapshot import memory_watch
from diagnose.kernels.optimizers import best_implementation, best_optimizer

ROUNDS = 5
FASTER_LOAD, LESS_MEMORY, FASTER_OPTIMIZER = 5.0, 0.1, 2.0

LOAD = """
import time
import torch
from torch import nn
from diagnose.kernels.fast_load import fast_load
def build():
    return nn.Sequential(*[nn.Linear({width}, {width}, bias=False) for _ in range({depth})])
def peak():  # not ru_maxrss, which begins with that of the parent
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
before, start = peak(), time.perf_counter()
{code}
took, grown = time.perf_counter() - start, peak() - before
x = torch.ones(1, {width})
start = time.perf_counter()
with torch.no_grad():
    model(x)
print(took, grown / 1024, time.perf_counter() - start)
"""

PLAIN = """
model = build()
model.load_state_dict(torch.load({path!r}, map_location="cpu"))
"""
FAST = """
model, _ = fast_load(build, {path!r})
"""


def loads(quick: bool) -> Iterator[Row]:
    """Compare an ordinary load of a file with a mapped one."""
    width, depth = (2048, 8) if quick else (4096, 8)
    size = width * width * depth * 4 / 1e6
    with tempfile.TemporaryDirectory() as folder:
        state = {f"{layer}.weight": torch.randn(width, width) for layer in range(depth)}
        files = [Path(folder) / "model.pt"]
        torch.save(state, files[0])
        if find_spec("safetensors") is not None:
            from safetensors.torch import save_file

            files.append(Path(folder) / "model.safetensors")
            save_file(state, files[-1])
        del state
        for file in files:
            plain_path = str(files[0])  # the same ordinary load beside both formats
            costs: dict[str, list[list[float]]] = {"plain": [], "fast": []}
            for _ in range(3 if quick else ROUNDS):
                for name, code, path in (("plain", PLAIN, plain_path), ("fast", FAST, str(file))):
                    text = LOAD.format(width=width, depth=depth, code=code.format(path=path))
                    costs[name].append(_child(text))
            plain, fast = ([statistics.median(column) for column in zip(*costs[n], strict=True)] for n in costs)
            yield Row(
                f"fast_load, {size:.0f} MB, {file.suffix}: time",
                f"{plain[0]:.3f} s",
                f"{fast[0]:.3f} s (first forward {fast[2]:.3f} s, was {plain[2]:.3f} s)",
                f"{plain[0] / fast[0]:.1f}×",
                plain[0] / fast[0] >= FASTER_LOAD,
            )
            yield Row(
                f"fast_load, {size:.0f} MB, {file.suffix}: peak memory",
                f"{plain[1]:.0f} MB",
                f"{fast[1]:.0f} MB",
                f"1/{plain[1] / max(fast[1], 0.1):.0f}",
                fast[1] <= LESS_MEMORY * plain[1],
            )


def _child(code: str) -> list[float]:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return [float(figure) for figure in done.stdout.split()]


def checkpoints(quick: bool) -> Iterator[Row]:
    """Compare the policies: memory held at the peak of a step, and its time."""
    torch.manual_seed(0)
    depth, rows = (4, 4) if quick else (8, 8)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
    model = nn.Sequential(*[copy.deepcopy(layer) for _ in range(depth)])
    x = torch.randn(rows, 256, 128)
    policies: list[tuple[str, dict[str, Any]]] = [
        ("all", {}),
        ("every 2nd", {"every": 2}),
        ("costly operators kept", {"save_ops": COSTLY_OPS}),
    ]
    everything = plan_checkpoints(model, lambda: model(x).sum(), target_bytes=1 << 50).bytes_before
    plan = plan_checkpoints(model, lambda: model(x).sum(), target_bytes=everything // 2)
    policies.append((f"planned for half ({len(plan.names)} layers)", {"blocks": plan.names}))
    for name, policy in policies:
        before, after = _in_turns(model, x, policy, 3 if quick else 2 * ROUNDS)
        yield Row(
            f"checkpoint_blocks, {depth} encoder layers, {name}",
            f"{before[0] / 1e6:.1f} MB, {before[1] * 1e3:.0f} ms a step",
            f"{after[0] / 1e6:.1f} MB, {after[1] * 1e3:.0f} ms",
            f"−{1 - after[0] / before[0]:.0%} bytes, {after[1] / before[1] - 1:+.0%} time",
        )


def _in_turns(
    model: nn.Module, x: torch.Tensor, policy: dict[str, Any], rounds: int
) -> tuple[tuple[int, float], tuple[int, float]]:
    """Return bytes at the peak of a step, gradients included, and its median time, without and with the policy."""

    def step() -> float:
        model.zero_grad()
        start = time.perf_counter()
        model(x).square().mean().backward()
        return time.perf_counter() - start

    def peak() -> int:
        model.zero_grad()
        with memory_watch() as watch:
            model(x).square().mean().backward()
        return watch.peak_bytes

    step()
    bytes_before, times, times_after = peak(), [], []
    for _ in range(rounds):
        times.append(step())
        with checkpoint_blocks(model, **policy):
            times_after.append(step())
    with checkpoint_blocks(model, **policy):
        bytes_after = peak()
    return (bytes_before, statistics.median(times)), (bytes_after, statistics.median(times_after))


def optimizers(quick: bool) -> Iterator[Row]:
    """Compare the for-loop with the chosen implementation on 200 tensors, and the bytes of 8-bit states."""
    for size in (1_000, 10_000):
        parameters = [nn.Parameter(torch.randn(size)) for _ in range(200)]
        for parameter in parameters:
            parameter.grad = torch.randn(size)
        loop = torch.optim.AdamW(parameters, foreach=False, fused=False)
        best = best_optimizer(torch.optim.AdamW, parameters)
        chosen = best_implementation(torch.optim.AdamW, parameters)
        times: dict[str, list[float]] = {"loop": [], "best": []}
        for _ in range(30 if quick else 100):
            for name, optimizer in (("loop", loop), ("best", best)):
                start = time.perf_counter()
                optimizer.step()
                times[name].append(time.perf_counter() - start)
        before, after = (statistics.median(times[name][5:]) * 1e3 for name in times)
        yield Row(
            f"best_optimizer ({chosen}), AdamW, 200 tensors of {size}",
            f"{before:.2f} ms",
            f"{after:.2f} ms",
            f"{before / after:.1f}×",
            before / after >= FASTER_OPTIMIZER,
        )
    for backend in BACKENDS:
        yield _eight_bit(backend)


def _eight_bit(backend: Backend) -> Row:
    what = f"eight_bit_adamw, {backend}, state of 4.2 M values"
    if find_spec(backend) is None:
        return Row(what, "", "not measured: the package is not installed", "")
    model = nn.Linear(2048, 2048)
    states = []
    for optimizer in (torch.optim.AdamW(model.parameters()), eight_bit_adamw(model, lr=1e-3, backend=backend)):
        model(torch.ones(2, 2048)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append(state_bytes(optimizer) / 1e6)
    return Row(what, f"{states[0]:.1f} MB", f"{states[1]:.1f} MB", f"1/{states[0] / states[1]:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller models and fewer runs")
    parser.add_argument("-o", "--output", type=Path, help="also write the table into this file")
    options = parser.parse_args()
    with one_thread():
        rows = [row for part in (loads, checkpoints, optimizers) for row in part(options.quick)]
    device = "a GPU is there, but these rows are of the CPU" if torch.cuda.is_available() else NOT_ON_A_GPU
    head = f"torch {torch.__version__}, Python {platform.python_version()}, one thread; {device}.\n\n"
    text = head + table(rows) + "\n"
    print(text)
    if options.output:
        options.output.write_text("# Remedies for memory, measured\n\n" + text, encoding="utf-8")
    return int(missed(rows))


if __name__ == "__main__":
    sys.exit(main())

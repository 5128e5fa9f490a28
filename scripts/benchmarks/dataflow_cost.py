"""What recording two steps as a program costs: time per operator and peak memory; JSON on stdout.

    scripts/python scripts/benchmarks/dataflow_cost.py [--device cuda] [--windows 7] [model …]

`transformer` has many small operators, `written-attention` larger ones, `convolutional` a few that take long. Times are
the CPU time of the process on a CPU and the clock's on a device, the shortest of several windows. `per_operator_us` is
what a recorded step takes beyond a plain one, `own_us` what the recording measures of itself, `table_us` what making
the table takes afterwards. Peak memory is of a process that only runs plain steps against one that records two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from diagnose.capture.dataflow.window import DataflowWindow

PLAIN, WARM_UP, STEPS = 10, 4, 2


class Block(nn.Module):
    """A block of a transformer whose attention is written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of the shape of its input."""
        batch, length, width = x.shape
        parts = self.inputs(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        hidden = torch.ones(length, length, device=x.device).triu(1).bool()
        scores = (query @ key.transpose(-1, -2) / 8).masked_fill(hidden, float("-inf"))
        attended = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.output(attended)
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


def transformer(device: str, width: int) -> Callable[[], object]:
    """Return a step of a language model of six blocks."""
    model = nn.Sequential(nn.Embedding(512, width), *[Block(width, 4) for _ in range(6)], nn.Linear(width, 512))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> object:
        tokens = torch.randint(0, 512, (8, 64), device=device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def convolutional(device: str) -> Callable[[], object]:
    """Return a step of a network of twelve convolutions."""
    layers = [
        nn.Sequential(nn.Conv2d(16 if i else 3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for i in range(12)
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> object:
        images = torch.randn(16, 3, 64, 64, device=device)
        labels = torch.randint(0, 10, (16,), device=device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


MODELS: dict[str, Callable[[str], Callable[[], object]]] = {
    "transformer": lambda device: transformer(device, 64),
    "written-attention": lambda device: transformer(device, 256),
    "convolutional": convolutional,
}


def measured(step: Callable[[], object], device: str, windows: int) -> dict[str, object]:
    """Return the costs of recording a step."""

    def now() -> float:
        if device == "cpu":
            return time.process_time()
        torch.get_device_module(device).synchronize()
        return time.perf_counter()

    plain = []
    for _ in range(PLAIN):
        began = now()
        step()
        plain.append(now() - began)
    recorded, own, table, flow = [], [], [], None
    for _ in range(windows):
        window = DataflowWindow()
        window.start()
        began = now()
        for _ in range(STEPS):
            step()
            window.end_step()
        recorded.append((now() - began) / STEPS)
        window.stop()
        began = now()
        flow = window.result()
        table.append(now() - began)
        own.append(flow.cost_ns / 1e3)
    if flow is None:
        return {}
    num = len(flow.operators)
    return {
        "operators_per_step": num // STEPS,
        "plain_ms": round(1e3 * min(plain), 2),
        "recorded_ms": round(1e3 * min(recorded), 2),
        "per_operator_us": round(1e6 * STEPS * (min(recorded) - min(plain)) / num, 1),
        "own_us": round(min(own) / num, 1),
        "table_us": round(1e6 * min(table) / num, 1),
        "exact_share": round(sum(value.is_exact for value in flow.values) / len(flow.values), 2),
        "left_out": flow.left_out,
    }


def peak_mb(device: str) -> float:
    """Return the most memory that this process has had, on the device if there is one."""
    if device != "cpu":
        return float(torch.get_device_module(device).max_memory_allocated() / 1e6)
    status = Path("/proc/self/status").read_text(encoding="ascii")  # getrusage has the parent's peak after an exec
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3


def in_a_process(name: str, device: str, record: str) -> float:
    """Return the peak memory of a process that runs a model's steps."""
    command = [sys.executable, __file__, "--device", device, "--child", record, name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--child", choices=["plain", "recorded"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if given.child:
        step = MODELS[given.models[0]](given.device)
        for _ in range(WARM_UP):
            step()
        if given.child == "recorded":
            measured(step, given.device, 1)
        else:
            for _ in range(PLAIN + STEPS):
                step()
        print(peak_mb(given.device))
        return
    found = {}
    for name in given.models or MODELS:
        step = MODELS[name](given.device)
        for _ in range(WARM_UP):
            step()
        found[name] = measured(step, given.device, given.windows)
        plain, recorded = (in_a_process(name, given.device, record) for record in ("plain", "recorded"))
        found[name] |= {"plain_peak_mb": round(plain), "recorded_peak_mb": round(recorded)}
    print(json.dumps({"device": given.device, "torch": torch.__version__, "models": found}, indent=1))


if __name__ == "__main__":
    main()

"""What recording two steps as a program costs: time per operator and peak memory; JSON on stdout.

    scripts/python evaluation/benchmarks/dataflow_cost.py [--device cuda] [--windows 7] [model …]

`transformer` has many small operators, `written-attention` values of up to 8 MB, `convolutional` a few operators that
take long, `embeddings` large tables of which a step reads little. Times are the CPU time of the process on a CPU and
the clock's on a device. Plain and recorded steps take turns; `per_operator_us` is the median of what two recorded
steps take beyond the plain ones before and after them, `own_us` that of what the recording measures of itself,
`longest_own_us` the largest of it, `table_us` what making the table takes afterwards. Peak memory is of a process that
only runs plain steps against one that records two, above what there was before the first step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from diagnose.capture.dataflow.window import DataflowWindow

WARM_UP, STEPS = 4, 2


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


def transformer(device: str, width: int, length: int) -> Callable[[], object]:
    """Return a step of a language model of six blocks."""
    model = nn.Sequential(nn.Embedding(512, width), *[Block(width, 4) for _ in range(6)], nn.Linear(width, 512))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> object:
        tokens = torch.randint(0, 512, (8, length), device=device)
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


def embeddings(device: str) -> Callable[[], object]:
    """Return a step of a recommender of eight tables of 12.8 MB."""
    tables = nn.ModuleList([nn.Embedding(100_000, 32) for _ in range(8)]).to(device)
    head = nn.Sequential(nn.Linear(8 * 32, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.Adagrad([*tables.parameters(), *head.parameters()], foreach=False)

    def step() -> object:
        rows = torch.randint(0, 100_000, (8, 2048), device=device)
        clicked = torch.rand(2048, 1, device=device).round()
        optimizer.zero_grad()
        found = torch.cat([table(row) for table, row in zip(tables, rows, strict=True)], 1)
        loss = functional.binary_cross_entropy_with_logits(head(found), clicked)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


MODELS: dict[str, Callable[[str], Callable[[], object]]] = {
    "transformer": lambda device: transformer(device, 64, 64),
    "written-attention": lambda device: transformer(device, 256, 256),
    "convolutional": convolutional,
    "embeddings": embeddings,
}


def measured(step: Callable[[], object], device: str, windows: int) -> dict[str, object]:
    """Return the costs of recording a step."""

    def now() -> float:
        if device == "cpu":
            return time.process_time()
        torch.get_device_module(device).synchronize()
        return time.perf_counter()

    def plain() -> float:
        began = now()
        for _ in range(STEPS):
            step()
        return now() - began

    before, beyond, own, table, flow = plain(), [], [], [], None
    for _ in range(windows):
        window = DataflowWindow()
        window.start()
        began = now()
        for _ in range(STEPS):
            step()
            window.end_step()
        recorded = now() - began
        window.stop()
        began = now()
        flow = window.result()
        table.append(now() - began)
        own.append(flow.cost_ns / 1e3)
        after = plain()
        beyond.append(recorded - (before + after) / 2)
        before = after
    if flow is None:
        return {}
    num = len(flow.operators)
    return {
        "operators_per_step": num // STEPS,
        "plain_ms": round(1e3 * before / STEPS, 2),
        "per_operator_us": round(1e6 * statistics.median(beyond) / num, 1),
        "own_us": round(statistics.median(own) / num, 1),
        "longest_own_us": round(max(own) / num, 1),
        "table_us": round(1e6 * statistics.median(table) / num, 1),
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
        start = peak_mb(given.device)
        step = MODELS[given.models[0]](given.device)
        for _ in range(WARM_UP):
            step()
        measured(step, given.device, 1 if given.child == "recorded" else 0)
        print(peak_mb(given.device) - start)
        return
    found = {}
    for name in given.models or MODELS:
        step = MODELS[name](given.device)
        for _ in range(WARM_UP):
            step()
        found[name] = measured(step, given.device, given.windows)
        plain, recorded = (in_a_process(name, given.device, record) for record in ("plain", "recorded"))
        found[name] |= {"plain_peak_mb": round(plain), "peak_ratio": round(recorded / plain, 3)}
    print(json.dumps({"device": given.device, "torch": torch.__version__, "models": found}, indent=1))


if __name__ == "__main__":
    main()

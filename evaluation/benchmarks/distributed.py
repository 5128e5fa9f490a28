"""Measures the remedies for several ranks on this machine's CPUs, and prints the tables of pages/ranks.md.

    python evaluation/benchmarks/distributed.py [--ranks 2] [--steps 24]

The ranks talk over gloo on one host: the link is memory, so that what compression saves is little and what it costs is
all there. The bytes and the losses are those of any link.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._trials import MakeStep
from diagnose.kernels.distributed.bucket_tuning import tune_buckets
from diagnose.kernels.distributed.hook_trials import try_hooks
from diagnose.kernels.distributed.launch import launched
from diagnose.kernels.distributed.local_sgd import LocalSGD

WIDTH, DEPTH, BATCH = 1024, 5, 64
HOOKS = {
    "fp16": {},
    "bf16": {},
    "int8": {},
    "power_sgd": {"rank": 2, "warm_up": 4},
}


def network() -> nn.Module:
    torch.manual_seed(0)
    hidden = [part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 10))


def batches(num: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    planes = torch.randn(WIDTH, 10, generator=torch.Generator().manual_seed(0))
    inputs = [torch.randn(BATCH, WIDTH, generator=generator) for _ in range(num)]
    return [(x, (x @ planes).argmax(1)) for x in inputs]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=24)
    given = arguments.parse_args()
    if "RANK" not in os.environ:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(given.ranks)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        raise SystemExit(subprocess.run([*command, __file__, *sys.argv[1:]], env=env, check=False).returncode)
    with launched(backend="gloo", timeout_s=300) as rank:
        for table in (hooks, buckets, apart):
            lines = table(given.steps)
            if rank.rank == 0:
                print("\n".join(["", *lines]), flush=True)


def stepping(optimizer: torch.optim.Optimizer) -> MakeStep:
    def make_step(ddp: DistributedDataParallel) -> Callable[[Any], Any]:
        def train_step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            loss = nn.functional.cross_entropy(ddp(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return train_step

    return make_step


def hooks(steps: int) -> list[str]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    choice = try_hooks(model, stepping(optimizer), batches(steps), HOOKS, state=[optimizer], steps=steps)
    plain = choice.trials[0]
    rows = [
        f"| `{t.name}` | {t.step_ms:.1f} | {t.step_ms / plain.step_ms:.2f} | {plain.sent_bytes / t.sent_bytes:.1f} "
        f"| {choice.drift(t):+.2%} |"
        for t in choice.trials
    ]
    return ["| hook | step, ms | of plain | fewer bytes, times | loss against plain |", "|---|---|---|---|---|", *rows]


def buckets(steps: int) -> list[str]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    choice = tune_buckets(model, stepping(optimizer), batches(4), state=[optimizer], steps=max(2, steps // 4), rounds=3)
    rows = [
        f"| {t.bucket_cap_mb:.3g} | {t.step_ms:.1f} ± {t.spread_ms:.1f} | {t.hidden_share or 0:.0%} |"
        for t in choice.trials
    ]
    return ["| bucket, MB | step, ms | of the exchange hidden |", "|---|---|---|", *rows]


def apart(steps: int) -> list[str]:
    rows = []
    for every in (1, 4, 16):
        model = network()
        ddp = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        local = None if every == 1 else LocalSGD(ddp, optimizer, start=2, every=every)
        times, losses = [], []
        for x, y in batches(max(steps, 18)):
            start = time.perf_counter()
            loss = nn.functional.cross_entropy(ddp(x), y)
            loss.backward()
            (local or optimizer).step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - start)
            losses.append(loss.detach())
        last = torch.stack([*losses[-4:], torch.tensor(1e3 * sum(times[2:18]) / 16)])
        dist.all_reduce(last)
        rows.append((every, float(last[-1]) / dist.get_world_size(), float(last[:-1].mean()) / dist.get_world_size()))
    table = [f"| {every} | {ms:.1f} | {loss / rows[0][2] - 1:+.2%} |" for every, ms, loss in rows]
    return ["| parameters meet every … steps | step, ms, mean | loss against plain |", "|---|---|---|", *table]


if __name__ == "__main__":
    main()

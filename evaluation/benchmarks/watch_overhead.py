"""What `diagnose watch` adds to a step between windows: intervals with it and without it, in turns; JSON on stdout.

    scripts/python evaluation/benchmarks/watch_overhead.py [--device cuda] [--intervals 40]

The step loads a batch from a DataLoader, runs a model forward and backward and updates it, so that every hook is
reached. `tiny` computes next to nothing: its difference is the watch's own time. `real` is a small transformer.
`hooks` calls what the hooks call without a training step around it, the fastest of many: the watch's own code. In
these every step is timed; `thinned` is `tiny` as users have it, with fewer where timing all takes more than its share.
The difference is given twice: as the median of neighbouring intervals, and between the fastest intervals of either
kind, which neighbours on the machine disturb least. `own_us` is what the watch itself takes its cost for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from diagnose.monitor.long_run import Watch
from diagnose.monitor.watch_options import WatchOptions

Step = Callable[[], None]
EVERY = 10  # steps of a row, five times as many rows as by default: an upper bound
REPETITIONS = 40
SETTLE = 12  # steps that are not timed: until it is decided what a step is
THINNED_SETTLE = 120  # and until it is decided how many are timed
NEVER = 100.0  # a share by which no step becomes slower
WIDTH, LENGTH, BATCH, LAYERS = 256, 64, 8, 4


def tiny(device: str) -> Step:
    """Return a step of a layer of 8 by 8."""
    return training(torch.nn.Linear(8, 8), torch.ones(4096, 8), 16, device)


def real(device: str) -> Step:
    """Return a step of a transformer of four layers."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return training(model, torch.randn(64, LENGTH, WIDTH), BATCH, device)


def training(model: torch.nn.Module, samples: torch.Tensor, batch_size: int, device: str) -> Step:
    """Return one step of training a model: batch, forward, backward, update, and the loss now and then."""
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(TensorDataset(samples), batch_size=batch_size)
    batches = iter(loader)

    def step() -> None:
        nonlocal batches
        try:
            (batch,) = next(batches)
        except StopIteration:
            batches = iter(loader)
            (batch,) = next(batches)
        optimizer.zero_grad()
        model(batch.to(device)).square().mean().backward()
        optimizer.step()

    return step


def seconds(step: Step, steps: int, device: str) -> float:
    """Return the mean time of a step over so many of them; on a CPU the thread's own, which no neighbour adds to."""
    clock = time.perf_counter if device == "cuda" else time.thread_time
    began = clock()
    for _ in range(steps):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (clock() - began) / steps


def compare(
    make: Callable[[str], Step], steps: int, intervals: int, device: str, *, thinned: bool = False
) -> dict[str, float]:
    """Return the step without and with the watch, and what it adds, µs."""
    step = make(device)
    seconds(step, steps, device)
    plain, watched, own_ns = [], [], 0.0
    settle, clock = (THINNED_SETTLE, time.perf_counter_ns) if thinned else (SETTLE, lambda: 0)
    for number in range(intervals):
        for with_watch in (number % 2 == 0, number % 2 == 1):
            if with_watch:
                with tempfile.TemporaryDirectory() as folder:
                    options = WatchOptions(folder=Path(folder), every=EVERY, slow=NEVER)
                    with Watch(options, own_clock=clock) as watch:
                        seconds(step, settle, device)
                        watched.append(seconds(step, steps, device))
                        own_ns = watch._own_cost.per_step_ns(EVERY)
            else:
                seconds(step, settle, device)
                plain.append(seconds(step, steps, device))
    added = statistics.median(w - p for w, p in zip(watched, plain, strict=True))
    base = statistics.median(plain)
    return {
        "own_us": own_ns / 1e3,
        "added_between_fastest_us": (min(watched) - min(plain)) * 1e6,
        "plain_us": base * 1e6,
        "watched_us": statistics.median(watched) * 1e6,
        "added_us": added * 1e6,
        "share": added / base,
    }


def own_code_us(every: int) -> float:
    """Return what the hooks of a step and its share of a row take, µs: the fastest of many repetitions."""
    step = tiny("cpu")
    with (
        tempfile.TemporaryDirectory() as folder,
        Watch(WatchOptions(folder=Path(folder), every=every, slow=NEVER), own_clock=lambda: 0) as watch,
    ):
        seconds(step, 3 * every + SETTLE, "cpu")
        listener = watch._listener
        iterator, optimizer = next(iter(listener._iterators)), next(iter(listener.script_config._optimizers))
        batch = (torch.ones(16, 8),)

        def hooks() -> None:
            listener._loads(True)
            listener._loads(False)
            listener._batch_delivered(iterator, batch)
            listener._backward_begins()
            listener._backward_over()
            listener._optimizer_stepped(optimizer)

        return min(seconds(hooks, 10 * every, "cpu") for _ in range(REPETITIONS)) * 1e6


def main() -> int:
    """Measure both steps; state the share that the watch's own time has of the real one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--intervals", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.device == "cuda":
        torch.set_float32_matmul_precision("high")
    found = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if asked.device == "cuda" else "cpu",
        "hooks": {f"every_{every}_us": own_code_us(every) for every in (EVERY, 50)},
        "tiny": compare(tiny, 400, asked.intervals, asked.device),
        "thinned": compare(tiny, 400, asked.intervals, asked.device, thinned=True),
        "real": compare(real, 100 if asked.device == "cuda" else 4, asked.intervals, asked.device),
    }
    found["own_time_share_of_real"] = found["tiny"]["added_us"] / found["real"]["plain_us"]
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

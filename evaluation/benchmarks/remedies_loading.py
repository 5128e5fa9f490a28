"""What the remedies for loading and for the loop give on this machine, each against the code that it replaces.

    scripts/python evaluation/benchmarks/remedies_loading.py [--quick] [-o FILE]

The loader tuner and the loading thread run on the data-stall fixture: its dataset, its model, its batches. Both sides
train the same model, take turns, one epoch each, and must end with the same losses, bit by bit; times are medians over
the epochs, and the first of each, which starts workers and fills pools, does not count; beside them the best epochs
are compared, which other work on the machine disturbed least. One thread computes, so that on
two cores there is one to load with. On a GPU the prefetcher and the
deferred metrics are measured too. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rows import NOT_ON_A_GPU, Row, in_turns, missed, one_thread, table, timed, turns
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from diagnose.kernels.accumulation import GradientAccumulation
from diagnose.kernels.background_loader import BackgroundLoader
from diagnose.kernels.deferred_metrics import DeferredMetrics
from diagnose.kernels.gc_schedule import scheduled_gc
from diagnose.kernels.loader_tuning import tune_loader
from diagnose.kernels.prefetch import DevicePrefetcher
from diagnose.kernels.shared_cache import SharedCache

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))
from models import ResNet
from slow_dataset import PackedImages

FASTER_TUNED, FASTER_THREAD, EXACT, HIDDEN = 1.6, 1.5, 1e-6, 0.9
BATCH = 32  # as the fixture has it on a CPU
WIDTHS = (24, 48, 96)


class Training:
    """The fixture's training, on a loader of one's choice; each has a model of its own, all alike."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        torch.manual_seed(0)
        self.model = ResNet(WIDTHS).to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, fused=True)
        self.losses: list[Tensor] = []

    def step(self, batch: list[Tensor]) -> None:
        """Train on one batch."""
        images, labels = batch
        loss = functional.cross_entropy(self.model(images.to(memory_format=torch.channels_last)), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def epoch(self) -> float:
        """Train one epoch; return the seconds of a step with its batch."""
        torch.manual_seed(len(self.losses))
        start, num = time.perf_counter(), 0
        for batch in self.loader:
            self.step(batch)
            num += 1
        return (time.perf_counter() - start) / num


def loaders(quick: bool) -> Iterator[Row]:
    """Compare the fixture's loader as it is with the tuned one, and with one on a thread."""
    steps, rounds = (12, 3) if quick else (40, 7)
    plain = DataLoader(PackedImages(steps * BATCH, 32, 0), batch_size=BATCH, shuffle=True)
    trial = Training(plain)
    tuning = tune_loader(
        plain, trial.step, state=(trial.model, trial.optimizer), seconds=0.5 if quick else 2.0, sample_threads=8
    )
    for what, loader, bar in (
        (f"tune_loader (chose {tuning.settings}), data-stall fixture", tuning.loader, FASTER_TUNED),
        ("BackgroundLoader, data-stall fixture", BackgroundLoader(plain), FASTER_THREAD),
    ):
        sides = [Training(plain), Training(loader)]
        plain_s, other_s = turns([side.epoch for side in sides], rounds, dropped=1)
        same = all(torch.equal(a, b) for a, b in zip(*(side.losses for side in sides), strict=True))
        found = _faster(what, statistics.median(plain_s), statistics.median(other_s), bar)
        gain = f"{found.gain} (best epochs: {min(plain_s) / min(other_s):.2f}×)"
        label = f"{what}, {'same' if same else 'OTHER'} losses"
        yield replace(found, what=label, gain=gain, holds=found.holds and same)


def reading(quick: bool) -> Iterator[Row]:
    """Compare loading on a thread with loading in the loop where a sample only waits for its storage."""

    class Stored(Dataset[Tensor]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> Tensor:
            time.sleep(0.010)  # reading lets go of the interpreter, and of the core
            return torch.full((8,), float(index))

    def loop(loader: Iterable[Tensor]) -> Callable[[], float]:
        def run() -> float:
            start = time.perf_counter()
            for _ in loader:
                end = time.perf_counter() + 0.010
                while time.perf_counter() < end:  # the step computes for as long as reading takes
                    weight @ weight
            return (time.perf_counter() - start) / len(plain)

        return run

    weight = torch.randn(192, 192)
    plain = DataLoader(Stored(), batch_size=None)
    before, after = in_turns([loop(plain), loop(BackgroundLoader(plain))], 3 if quick else 7, dropped=1)
    yield _faster("BackgroundLoader, 10 ms of reading beside a step of 10 ms", before, after, FASTER_THREAD)


def cache(quick: bool) -> Iterator[Row]:
    """Compare decoding every epoch with mapping what was decoded in the first."""
    images = PackedImages(256, 32, 0)
    kept = SharedCache(64 << 20)
    decoded = kept.stage(images.__getitem__, version="1")
    every = in_turns(
        [timed(lambda: [images[i] for i in range(256)]), timed(lambda: [decoded(i) for i in range(256)])],
        3 if quick else 7,
        dropped=1,
    )
    kept.close()
    yield _faster("SharedCache, images of the fixture from the second epoch on, a batch", every[0] / 8, every[1] / 8)


def collector(quick: bool) -> Iterator[Row]:
    """Compare a collection in every step with a scheduled one, beside a heap as large as that of a training script."""
    heap = [{"name": str(i), "parts": [i]} for i in range(50_000 if quick else 200_000)]
    steps = 10

    def every_step() -> None:
        for _ in range(steps):
            gc.collect()

    def scheduled() -> float:
        with scheduled_gc(every=5, warm_up=1) as collect:
            collect.step()  # freezes
            start = time.perf_counter()
            for _ in range(steps):
                collect.step()
            return time.perf_counter() - start

    before, after = in_turns([timed(every_step), scheduled], 3 if quick else 5)
    yield _faster(f"scheduled_gc, {2 * len(heap) // 1000} k objects, a step", before / steps, after / steps)


def accumulated(quick: bool) -> Iterator[Row]:
    """Compare accumulated gradients of unequal batches with those of one large batch, in float32."""
    worst, naive = 0.0, 0.0
    for seed in range(3 if quick else 10):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
        x, y = torch.randn(61, 32), torch.randint(8, (61,))
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        expected = _taken(model)
        parts = list(zip(x.split([16, 16, 16, 13]), y.split([16, 16, 16, 13]), strict=True))
        for a, b in parts:
            (functional.cross_entropy(model(a), b) / len(parts)).backward()  # type: ignore[no-untyped-call]
        naive = max(naive, _apart(_taken(model), expected))
        seen: list[Tensor] = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer.register_step_pre_hook(lambda *_, m=model, s=seen: s.append(_taken(m)))
        accumulation = GradientAccumulation(model, optimizer, every=4)
        for a, b in accumulation.over(parts):
            with accumulation.micro_batch(len(a)) as micro:
                micro.backward(functional.cross_entropy(model(a), b))
        worst = max(worst, _apart(seen[0], expected))
    what = "GradientAccumulation, batches of 16, 16, 16 and 13: error of the gradient"
    yield Row(what, f"{naive:.1e} (divided by 4)", f"{worst:.1e}", f"bar {EXACT:.0e}", worst <= EXACT)


def _taken(model: nn.Module) -> Tensor:
    grads = [p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return torch.cat(grads)


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


def on_device(quick: bool) -> Iterator[Row]:
    """Compare copies in the step with prefetched ones, and ``.item()`` in each step with values one step later."""
    prefetcher = "DevicePrefetcher: share of the copy that is hidden"
    metrics = "DeferredMetrics in place of .item(), a step"
    if not torch.cuda.is_available():
        yield Row(prefetcher, "", NOT_ON_A_GPU, f"bar {HIDDEN:.0%}")
        yield Row(metrics, "", NOT_ON_A_GPU, "")
        return
    batches = [torch.randn(64 << 18, pin_memory=True) for _ in range(8)]  # 64 MB each
    there = [batch.cuda() for batch in batches]
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def step(batch: Tensor) -> Tensor:
        total = batch.sum()
        for _ in range(40):
            total = total + (weight @ weight)[0, 0]
        return total

    def loop(source: Callable[[], Iterable[Tensor]], use: Callable[[Tensor], object] = lambda _: None) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for batch in source():
            use(step(batch))
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / len(batches)

    rounds = 5 if quick else 21
    alone, copied, ahead = in_turns(
        [
            lambda: loop(lambda: there),
            lambda: loop(lambda: (b.cuda(non_blocking=True) for b in batches)),
            lambda: loop(lambda: DevicePrefetcher(batches, "cuda")),
        ],
        rounds,
        dropped=2,
    )
    hidden = 1 - (ahead - alone) / (copied - alone)
    yield Row(prefetcher, f"{copied * 1e3:.2f} ms", f"{ahead * 1e3:.2f} ms", f"{hidden:.0%}", hidden >= HIDDEN)
    deferred = DeferredMetrics()

    def later(value: Tensor) -> None:
        deferred.push(0, loss=value)
        for _ in deferred.ready():
            pass

    before, after = in_turns(
        [lambda: loop(lambda: there, Tensor.item), lambda: loop(lambda: there, later)], rounds, dropped=2
    )
    yield _faster(metrics, before, after)


def _faster(what: str, before: float, after: float, bar: float | None = None) -> Row:
    gain = before / after
    holds = None if bar is None else gain >= bar
    shown = f"{gain:.2f}×" if gain < 100 else "over 100×"
    return Row(what, f"{before * 1e3:.2f} ms", f"{after * 1e3:.2f} ms", shown, holds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("-o", "--output", type=Path, help="also write the table into this file")
    options = parser.parse_args()
    with one_thread():
        parts = (loaders, reading, cache, collector, accumulated, on_device)
        rows = [row for part in parts for row in part(options.quick)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    head = f"torch {torch.__version__}, Python {platform.python_version()}, {cores} cores, one thread computes.\n\n"
    text = head + table(rows) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return int(missed(rows))


if __name__ == "__main__":
    sys.exit(main())

"""What further remedies give on this machine's CPU, each beside the code that it replaces.

    scripts/python evaluation/benchmarks/remedies_further.py [--quick] [-o FILE]

Both sides take turns, and the numbers are medians. What waits for storage is a stand-in that sleeps, so that the row
shows what the threads are for and not this machine's disk.
"""

from __future__ import annotations

import argparse
import copy
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rows import Row, in_turns, missed, one_thread, table, timed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from diagnose.kernels.batch_size import find_batch_size
from diagnose.kernels.compiling import compile_in_place
from diagnose.kernels.concurrent_samples import ConcurrentSamples
from diagnose.kernels.dropout import fast_dropout
from diagnose.kernels.fast_save import save_files
from diagnose.kernels.indexing import select_rows
from diagnose.kernels.layout import channels_last
from diagnose.kernels.length_batches import LengthBatches
from diagnose.kernels.precision import Precision
from diagnose.kernels.saving import BackgroundSaver
from diagnose.kernels.shard_writing import write_shards
from diagnose.kernels.sharding import ShardedStream
from diagnose.kernels.tiny import tiny_model
from diagnose.kernels.web_shards import WebShards

WAIT_S = 0.002  # of a sample, for its storage
THREADS = 8


class Stored(Dataset[Tensor]):
    """Samples that wait for their storage."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(WAIT_S)
        return torch.tensor(index)


class Stream(IterableDataset[int]):
    """Elements that each worker would repeat."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(64))


def samples(quick: bool) -> Iterator[Row]:
    """Batches of samples that wait, one by one and on threads."""
    plain = DataLoader(Stored(), batch_size=16)
    together = DataLoader(ConcurrentSamples(Stored(), threads=THREADS), batch_size=16)
    runs = [timed(lambda: list(plain)), timed(lambda: list(together))]
    yield _times(f"`concurrent_samples`, {THREADS} threads, samples that wait 2 ms", runs, 3 if quick else 9)


def saves(quick: bool) -> Iterator[Row]:
    """Measure the pause of a step that saves."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4 if quick else 16)))
    size = sum(p.nbytes for p in model.parameters()) / 1e6
    with tempfile.TemporaryDirectory() as folder, BackgroundSaver() as saver:
        path = Path(folder)

        def in_background() -> float:
            took = timed(lambda: saver.save(model.state_dict(), path / "a.pt"))()
            saver.wait()  # the steps between two checkpoints
            return took

        runs = [timed(lambda: torch.save(model.state_dict(), path / "b.pt")), in_background]
        yield _times(f"`saving`, pause of a step, {size:.0f} MB", runs, 3 if quick else 9)


def shards(quick: bool) -> Iterator[Row]:
    """Small files one by one, and the same from shards; files are in the page cache."""
    num = 500 if quick else 4000
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for i in range(num):
            (root / f"{i:06}.txt").write_bytes(b"x" * 2000)
        files = sorted(root.glob("*.txt"))
        start = time.perf_counter()
        paths = write_shards(({"txt": f.read_bytes()} for f in files), root / "shards", max_bytes=1 << 22)
        rate = num / (time.perf_counter() - start)
        yield Row("`shard_writing`, samples of 2 kB", "", f"{rate:,.0f} samples/s", "")
        batches = WebShards(paths, ("txt",), batch_size=32, shuffle=0)
        runs = [timed(lambda: [f.read_bytes().decode() for f in files]), timed(lambda: sum(1 for _ in batches))]
        yield _times(f"`web_shards`, {num} files of 2 kB in the page cache", runs, 2 if quick else 5)


def streams(_quick: bool) -> Iterator[Row]:
    """How often each element of a stream comes with two workers."""
    plain = len(list(DataLoader(Stream(), batch_size=None, num_workers=2)))
    shared = len(list(DataLoader(ShardedStream(Stream()), batch_size=None, num_workers=2)))
    yield Row("`sharding`, 64 elements, two workers", f"{plain} elements", f"{shared} elements", "", shared == 64)


def rows_in_sequence(quick: bool) -> Iterator[Row]:
    """Rows that follow each other: a copy and a view."""
    source, index = torch.randn(20_000, 256), list(range(1000, 9000))
    runs = [timed(lambda: source[index]), timed(lambda: select_rows(source, index))]
    yield _times("`indexing`, 8000 rows in sequence", runs, 5 if quick else 21)


def dropouts(quick: bool) -> Iterator[Row]:
    """Dropout with its gradient, by both ways of drawing masks."""
    x = torch.randn(1 << 20, requires_grad=True)
    each = (nn.functional.dropout, fast_dropout)
    runs = [timed(lambda drop=drop: drop(x, 0.1).sum().backward()) for drop in each]
    yield _times("`dropout`, a million elements", runs, 5 if quick else 21)


def layouts(quick: bool) -> Iterator[Row]:
    """Convolutions in both layouts."""
    models = []
    for converts in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(16, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU())
        if converts:
            channels_last(model)
        models.append(model)
    x = torch.randn(8, 16, 56, 56)
    runs = [timed(lambda m=m: m(x).sum().backward()) for m in models]
    yield _times("`layout`, two convolutions, float32", runs, 3 if quick else 9)


def shrunk(quick: bool) -> Iterator[Row]:
    """Measure a step of a model and of the copy that keeps two of its blocks."""
    whole = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256), 12, enable_nested_tensor=False)
    few = tiny_model(whole).model
    x = torch.randn(16, 8, 128)
    runs = [timed(lambda m=m: m(x).sum().backward()) for m in (whole, few)]
    yield _times("`tiny`, 2 of 12 blocks: a step", runs, 3 if quick else 9)


def lengths(quick: bool) -> Iterator[Row]:
    """Measure an epoch of unlike samples: batches drawn at random, and of like lengths within a budget."""
    drawn = random.Random(0)
    texts = [torch.randn(min(int(drawn.lognormvariate(4, 0.7)) + 1, 400), 32) for _ in range(128 if quick else 512)]
    sizes = [len(text) for text in texts]
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 2)

    def pad(samples: list[Tensor]) -> Tensor:
        padded.append(max(map(len, samples)) * len(samples))
        return nn.utils.rnn.pad_sequence(samples, batch_first=True)

    def epoch(loader: DataLoader[Tensor]) -> None:
        for batch in loader:
            model(batch).sum().backward()

    padded: list[int] = []
    shares = []
    torch.manual_seed(0)
    data: Any = texts
    plain = DataLoader(data, batch_size=16, shuffle=True, collate_fn=pad)
    grouped = DataLoader(data, batch_sampler=LengthBatches(sizes, budget=2048), collate_fn=pad)
    for loader in (plain, grouped):
        padded.clear()
        list(loader)
        shares.append(1 - sum(sizes) / sum(padded))
    runs = [timed(lambda: epoch(plain)), timed(lambda: epoch(grouped))]
    yield Row("`length_batches`, share of tokens that is padding", f"{shares[0]:.0%}", f"{shares[1]:.0%}", "")
    yield _times("`length_batches`, an epoch of a transformer", runs, 3 if quick else 7)


def sizes(quick: bool) -> Iterator[Row]:
    """Count samples a second with the batch that a script began with, and with the one that is found."""
    model = nn.Sequential(*(part for _ in range(20) for part in (nn.Linear(64, 64), nn.ReLU())))

    def train(size: int) -> None:
        model(torch.randn(size, 64)).square().mean().backward()

    found = find_batch_size(train, state=(model,), start=8, limit=1024, repeats=5 if quick else 20)
    rates = [size / found.seconds[size] for size in (8, found.fastest)]
    yield Row(f"`batch_size`, 8 samples and the {found.fastest} that are found", f"{rates[0]:,.0f} samples/s",
              f"{rates[1]:,.0f} samples/s", f"{rates[1] / rates[0]:.1f} ×")  # fmt: skip


def weights(quick: bool) -> Iterator[Row]:
    """Save weights: pickled by torch.save, and as files that can be mapped."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4 if quick else 16)))
    size = sum(p.nbytes for p in model.parameters()) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        number = iter(range(1000))
        runs = [
            timed(lambda: torch.save(model.state_dict(), Path(folder) / f"{next(number)}.pt")),
            timed(lambda: save_files(model.state_dict(), Path(folder) / str(next(number)), max_bytes=32 << 20)),
        ]
        yield _times(f"`fast_save`, {size:.0f} MB in files of 32 MB, against torch.save", runs, 3 if quick else 7)


def compiled(quick: bool) -> Iterator[Row]:
    """Run a chain of pointwise operators as it is and compiled."""

    class Chain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(8):
                x = torch.relu(x * 1.5 - 0.5) + x
            return x

    eager, x = Chain(), torch.randn(2048, 2048)
    fused = copy.deepcopy(eager)
    compile_in_place(fused, [(x,)], cause="unfused-elementwise")
    yield _times("`compiling`, a chain of 32 pointwise operators", [timed(lambda: eager(x)), timed(lambda: fused(x))],
                 3 if quick else 15)  # fmt: skip


def halved(quick: bool) -> Iterator[Row]:
    """Train matrix products in float32 and under bfloat16 autocast, where this CPU has 16-bit products."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    x, precision = torch.randn(256, 1024), Precision("cpu")

    def whole() -> None:
        model(x).square().mean().backward()

    def mixed() -> None:
        with precision.autocast():
            loss = model(x).square().mean()
        precision.backward(loss)

    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    kind = "amx_bf16" if "amx_bf16" in flags else "avx512_bf16" if "avx512_bf16" in flags else "no 16-bit products"
    yield _times(f"`precision`, four wide layers, bfloat16 ({kind})", [timed(whole), timed(mixed)], 3 if quick else 15)


def _times(what: str, runs: list[Callable[[], float]], rounds: int) -> Row:
    before, after = in_turns(runs, rounds, dropped=1)
    return Row(what, f"{before * 1e3:.2f} ms", f"{after * 1e3:.2f} ms", f"{before / after:.1f} ×")


PARTS: tuple[Callable[[bool], Iterator[Row]], ...] = (
    samples, saves, weights, shards, streams, lengths, sizes, rows_in_sequence, dropouts, layouts, shrunk,
    compiled, halved,
)  # fmt: skip


def main() -> int:
    """Measure all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller models and fewer runs")
    parser.add_argument("-o", "--output", type=Path, help="also write the table into this file")
    options: Any = parser.parse_args()
    with one_thread():
        rows = [row for part in PARTS for row in part(options.quick)]
    text = f"torch {torch.__version__}, Python {platform.python_version()}, one thread.\n\n{table(rows)}\n"
    print(text)
    if options.output:
        options.output.write_text("# Further remedies, measured\n\n" + text, encoding="utf-8")
    return int(missed(rows))


if __name__ == "__main__":
    sys.exit(main())

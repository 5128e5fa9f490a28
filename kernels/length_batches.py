"""Builds batches of similar lengths within a token budget.

What it cures
    Padding: a batch is as long as its longest sample, and what is filled up is computed too. With it `straggler` of
    ranks that drew longer samples, `recompilation` and `memory-fragmentation` of ever new sizes, and `memory-pressure`
    of the one batch that holds the longest samples.

When it does not help
    Where samples have about one length, or are cut to one. Streams have no lengths to sort: pack their samples instead.

Cost
    Reading every sample once where its length is not known; some steps before the run where the budget is looked for.
    Sorting a window of samples each epoch.

Numerics
    Every sample once an epoch, on one rank. Batches hold other samples than before, and other numbers of them: divide
    the loss by its tokens, or weigh ranks by `distributed.uneven.LossWeights`. Samples are shuffled within windows, and
    batches over the epoch.

Example::

    from diagnose.kernels.length_batches import find_length_batches

    found = find_length_batches(dataset, train_step, state=(model, optimizer), memory_bytes=64 << 20)
    log(found)  # bytes of a token, and how many fit; `LengthBatches(lengths, budget)` where the budget is known
    loader = DataLoader(dataset, batch_sampler=found.batches)  # and the collate_fn that pads
    for epoch in range(epochs):
        for batch in loader:
            train_step(batch)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from diagnose.kernels._activations import bytes_kept
from diagnose.kernels._length_sampler import LengthBatches, rounded
from diagnose.kernels._loader_costs import free_bytes
from diagnose.kernels._state import Stateful, unchanged
from diagnose.kernels.memory_snapshot import is_out_of_memory

__all__ = ["FoundBatches", "LengthBatches", "find_length_batches", "lengths_of"]

MIN_PEAKS, MAX_DOUBLINGS = 4, 16
"""Batches of one sample in 1, 2, 4, … rows whose memory is compared, at least and at most."""

SHRINK = 0.8
"""What is left of a budget that turned out too large."""

Meter = Callable[[Callable[[], object]], int]
"""Runs a step and returns the most bytes that it held."""


@dataclass(frozen=True)
class FoundBatches:
    """What was learned: of ``memory_bytes`` a step takes ``fixed_bytes``, and ``token_bytes`` for each padded token."""

    batches: LengthBatches
    token_bytes: float
    fixed_bytes: int
    memory_bytes: int

    @property
    def budget(self) -> int:
        """Return how many padded tokens a batch may have."""
        assert self.batches.budget is not None, "as it was made"
        return self.batches.budget

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"{self.budget} padded tokens a batch: {self.token_bytes:.0f} bytes each beside "
            f"{self.fixed_bytes / 1e6:.1f} MB, of {self.memory_bytes / 1e6:.1f} MB; {self.batches.padding:.0%} of an "
            "epoch's tokens are padding"
        )


def find_length_batches(  # each is a bound or a fact that users have
    dataset: Dataset[Any],
    step: Callable[[Any], object],
    *,
    collate_fn: Callable[[list[Any]], Any] = default_collate,
    lengths: Sequence[int] | Tensor | None = None,
    length: Callable[[Any], int] | None = None,
    state: Sequence[Stateful] = (),
    memory_bytes: int | None = None,
    share: float = 0.9,
    meter: Meter | None = None,
    max_samples: int | None = None,
    multiple: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    rank: int | None = None,
    num_ranks: int | None = None,
) -> FoundBatches:
    """Return batches of like lengths that fill the memory which is left, as a few real steps show it.

    ``step`` trains on a batch as ``collate_fn`` makes it. It is called with small batches of the longest and of the
    shortest sample; what memory grows by gives the bytes of a padded token, and ``share`` of ``memory_bytes`` less what
    does not grow gives the budget. The fullest batches of both kinds are then tried, and the budget shrinks until they
    fit. What ``state`` holds, and the random generators, are put back. ``step`` must wait for no other rank: find the
    budget on each alone, and pass the smallest of all to `LengthBatches`.

    ``memory_bytes`` is by default what the device's allocator holds or can still get, without a device half of what
    the host has free. ``meter`` runs a step and returns its peak in bytes: the allocator's own count by default,
    without a device what is kept for the backward pass.

    Raises:
        TypeError: the dataset is a stream, or a sample's length is not known; pass ``length`` or ``lengths``.
        ValueError: a bound is not positive, or the memory of a step does not grow with its samples.
        MemoryError: not even one sample of the greatest length fits.
    """
    if not 0 < share <= 1 or (memory_bytes is not None and memory_bytes < 1):
        raise ValueError(f"find_length_batches needs 0 < share <= 1 and memory, not {share} and {memory_bytes} bytes.")
    known = lengths_of(dataset, length) if lengths is None else [int(n) for n in lengths]
    LengthBatches(known, max_samples=1, multiple=multiple, rank=rank, num_ranks=num_ranks)  # checks, before steps run
    samples: Any = dataset
    measure = meter or _peak
    memory = memory_bytes if memory_bytes is not None else _memory()

    def held(index: int, rows: int) -> int | None:
        """Return the peak of a step on one sample many times, None where it does not fit."""
        try:
            peak = measure(lambda: step(collate_fn([samples[index] for _ in range(rows)])))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            peak = memory + 1
        _give_back()
        return peak if peak <= memory else None

    ends = {rounded(n, multiple): (known.index(n), max(n, 1)) for n in (min(known), max(known))}
    with unchanged(*state):
        learned = [_line(held, index, n) for index, n in ends.values()]
        budget, token_bytes, fixed = min((int((share * memory - base) / slope), slope, base) for slope, base in learned)
        while budget >= max(ends):
            rows = {n: min(budget // n, max_samples or len(known), len(known)) for n in ends}
            if all(held(ends[n][0], rows[n]) is not None for n in ends):
                break
            budget = int(SHRINK * budget)
    if budget < max(ends):
        raise MemoryError(
            f"The longest sample has {max(ends)} tokens, and {max(budget, 0)} fit into {memory / 1e6:.1f} MB; cut it, "
            "or make memory free."
        )
    batches = LengthBatches(
        known, budget, max_samples=max_samples, multiple=multiple, shuffle=shuffle, seed=seed, rank=rank,
        num_ranks=num_ranks,
    )  # fmt: skip
    return FoundBatches(batches, token_bytes, fixed, memory)


def _line(held: Callable[[int, int], int | None], index: int, length: int) -> tuple[float, int]:
    """Return the bytes of a token and what a step holds beside them, of one sample in 1, 2, 4, … rows.

    Small batches may take less than what is there anyway, such as the update's memory: rows are doubled until the peak
    has grown twice in a row, and the last two give the line.
    """
    peaks: list[int] = []
    while len(peaks) < MAX_DOUBLINGS and not (len(peaks) >= MIN_PEAKS and peaks[-1] > peaks[-2] > peaks[-3]):
        peak = held(index, 1 << len(peaks))
        if peak is None:
            break
        peaks.append(peak)
    if not peaks:
        raise MemoryError(f"Not even one sample of {length} tokens fits; cut it, or make memory free.")
    if len(peaks) == 1:
        return peaks[0] / length, 0
    tokens = length << (len(peaks) - 1)
    slope = (peaks[-1] - peaks[-2]) / (tokens / 2)
    if slope <= 0:
        raise ValueError(
            f"A step of {1 << (len(peaks) - 1)} samples holds no more memory than one of {1 << (len(peaks) - 2)}; pass "
            "a step that trains on the batch it is given, or a meter that counts its memory."
        )
    return slope, max(int(peaks[-1] - slope * tokens), 0)


def lengths_of(dataset: Dataset[Any], length: Callable[[Any], int] | None = None) -> list[int]:
    """Return the length of every sample, each of which is loaded once; random generators are put back.

    Without ``length`` it is the first size of a sample's longest tensor, array, list or text, in tuples and mappings
    too.

    Raises:
        TypeError: the dataset is a stream, or a sample holds nothing that has a length.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"Lengths are those of samples by index, and {type(dataset).__name__} is a stream; sort within a buffer "
            "there, or pack its samples."
        )
    samples: Any = dataset
    with unchanged():
        return [(length or _length)(samples[index]) for index in range(len(samples))]


def _length(sample: Any) -> int:  # whatever the dataset gives
    found = _longest(sample)
    if found is None:
        raise TypeError(
            f"A {type(sample).__name__} has no length that is known; pass length=, such as length=lambda s: len(s[0])."
        )
    return found


def _longest(value: Any) -> int | None:  # a part of a sample
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(value, (str, bytes)):
        return len(value)
    parts = list(value.values()) if isinstance(value, Mapping) else value
    if not isinstance(parts, (list, tuple)):
        return None
    if isinstance(value, list) and parts and all(isinstance(item, (int, float)) for item in parts):
        return len(parts)
    return max((n for n in map(_longest, parts) if n is not None), default=None)


def _peak(run: Callable[[], object]) -> int:
    """Return the most bytes of the device's allocator while it runs; without a device what the backward pass needs."""
    if not _uses_gpu():
        return bytes_kept(run)
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def _memory() -> int:
    """Return what a step may hold: of the device what is free and what the allocator has, of the host half."""
    if _uses_gpu():
        return int(torch.cuda.mem_get_info()[0]) + int(torch.cuda.memory_reserved())
    memory = free_bytes()
    if memory is None:
        raise ValueError("This system does not report its free memory; pass memory_bytes=.")
    return memory


def _give_back() -> None:
    gc.collect()
    if _uses_gpu():
        torch.cuda.empty_cache()


def _uses_gpu() -> bool:
    started: Callable[[], bool] = torch.cuda.is_initialized
    return started()

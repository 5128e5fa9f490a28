"""Splits a stream among ranks and loader workers, so that no sample is trained on twice.

What it cures
    `data-stall` of an `IterableDataset`: with it a stream can be loaded by several workers. Without it each worker (and
    each rank) would repeat the whole stream.

When it does not help
    When reading the stream is itself the cost: every worker still reads all of it and keeps its share, so only what
    comes after this wrapper is spread. Then give each worker files of its own: `share_of(files)` in the dataset.

Cost
    Reading the stream once for each worker. With ``equal`` up to ranks × workers - 1 samples at its end are left out.

Numerics
    Every sample once an epoch. The order, and which samples are in a batch together, depend on the number of workers.

Example::

    from diagnose.kernels.sharding import ShardedStream

    loader = DataLoader(ShardedStream(stream), batch_size=16, num_workers=2)
    for epoch in range(epochs):
        loader.dataset.set_epoch(epoch)  # reaches the stream, if it shuffles by it
        for batch in loader:
            train_step(batch)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

__all__ = ["ShardedStream", "ranks", "share_of"]

T = TypeVar("T")


class ShardedStream(IterableDataset[T]):
    """Yields those elements of ``stream`` that belong to this rank and worker: every n-th one.

    Rank and number of ranks are those of the process group, of torchrun's environment, or one; they may be given. With
    ``equal`` (the default where there are several ranks) every share has the same length, as gradient exchange needs.

    Raises:
        ValueError: ``rank`` is not below ``num_ranks``, or only one of them is given.
    """

    def __init__(
        self,
        stream: Iterable[T],
        *,
        rank: int | None = None,
        num_ranks: int | None = None,
        equal: bool | None = None,
    ) -> None:
        _check(rank, num_ranks)
        self.stream, self.equal = stream, equal
        self.rank, self.num_ranks = rank, num_ranks

    def __iter__(self) -> Iterator[T]:
        """Yield this rank's and worker's share."""
        mine, shares = _place(self.rank, self.num_ranks)
        equal = self.equal if self.equal is not None else ranks(self.rank, self.num_ranks)[1] > 1
        return _every(self.stream, mine, shares, equal=equal)

    def __getstate__(self) -> dict[str, Any]:
        """Fix rank and number of ranks: a spawned worker has no process group to ask."""
        rank, num_ranks = ranks(self.rank, self.num_ranks)
        return {**self.__dict__, "rank": rank, "num_ranks": num_ranks}

    def set_epoch(self, epoch: int) -> None:
        """Hand the epoch to the stream, if it takes one. Workers that live on between epochs keep the old one."""
        set_epoch = getattr(self.stream, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def share_of(items: Sequence[T], *, rank: int | None = None, num_ranks: int | None = None) -> list[T]:
    """Return this rank's and worker's items, such as files; every n-th one, so that sizes even out.

    Raises:
        ValueError: there are fewer items than ranks × workers, so some worker would have nothing.
    """
    mine, shares = _place(rank, num_ranks)
    if len(items) < shares:
        raise ValueError(
            f"share_of got {len(items)} items for {shares} shares (ranks × workers); "
            "cut the data into more pieces, or use fewer workers."
        )
    return list(items[mine::shares])


def _every(stream: Iterable[T], mine: int, shares: int, *, equal: bool) -> Iterator[T]:
    held: list[T] = []
    for number, element in enumerate(stream):
        if number % shares == mine:
            held.append(element)
        if held and (not equal or number % shares == shares - 1):  # with equal: once the round is known to be whole
            yield held.pop()


def _place(rank: int | None, num_ranks: int | None) -> tuple[int, int]:
    """Return the number of this share and of all: workers of a rank lie next to each other."""
    rank, num_ranks = ranks(rank, num_ranks)
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
    return rank * workers + worker, num_ranks * workers


def ranks(rank: int | None = None, num_ranks: int | None = None) -> tuple[int, int]:
    """Return this rank and the number of ranks: as given, of the process group, of torchrun, or one alone.

    Raises:
        ValueError: ``rank`` is not below ``num_ranks``, or only one of them is given.
    """
    _check(rank, num_ranks)
    if rank is not None and num_ranks is not None:
        return rank, num_ranks
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _check(rank: int | None, num_ranks: int | None) -> None:
    if (rank is None) != (num_ranks is None) or (rank is not None and not 0 <= rank < (num_ranks or 0)):
        raise ValueError(
            f"Sharding needs 0 <= rank < num_ranks, not rank={rank} and num_ranks={num_ranks}; "
            "leave both out to take them from the process group."
        )

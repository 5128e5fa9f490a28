"""Splits a stream among ranks and workers.

What it cures
    `data-stall` of an `IterableDataset`: with it a stream can be loaded by several workers. Without it each worker (and
    each rank) would repeat the whole stream.

When it does not help
    When reading the stream is itself the cost: every worker still reads all of it and keeps its share, so only what
    comes after this wrapper is spread. Then give each worker files of its own: `share_of(files)` in the dataset.

Cost
    Reading the stream once for each worker. With ``equal`` up to ranks × workers - 1 samples at its end are left out.
    Going on within an epoch reads the stream from its start and drops what was used before.

Numerics
    Every sample once an epoch. The order, and which samples are in a batch together, depend on the number of workers.

Example::

    from diagnose.kernels.sharding import ShardedStream

    loader = DataLoader(ShardedStream(stream), batch_size=16, num_workers=2)
    for epoch in range(epochs):
        loader.dataset.set_epoch(epoch)  # reaches the stream, if it shuffles by it, in workers that stay, too
        for batch in loader:
            train_step(batch)

    # A run that goes on after 100 batches of epoch 3; torchdata's StatefulDataLoader does it by itself.
    loader.dataset.load_state_dict({"epoch": 3, "batches": 100, "batch_size": 16})
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

__all__ = ["ShardedStream", "ranks", "share_of"]

T = TypeVar("T")

MAX_WORKERS = 1024
"""Workers of one loader that a loaded position can reach."""

_EPOCH, _IN_WORKERS, _IS_OURS, _LOADS, _BATCHES, _BATCH_SIZE, _SERVED = range(
    7
)  # places in the memory that workers share


class ShardedStream(IterableDataset[T]):
    """Yields those elements of ``stream`` that belong to this rank and worker: every n-th one.

    Rank and number of ranks are those of the process group, of torchrun's environment, or one; they may be given. With
    ``equal`` (the default where there are several ranks) every share has the same length, as gradient exchange needs.

    The position within an epoch is that of the share: `state_dict` and `load_state_dict` are what torchdata's
    StatefulDataLoader calls, in each worker. With torch's DataLoader they serve where it has no workers; with workers,
    load ``{"epoch": …, "batches": …, "batch_size": …}``, with the number of batches that the loop got.

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
        self._shared = torch.zeros(_SERVED + MAX_WORKERS, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._shared[_EPOCH] = -1
        self._loaded: int | None = None  # where the next loop of this process starts
        self._position = [0]  # of the newest loop in this process

    def __iter__(self) -> Iterator[T]:
        """Yield this rank's and worker's share, from a loaded position on.

        Raises:
            RuntimeError: with the first element: a position was loaded that is not the workers'.
        """
        in_worker, (worker, workers) = get_worker_info() is not None, _worker()
        if in_worker and self._shared[_IS_OURS]:
            return _refused()  # a worker that stays would end by an error here, which names no cause
        if in_worker and self._epoch is not None:  # as of this iteration: the worker may be older
            self._hand_over(self._epoch)
        self._shared[_IN_WORKERS] = int(in_worker)
        worker, skip = self._start(worker, workers)
        rank, num_ranks = ranks(self.rank, self.num_ranks)
        equal = self.equal if self.equal is not None else num_ranks > 1
        share = _every(self.stream, rank * workers + worker, num_ranks * workers, equal=equal)
        self._position = [skip]
        return _counted(islice(share, skip, None), self._position)

    def __getstate__(self) -> dict[str, Any]:
        """Fix rank and number of ranks: a spawned worker has no process group to ask."""
        rank, num_ranks = ranks(self.rank, self.num_ranks)
        return {**self.__dict__, "rank": rank, "num_ranks": num_ranks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared.share_memory_()  # a copy's is not

    def set_epoch(self, epoch: int) -> None:
        """Choose the next loop's epoch, for the stream too if it takes one, and in workers that live on.

        A position that was loaded is kept for its epoch only.
        """
        if epoch != self._epoch:
            self._loaded, self._position = None, [0]
            self._shared[_EPOCH] = epoch
            self._shared[_BATCHES] = self._shared[_IS_OURS] = 0
        self._hand_over(epoch)

    def state_dict(self) -> dict[str, int | None]:
        """Return the position of the newest loop in this process: the epoch, and how many elements it yielded.

        Raises:
            RuntimeError: this is the training process, and workers iterate.
        """
        if get_worker_info() is None and self._shared[_IN_WORKERS]:
            raise RuntimeError(
                "Only its workers know the position of this stream: use torchdata's StatefulDataLoader, or keep "
                "{'epoch': ..., 'batches': ..., 'batch_size': ...} for load_state_dict."
            )
        return {"epoch": self._epoch, "elements": self._position[0]}

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        """Go on at a position, in the next loop; ranks and workers must be as many as before.

        Raises:
            ValueError: it is the state of something else.
        """
        elements, batches, batch_size = (state.get(name) for name in ("elements", "batches", "batch_size"))
        if "epoch" not in state or (elements is None and (batches is None or batch_size is None)):
            raise ValueError(f"A state with {sorted(state)} is not one of ShardedStream.")
        if state["epoch"] is not None:
            self.set_epoch(state["epoch"])
        if elements is not None:
            self._loaded, self._position = elements, [elements]
            self._shared[_IS_OURS] = int(get_worker_info() is None)
            return
        self._shared[_BATCHES], self._shared[_BATCH_SIZE] = batches, batch_size
        self._shared[_LOADS] += 1
        self._shared[_IN_WORKERS] = 1

    @property
    def _epoch(self) -> int | None:
        epoch = int(self._shared[_EPOCH])
        return None if epoch < 0 else epoch

    def _hand_over(self, epoch: int) -> None:
        set_epoch = getattr(self.stream, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    def _start(self, worker: int, workers: int) -> tuple[int, int]:
        """Return whose share this worker takes up, and how many of its elements were used before."""
        if self._loaded is not None:
            skip, self._loaded = self._loaded, None
            self._shared[_IS_OURS] = 0
            return worker, skip
        loads, place = self._shared[_LOADS].clone(), _SERVED + worker
        if self._shared[place] == loads:  # no position, or an earlier loop's
            return worker, 0
        self._shared[place if get_worker_info() is not None else slice(_SERVED, None)] = loads
        batches, size = int(self._shared[_BATCHES]), int(self._shared[_BATCH_SIZE])
        worker = (worker + batches) % workers  # a loader asks its first worker first
        return worker, size * len(range(worker, batches, workers))


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


def _refused() -> Iterator[Any]:
    yield from ()
    raise RuntimeError("The position that ShardedStream loaded is that of a loader without workers.")


def _counted(elements: Iterator[T], position: list[int]) -> Iterator[T]:
    for element in elements:
        position[0] += 1
        yield element


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


def _place(rank: int | None, num_ranks: int | None) -> tuple[int, int]:
    """Return the number of this share and of all: workers of a rank lie next to each other."""
    rank, num_ranks = ranks(rank, num_ranks)
    worker, workers = _worker()
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

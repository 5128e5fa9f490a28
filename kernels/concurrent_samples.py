"""Loads the samples of a batch on several threads.

What it cures
    `data-stall` and `off-cpu` where a sample waits for a disk, an object store or a service: a batch of 32 then waits
    32 times in a row, in the training process as in each worker process.

When it does not help
    When samples are computed by Python code, which holds the interpreter's lock: then worker processes do. When the
    storage serves one request at a time.

Cost
    ``threads`` threads in each process that loads, and as many samples under way at once. torch operators in the
    dataset run on those threads.

Numerics
    The same samples in the same order, if ``dataset[i]`` may be called by several threads at once. One open file whose
    position all calls move (an h5py or tarfile handle kept in the dataset) may not; a file that each call opens, an
    array in memory or an HTTP client may. A dataset that draws from the global random generators would draw in no
    certain order; where the first batch shows that it does, samples are loaded one by one as before, with a
    warning.

Example::

    from diagnose.kernels.concurrent_samples import ConcurrentSamples

    loader = DataLoader(ConcurrentSamples(dataset, threads=8), batch_size=16, num_workers=2)
    for batch in loader:
        train_step(batch)
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

from torch.utils.data import Dataset, IterableDataset, Subset

from diagnose.kernels._state import fingerprint

__all__ = ["ConcurrentSamples", "gives_whole_batches"]

T = TypeVar("T")


def gives_whole_batches(dataset: object) -> bool:
    """Return whether the dataset has a way of its own to load a batch at once.

    That of ``Subset``, which ``random_split`` makes, hands on to the dataset that it is a part of.
    """
    return callable(getattr(_whole(dataset), "__getitems__", None))


def _whole(dataset: object) -> object:
    """Return the dataset that parts of parts were taken from."""
    while isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        dataset = dataset.dataset
    return dataset


class ConcurrentSamples(Dataset[T]):
    """The samples of ``dataset``; those that a DataLoader asks for at once are loaded by ``threads`` threads.

    Everything else of the dataset (its length, its attributes) is found here too. The first batch of each process is
    loaded one by one. An error of a sample arrives as it would from a plain loop: that of the earliest sample.

    Raises:
        TypeError: ``dataset`` is a stream, has no samples by index, or gives whole batches already.
        ValueError: ``threads`` is less than two.
    """

    def __init__(self, dataset: Dataset[T], *, threads: int = 8) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"ConcurrentSamples needs a dataset with samples by index, not the stream {type(dataset).__name__}; "
                "load a stream ahead with diagnose.kernels.BackgroundLoader, or in several workers through "
                "diagnose.kernels.ShardedStream."
            )
        if gives_whole_batches(dataset):
            raise TypeError(
                f"ConcurrentSamples got a {type(_whole(dataset)).__name__}, which gives whole batches (__getitems__); "
                "load its samples concurrently in there."
            )
        if threads < 2:
            raise ValueError(f"ConcurrentSamples needs threads >= 2, not {threads}; use the dataset itself for one.")
        self.dataset, self.threads = dataset, threads
        self._pool: ThreadPoolExecutor | None = None
        self._tried_in = 0  # the process that has looked whether samples draw random numbers
        self._draws = False

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # as the dataset has one

    def __getitem__(self, index: Any) -> T:  # whatever the sampler gives
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[Any]) -> list[T]:
        """Return the samples of a batch, in order."""
        if self._tried_in != os.getpid():
            return self._first(indices)
        if self._draws or len(indices) < 2:
            return [self.dataset[index] for index in indices]
        return self._together(indices)

    def __getattr__(self, name: str) -> Any:  # as the dataset has it
        if name == "dataset":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_tried_in": 0}

    def _first(self, indices: Sequence[Any]) -> list[T]:
        """Load one by one, and see whether that draws."""
        self._pool = None  # its threads are those of the process that this one was forked from
        before = fingerprint()
        samples = [self.dataset[index] for index in indices]
        self._draws, self._tried_in = before != fingerprint(), os.getpid()
        if self._draws:
            warnings.warn(
                "ConcurrentSamples loads one sample after the other: the dataset draws from the global random "
                "generators, which threads would share in no certain order; give each sample its own generator.",
                stacklevel=2,
            )
        return samples

    def _together(self, indices: Sequence[Any]) -> list[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="load-samples")
        samples: list[Any] = [None] * len(indices)
        errors: dict[int, BaseException] = {}
        places = itertools.count()

        def load(at: int) -> None:
            try:
                samples[at] = self.dataset[indices[at]]
            except BaseException as error:  # it is raised where the batch was asked for
                errors[at] = error

        def work() -> None:
            while (at := next(places)) < len(indices) and not errors:
                load(at)

        wait([self._pool.submit(work) for _ in range(min(self.threads, len(indices)))])
        if errors:
            raise errors[min(errors)]
        return samples

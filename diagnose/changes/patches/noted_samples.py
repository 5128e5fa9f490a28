"""Datasets of a trial that can be asked, from the process that made them, whether they took themselves back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from diagnose.kernels._state import fingerprint, random_state
from diagnose.kernels.concurrent_samples import ConcurrentSamples
from diagnose.kernels.shared_cache import SharedCache


def _note() -> torch.Tensor:
    """Return one byte in memory that worker processes share."""
    note = torch.zeros(1, dtype=torch.uint8)
    share: Any = note.share_memory_
    share()
    return note


class NotedSamples(ConcurrentSamples[Any]):
    """`ConcurrentSamples` with a note in memory that worker processes share."""

    def __init__(self, dataset: Dataset[Any], *, threads: int) -> None:
        super().__init__(dataset, threads=threads)
        self._note = _note()

    def fell_back(self) -> bool:
        """Return whether any process found that samples draw random numbers, and loads them one by one."""
        return bool(self._note.item())

    def _first(self, indices: Sequence[Any]) -> list[Any]:
        samples = super()._first(indices)
        if self._draws:
            self._note.fill_(1)
        return samples


class CachedSamples(Dataset[Any]):
    """The samples of ``dataset``, kept in a `SharedCache` once they were loaded.

    Where a process finds that its first sample draws random numbers, or does not repeat itself, all are loaded as
    before, and the generators are where they would be.
    """

    def __init__(self, dataset: Dataset[Any], *, num_bytes: int) -> None:
        self.dataset = dataset
        self._kept = SharedCache(num_bytes).stage(_Loads(dataset), name="samples")
        self._note = _note()
        self._tried_in = 0  # the process that knows whether samples repeat themselves
        self._repeats = True

    def fell_back(self) -> bool:
        """Return whether any process found that samples differ from load to load."""
        return bool(self._note.item())

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # as the dataset has one

    def __getitem__(self, index: Any) -> Any:  # as the dataset has them
        if not hasattr(index, "__index__") or (self._tried_in == os.getpid() and not self._repeats):
            return self.dataset[index]
        return self._kept(index) if self._tried_in == os.getpid() else self._first(index)

    def __getattr__(self, name: str) -> Any:  # as the dataset has it
        if name in ("dataset", "__getitems__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _first(self, index: Any) -> Any:
        """Load a sample as before, and see whether that draws; then whether loading it again gives the same."""
        before = fingerprint()
        sample = self.dataset[index]
        self._tried_in, self._repeats = os.getpid(), before == fingerprint()
        if self._repeats:
            restore = random_state()
            try:
                self._kept(index)
            except ValueError:  # it is not deterministic
                restore()
                self._repeats = False
        if not self._repeats:
            self._note.fill_(1)
        return sample


class _Loads:
    """Loads a sample by its index; the same function for every copy of the dataset."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset
        self.__module__, self.__qualname__ = type(dataset).__module__, type(dataset).__qualname__

    def __call__(self, index: int) -> Any:  # a sample
        return self.dataset[index]

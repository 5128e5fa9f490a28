"""Concurrent samples that can be asked, from the process that made them, whether they fell back to one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from diagnose.kernels.concurrent_samples import ConcurrentSamples

__all__ = ["NotedSamples"]


class NotedSamples(ConcurrentSamples[Any]):
    """`ConcurrentSamples` with a note in memory that worker processes share."""

    def __init__(self, dataset: Dataset[Any], *, threads: int) -> None:
        super().__init__(dataset, threads=threads)
        self._note = torch.zeros(1, dtype=torch.uint8)
        share: Any = self._note.share_memory_
        share()

    def fell_back(self) -> bool:
        """Return whether any process found that samples draw random numbers, and loads them one by one."""
        return bool(self._note.item())

    def _first(self, indices: Sequence[Any]) -> list[Any]:
        samples = super()._first(indices)
        if self._draws:
            self._note.fill_(1)
        return samples

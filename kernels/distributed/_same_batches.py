"""Refuses batches that differ among ranks which must all be given the same one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from diagnose.kernels._nested import tensors
from diagnose.kernels.deferred_metrics import DeferredMetrics

__all__ = ["SameOnRanks", "apart", "checksum", "generator_state"]

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SameOnRanks:
    """Compares what the ranks of ``group`` are given, step by step; ``sentences``: what to raise, one for each thing.

    The first comparison waits for the answer. Later ones on a GPU wait for nothing, and raise in the first step after
    the answer has arrived.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, sentences: tuple[str, ...]) -> None:
        self._group, self._device, self._sentences = group, device, sentences
        self._answers = DeferredMetrics()
        self._steps = 0

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch's has no types
    def check(self, *given: Any) -> None:
        """Compare one batch, or any nesting of tensors, for each sentence; all ranks call it.

        Raises:
            ValueError: ranks were given different ones, in this step or an earlier one.
        """
        differ = apart(torch.stack([checksum(batch).to(self._device) for batch in given]), self._group)
        self._steps += 1
        self._answers.push(self._steps, **dict(zip(self._sentences, differ.unbind(), strict=True)))
        at_once = self._steps == 1 or self._device.type == "cpu"
        for _, values in self._answers.drain() if at_once else self._answers.ready():
            if found := next((sentence for sentence in self._sentences if values[sentence]), ""):
                raise ValueError(found)


def checksum(batch: Any) -> Tensor:
    """Return an integer of all tensors of a batch, a scalar; exact, so that equal batches have equal ones."""
    total = torch.zeros((), dtype=torch.int64)
    for tensor in tensors(batch):
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        words = values.detach().contiguous().reshape(-1).view(WORDS[values.element_size()])
        rows = words.view(-1, values.shape[-1] if values.dim() and values.numel() else 1).sum(1, dtype=torch.int64)
        weights = torch.arange(1, len(rows) + 1, device=rows.device)
        total = 31 * total.to(rows.device) + (rows * weights).sum() + len(rows)
    return total


def generator_state(device: torch.device) -> Tensor:
    """Return the state of the generator that dropout on this device draws from."""
    return torch.get_device_module(device).get_rng_state(device) if device.type != "cpu" else torch.get_rng_state()


def apart(sums: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return, for each integer of a vector, zero if it is the same on all ranks of the group."""
    ends = torch.cat([sums, -sums])
    dist.all_reduce(ends, dist.ReduceOp.MAX, group=group)
    return ends[: len(sums)] + ends[len(sums) :]

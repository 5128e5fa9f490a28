"""Weights that make a mean over ranks the mean over samples, also where ranks end at different batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._agreement import group_of

__all__ = ["LossWeights", "uneven_ends"]


class LossWeights(Joinable):
    """Computes what to multiply a rank's mean loss with, so that DDP's mean over ranks is the mean over all samples.

    Raises:
        TypeError: the model is not in DistributedDataParallel.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        super().__init__()
        self._group = group_of(ddp, "LossWeights")
        self._device = next(ddp.parameters()).device

    def factor(self, count: Tensor | int) -> Tensor:
        """Return count × ranks / all counts, a scalar on the model's device; call it before the forward, on all ranks.

        ``count`` is the rank's number of samples, or of tokens, that its loss is a mean over.

        Raises:
            ValueError: ``count`` is a number less than one.
        """
        if not isinstance(count, Tensor) and count < 1:
            raise ValueError(f"factor needs a count >= 1, not {count}; end the loop under uneven_ends instead.")
        Join.notify_join_context(self)
        if isinstance(count, Tensor):
            mine = count.to(self._device, torch.float32)
        else:
            mine = torch.full((), float(count), device=self._device)  # no copy from the host, which would be waited for
        return mine * self._group.size() / self._summed(mine)

    def _summed(self, mine: Tensor) -> Tensor:
        everyones = mine.clone()
        dist.all_reduce(everyones, group=self._group)
        return everyones

    def join_hook(self, **_: Any) -> JoinHook:  # torch's own signature
        """Return what a rank without batches does in the others' steps."""
        return _AddsNothing(self)

    @property
    def join_device(self) -> torch.device:
        """Return the model's device."""
        return self._device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """Return the model's ranks."""
        return self._group


class _AddsNothing(JoinHook):
    def __init__(self, weights: LossWeights) -> None:
        self.weights = weights

    def main_hook(self) -> None:
        self.weights._summed(torch.zeros((), device=self.weights.join_device))


def uneven_ends(ddp: DistributedDataParallel, weights: LossWeights, *others: Joinable) -> Join:
    """Return the context for a loop whose ranks have different numbers of batches; those that end wait inside it.

    The fallback where batches cannot be shared out beforehand. ``weights.factor`` must be called in each step, before
    the forward: with it the gradients are exact up to the end. ``others`` are ZeroRedundancyOptimizers.
    """
    return Join([weights, ddp, *others])

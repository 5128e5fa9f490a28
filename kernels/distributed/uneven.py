"""Gives slower ranks smaller batches, by measured speed, and weights losses so that gradients stay exact.

What it cures
    `straggler`, and `exposed-communication` that is waiting for it: with unequal devices each step lasts as long as
    that of the slowest rank.

When it does not help
    Ranks that are late by turns (data, other processes), or for a reason that a smaller batch does not change. Layers
    that read the batch (BatchNorm) see other sizes on other ranks: use SyncBatchNorm, or norms that do not.

Cost
    One number is summed over ranks in each step; speeds are exchanged every ``every`` steps. On a GPU two events a
    step.

Numerics
    Exactly the gradient of the mean over all samples of all ranks, whatever the shares: a loss that is a mean over the
    rank's samples is multiplied by its count × ranks / all samples. Without that, a rank's few samples would weigh as
    much as another's many. Which sample is in which global batch does not depend on the shares.

Example::

    from diagnose.kernels.distributed.uneven import Balance, LossWeights, UnevenBatches

    ddp = DistributedDataParallel(model)
    sampler = UnevenBatches(len(dataset), 64, seed=0)  # 64 samples over all ranks
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler)
    weights, balance = LossWeights(ddp), Balance(ddp, sampler, every=50)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            factor = weights.factor(len(y))  # before the forward
            (criterion(ddp(x), y) * factor).backward()
            optimizer.step()
            optimizer.zero_grad()
            balance.after_step(len(y))
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Sampler

from diagnose.kernels.distributed._agreement import whole_group
from diagnose.kernels.distributed._shares import shares

__all__ = ["Balance", "LossWeights", "UnevenBatches", "shares", "uneven_ends"]

EVERY = 50  # steps between exchanges of speeds
SMOOTHING = 0.5  # weight of the newest measurement: settles in a few exchanges, and one outlier halves
WORTH = 0.05  # of the step: shares stay as they are for less


class UnevenBatches(Sampler[list[int]]):
    """Batch sampler: cuts a shuffled epoch into global batches of ``total`` samples, and each by the ranks' ``counts``.

    Give it to a DataLoader as ``batch_sampler``. The last global batch may be smaller; it is left out where it has not
    a sample for each rank.

    Raises:
        ValueError: ``total`` has not one sample for each rank, or there are fewer samples than that.
    """

    def __init__(
        self,
        num_samples: int,
        total: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        group = whole_group(group)
        self.rank, self.num_ranks = group.rank(), group.size()
        if total < self.num_ranks or num_samples < self.num_ranks:
            raise ValueError(
                f"UnevenBatches needs a sample for each of {self.num_ranks} ranks in a batch, not {num_samples} "
                f"samples in batches of {total} over all ranks."
            )
        self.num_samples, self.total, self.shuffle, self.seed = num_samples, total, shuffle, seed
        self.epoch = -1
        self.drawn = 0  # the number of the next batch, over all epochs
        self._plan = [(0, shares(total, [1.0] * self.num_ranks))]

    @property
    def counts(self) -> list[int]:
        """Return how many samples of a whole batch each rank gets from now on."""
        return self._counts_of(self.drawn)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; without it each pass takes the next one."""
        self.epoch = epoch - 1

    def set_counts(self, counts: Sequence[int], from_batch: int) -> None:
        """Take other counts from a batch on that no rank has drawn yet; the same on all ranks.

        Raises:
            ValueError: they do not sum to ``total``, leave a rank without one, or begin with a batch drawn already.
        """
        if sum(counts) != self.total or min(counts) < 1 or len(counts) != self.num_ranks:
            raise ValueError(f"Counts must be {self.num_ranks} of one or more that sum to {self.total}, not {counts}.")
        if from_batch < self.drawn:
            raise ValueError(f"Batch {from_batch} was drawn already; other counts can begin with {self.drawn}.")
        self._plan = [(n, c) for n, c in self._plan if n < from_batch] + [(from_batch, list(counts))]

    def __len__(self) -> int:
        return self.num_samples // self.total + (self.num_samples % self.total >= self.num_ranks)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's indices, batch by batch."""
        self.epoch += 1
        order = self._order()
        for number in range(len(self)):
            self.drawn = self.epoch * len(self) + number
            batch = order[number * self.total : (number + 1) * self.total]
            counts = self._counts_of(self.drawn)
            if len(batch) < self.total:
                counts = shares(len(batch), list(map(float, counts)))
            self.drawn += 1
            start = sum(counts[: self.rank])
            yield batch[start : start + counts[self.rank]]

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self.num_samples))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return list(map(int, torch.randperm(self.num_samples, generator=generator).tolist()))

    def _counts_of(self, number: int) -> list[int]:
        return next(counts for start, counts in reversed(self._plan) if number >= start)


class LossWeights(Joinable):
    """Computes what to multiply a rank's mean loss with, so that DDP's mean over ranks is the mean over all samples."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        super().__init__()
        self._group = ddp.process_group
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

    def join_hook(self, **_: Any) -> JoinHook:  # noqa: ANN401  # torch's own signature
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


class Balance:
    """Measures how fast each rank computes, and moves samples to the fast ones.

    The forward of the model without DDP is timed, which waits for no other rank. Every ``every`` steps the speeds are
    exchanged; counts change where the slowest rank would gain 5 %. ``limit`` is what a rank's memory holds.

    Raises:
        ValueError: ``every`` is less than one, or ``limit`` × ranks less than the batch.
    """

    def __init__(
        self, ddp: DistributedDataParallel, sampler: UnevenBatches, *, every: int = EVERY, limit: int | None = None
    ) -> None:
        if every < 1:
            raise ValueError(f"Balance needs every >= 1, not {every}.")
        shares(sampler.total, [1.0] * sampler.num_ranks, limit=limit)
        self.sampler, self.every, self.limit = sampler, every, limit
        self.rates: list[float] = []  # samples a second of each rank, smoothed
        self._group, self._device = ddp.process_group, next(ddp.parameters()).device
        self._times: list[tuple[Any, Any]] = []
        self._steps = self._samples = 0
        self._handles = [
            ddp.module.register_forward_pre_hook(lambda *_: self._begin()),
            ddp.module.register_forward_hook(lambda *_: self._end()),
        ]

    def after_step(self, count: int) -> bool:
        """Count a step of ``count`` samples, on all ranks; return whether the counts changed."""
        self._steps += 1
        self._samples += count
        if self._steps % self.every:
            return False
        return self._rebalance()

    def close(self) -> None:
        """Stop measuring."""
        for handle in self._handles:
            handle.remove()

    def _begin(self) -> None:
        if torch.is_grad_enabled():  # an evaluation in between is no step
            self._times.append((_now(self._device), None))

    def _end(self) -> None:
        if self._times and self._times[-1][1] is None:
            self._times[-1] = self._times[-1][0], _now(self._device)

    def _rebalance(self) -> bool:
        seconds = sum(_seconds(*pair) for pair in self._times if pair[1] is not None)
        mine = [self._samples / seconds if seconds > 0 else 0.0, float(self.sampler.drawn)]
        self._times, self._samples = [], 0
        exchanged: list[Any] = [None] * self.sampler.num_ranks
        dist.all_gather_object(exchanged, mine, group=self._group)
        newest = [rate for rate, _ in exchanged]
        if not all(newest):
            return False
        self.rates = [
            SMOOTHING * new + (1 - SMOOTHING) * old for new, old in zip(newest, self.rates or newest, strict=True)
        ]
        first = int(max(drawn for _, drawn in exchanged))
        now = self.sampler._counts_of(first)
        better = shares(self.sampler.total, self.rates, limit=self.limit)
        if _longest(better, self.rates) > (1 - WORTH) * _longest(now, self.rates):
            return False
        self.sampler.set_counts(better, first)
        return True


def _longest(counts: Sequence[int], rates: Sequence[float]) -> float:
    return max(count / rate for count, rate in zip(counts, rates, strict=True))


def _now(device: torch.device) -> Any:  # noqa: ANN401  # seconds, or an event of the device
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds(start: Any, end: Any) -> float:  # noqa: ANN401  # seconds, or an event of the device
    if isinstance(start, float):
        return float(end) - start
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3

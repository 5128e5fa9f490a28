"""Gives slower ranks smaller batches and keeps gradients exact.

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
        checkpoint = {"sampler": sampler.state_dict(), "balance": balance.state_dict()}  # the same on all ranks
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._agreement import group_of
from diagnose.kernels.distributed._loss_weights import LossWeights, uneven_ends
from diagnose.kernels.distributed._shares import shares
from diagnose.kernels.distributed._uneven_batches import UnevenBatches

__all__ = ["Balance", "LossWeights", "UnevenBatches", "shares", "uneven_ends"]

EVERY = 50  # steps between exchanges of speeds
SMOOTHING = 0.5  # weight of the newest measurement: settles in a few exchanges, and one outlier halves
MIN_GAIN_SHARE = 0.05  # of the step: shares stay as they are for less


class Balance:
    """Measures how fast each rank computes, and moves samples to the fast ones.

    The forward of the model without DDP is timed, which waits for no other rank. Every ``every`` steps the speeds are
    exchanged; counts change where the slowest rank would gain 5 %. ``limit`` is what a rank's memory holds.

    Raises:
        ValueError: ``every`` is less than one, or ``limit`` × ranks less than the batch.
        TypeError: the model is not in DistributedDataParallel.
    """

    def __init__(
        self, ddp: DistributedDataParallel, sampler: UnevenBatches, *, every: int = EVERY, limit: int | None = None
    ) -> None:
        if every < 1:
            raise ValueError(f"Balance needs every >= 1, not {every}.")
        group = group_of(ddp, "Balance")
        shares(sampler.total, [1.0] * sampler.num_ranks, limit=limit)
        self.sampler, self.every, self.limit = sampler, every, limit
        self.rates: list[float] = []  # samples a second of each rank, smoothed
        self._group, self._device = group, next(ddp.parameters()).device
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

    def state_dict(self) -> dict[str, Any]:
        """Return the speeds and the steps so far, the same on all ranks; the sampler's state has the counts."""
        return {"rates": list(self.rates), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these speeds, on all ranks; those of another number of ranks are left out, and measured anew.

        Raises:
            ValueError: it is the state of something else.
        """
        if set(state) != {"rates", "steps"}:
            raise ValueError(f"A state with {sorted(state)} is not one of Balance.")
        rates = list(map(float, state["rates"]))
        self.rates = rates if len(rates) == self.sampler.num_ranks else []
        self._steps = int(state["steps"])
        self._times, self._samples = [], 0

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
        if _longest(better, self.rates) > (1 - MIN_GAIN_SHARE) * _longest(now, self.rates):
            return False
        self.sampler.set_counts(better, first)
        return True


def _longest(counts: Sequence[int], rates: Sequence[float]) -> float:
    return max(count / rate for count, rate in zip(counts, rates, strict=True))


def _now(device: torch.device) -> Any:  # seconds, or an event of the device
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds(start: Any, end: Any) -> float:  # seconds, or an event of the device
    if isinstance(start, float):
        return float(end) - start
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3

"""Accumulates gradients over small batches, exactly as one large batch would.

What it cures
    `memory-pressure` at the batch size that training needs; and `exposed-communication`, since gradients are exchanged
    once for several batches instead of after each.

When it does not help
    When the small batches leave the device idle: the largest batch that fits is the fastest. BatchNorm sees the small
    batches, whatever is accumulated.

Cost
    One multiplication of all gradients a step, and with several ranks the sum of one number. The loop looks one batch
    ahead.

Numerics
    The gradients of the mean over all samples (or tokens) of the window and of all ranks, also where batches differ in
    size: each is weighted by its count. Equal to the large batch but for rounding (relative 1e-6 in float32).

Example::

    from diagnose.kernels.accumulation import GradientAccumulation

    accumulation = GradientAccumulation(model, optimizer, every=4, clip_norm=1.0, scheduler=scheduler)
    for epoch in range(epochs):
        for x, y in accumulation.over(loader):
            with accumulation.micro_batch(len(x)) as micro:  # forward and backward both within
                micro.backward(criterion(model(x), y))  # a mean over its samples
        # the last window was shorter, and has been stepped too
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnose.kernels.precision import Precision

__all__ = ["GradientAccumulation", "MicroBatch"]

T = TypeVar("T")


class Scheduler(Protocol):
    """What is stepped once for each optimizer step."""

    def step(self) -> object:
        """Go on by one step."""


class MicroBatch:
    """One small batch of a window; made by ``GradientAccumulation.micro_batch``."""

    def __init__(self, backward: Callable[[Tensor], None], *, is_last: bool) -> None:
        self._backward, self.is_last = backward, is_last
        self.num_backward = 0

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss that is a mean over the batch."""
        self._backward(loss)
        self.num_backward += 1


class GradientAccumulation:
    """Steps the optimizer once for every ``every`` batches of a loop.

    ``model`` may be plain, in DistributedDataParallel, or sharded by ``fully_shard``; gradients are exchanged in the
    last batch of each window only. ``precision`` brings the scaler along, ``group`` the ranks that hold other samples
    (default: all).

    Raises:
        ValueError: ``every`` is less than one.
    """

    def __init__(  # what a step consists of
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        every: int,
        precision: Precision | None = None,
        clip_norm: float | None = None,
        scheduler: Scheduler | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"GradientAccumulation needs every >= 1, not {every}; 1 steps after each batch.")
        self.model, self.optimizer, self.every = model, optimizer, every
        self.precision = precision or Precision("cpu", torch.float32)
        self.clip_norm, self.scheduler, self.group = clip_norm, scheduler, group
        self._stepped, self._skipped_before = 0, self.precision.skipped_on_device
        self._num = 0  # batches of this window so far
        self._total: Tensor | float = 0.0  # samples of this window so far, in this rank
        self._unit: float | None = None  # counts are given in multiples of this one, so that losses keep their size
        self._is_within = False  # a block of micro_batch
        self._ends: bool | None = None  # whether the current batch is the loop's last; None: not known

    @property
    def steps(self) -> int:
        """Return how often the optimizer stepped; windows that a scaler skipped for infinite gradients do not count.

        What a fused optimizer skips on the device is known two steps later.
        """
        return self._stepped - (self.precision.skipped_on_device - self._skipped_before)

    def over(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches, and mark the last of all for ``micro_batch``.

        Raises:
            RuntimeError: a loop before was left in the middle of a window.
        """
        if self._num:
            raise RuntimeError("A window is still open: a loop was left early. Call flush() or drop() before the next.")
        source = iter(batches)
        end = object()
        batch = next(source, end)
        try:
            while batch is not end:
                coming = next(source, end)
                self._ends = coming is end
                yield batch  # type: ignore[misc]  # it is no end
                batch = coming
        finally:
            self._ends = None

    @contextmanager
    def micro_batch(self, count: Tensor | int) -> Iterator[MicroBatch]:
        """Run one small batch of ``count`` samples (or tokens); after the last one of the window step.

        A tensor on the device as ``count`` is not waited for. An error in the block drops the window's gradients, and
        the next batch begins a new window.

        Raises:
            ValueError: ``count`` is a number less than one.
            RuntimeError: the block ended without ``backward``, or lies within another one.
        """
        if self._is_within:
            raise RuntimeError("micro_batch was entered within another one; give each model a GradientAccumulation.")
        if not isinstance(count, Tensor) and count < 1:
            raise ValueError(f"micro_batch needs a count >= 1, not {count}; leave empty batches out, on all ranks.")
        is_last = self._num + 1 == self.every or self._ends is True
        weight = count / self._unit_for(count)
        micro = MicroBatch(lambda loss: self.precision.backward(loss * weight), is_last=is_last)
        self._is_within = True
        try:
            if self._num == 0:
                self.optimizer.zero_grad(set_to_none=True)
            with self._exchanging(is_last):
                yield micro
            if not micro.num_backward:
                raise RuntimeError("micro_batch ended without micro.backward(loss); call it within the block.")
        except BaseException:
            self.drop()
            raise
        finally:
            self._is_within = False
        self._num += 1
        self._total = self._total + weight
        if is_last:
            self._step()

    def flush(self) -> bool:
        """Step with what a window holds so far; return whether it held anything. Loops through ``over`` need none.

        Raises:
            RuntimeError: the model exchanges gradients between ranks, which is decided in the last backward pass.
        """
        if self._num == 0:
            return False
        if self._num_ranks() > 1:
            self.drop()
            raise RuntimeError(
                "A window ended early on several ranks, and its gradients were not exchanged; write the loop as "
                "`for batch in accumulation.over(loader)`, which marks the last batch."
            )
        self._step()
        return True

    def __enter__(self) -> GradientAccumulation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        else:
            self.drop()

    def _step(self) -> None:
        total = self._total
        if self._num_ranks() > 1:  # gradients are means over ranks; what is wanted is the mean over all their samples
            everywhere = torch.as_tensor(total, dtype=torch.float64 if _is_host(self.model) else torch.float32)
            everywhere = everywhere.to(_device(self.model), copy=True)
            dist.all_reduce(everywhere, group=self.group)
            total = everywhere / self._num_ranks()
        factor = 1 / total
        factor = factor.to(_device(self.model), torch.float32) if isinstance(factor, Tensor) else factor
        self._num, self._total = 0, 0.0
        try:
            stepped = self.precision.step(self.optimizer, clip_norm=self.clip_norm, scale_by=factor)
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        if stepped:
            self._stepped += 1
            if self.scheduler is not None:
                self.scheduler.step()

    def drop(self) -> None:
        """Forget the window that is open, and its gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        self._num, self._total = 0, 0.0

    def _unit_for(self, count: Tensor | int) -> float:
        """Return the first count of all, the same on every rank."""
        if self._unit is None:
            first = torch.as_tensor(count, dtype=torch.float32).detach().clone()
            if self._num_ranks() > 1:
                first = first.to(_device(self.model))
                dist.all_reduce(first, dist.ReduceOp.MAX, group=self.group)
            self._unit = max(float(first), 1.0)
        return self._unit

    def _num_ranks(self) -> int:
        exchanges = _no_sync(self.model) is not None or hasattr(self.model, "set_requires_gradient_sync")
        return dist.get_world_size(self.group) if exchanges and dist.is_initialized() else 1

    @contextmanager
    def _exchanging(self, wanted: bool) -> Iterator[None]:
        """Let the model exchange gradients in the backward pass within, or not."""
        set_sync = getattr(self.model, "set_requires_gradient_sync", None)
        if set_sync is not None:
            set_sync(wanted)
            try:
                yield
            finally:
                set_sync(True)
            return
        no_sync = _no_sync(self.model)
        with nullcontext() if wanted or no_sync is None else no_sync():
            yield


def _no_sync(model: nn.Module) -> Callable[[], AbstractContextManager[Any]] | None:
    found = getattr(model, "no_sync", None)
    return found if callable(found) else None


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _is_host(model: nn.Module) -> bool:
    return _device(model).type == "cpu"

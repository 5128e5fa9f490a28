"""Finds the batch size that fits into memory and is fastest.

What it cures
    `memory-headroom` and `launch-bound`: launching costs the same for a larger batch. `memory-pressure` found out by
    trial: sizes are tried on a real step before the run, and what they change is put back.

When it does not help
    Where samples differ in size: try the longest. On several ranks every rank has to be given the smallest answer.

Cost
    Some steps of each size tried, about twice the logarithm of the largest; a copy of the state while it looks.

Numerics
    Nothing is changed here: parameters, optimizer state, gradients and random generators are put back. A larger batch
    trains differently; the learning rate goes with it.

Example::

    from diagnose.kernels.batch_size import find_batch_size

    def step(size):
        x, y = next(iter(torch.utils.data.DataLoader(dataset, batch_size=size)))
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    found = find_batch_size(step, state=(model, optimizer), start=2, limit=16)
    log(found)  # seconds by size
    loader = torch.utils.data.DataLoader(dataset, batch_size=found.fastest)
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from diagnose.kernels._state import Stateful, unchanged
from diagnose.kernels.memory_snapshot import is_out_of_memory

__all__ = ["BatchSizes", "find_batch_size"]

MIN_RATE_SHARE = 0.95
"""Of the most samples a second: a smaller batch that reaches it leaves memory for other things."""


@dataclass(frozen=True)
class BatchSizes:
    """What was tried: ``seconds`` of a step by size; ``largest`` fits, ``fastest`` is the smallest that is fast."""

    seconds: Mapping[int, float]
    largest: int
    too_large: int | None  # the smallest size that did not fit; None where the limit came first

    @property
    def fastest(self) -> int:
        """Return the smallest size whose samples a second are about the most."""
        most = max(size / took for size, took in self.seconds.items())
        return min(size for size, took in self.seconds.items() if size / took >= MIN_RATE_SHARE * most)

    def __str__(self) -> str:
        """Return a line for each size."""
        rows = [f"{n}: {took * 1e3:.1f} ms, {n / took:.0f} samples/s" for n, took in sorted(self.seconds.items())]
        end = f"{self.too_large} does not fit" if self.too_large else "none was too large"
        return "\n".join([*rows, f"{end}; {self.fastest} is fast enough"])


def find_batch_size(
    step: Callable[[int], object],
    *,
    state: Sequence[Stateful] = (),
    start: int = 1,
    limit: int = 1 << 16,
    repeats: int = 3,
    multiple: int = 8,
    clock: Callable[[], float] = time.perf_counter,
) -> BatchSizes:
    """Call ``step`` with growing sizes of the batch until memory is out, and return what fits.

    Sizes are doubled from ``start`` to ``limit``; between the last that fits and the first that does not, multiples of
    ``multiple`` are tried by bisection. Each runs once to warm up and ``repeats`` times to be timed. What ``state``
    holds, and the random generators, are put back in the end.

    Raises:
        ValueError: ``start``, ``repeats`` or ``multiple`` is less than one, or ``limit`` is below ``start``.
        MemoryError: not even ``start`` fits.
    """
    if min(start, repeats, multiple) < 1 or limit < start:
        raise ValueError(
            f"find_batch_size needs start, repeats and multiple >= 1 and limit >= start, not start={start}, "
            f"repeats={repeats}, multiple={multiple} and limit={limit}."
        )
    seconds: dict[int, float] = {}
    too_large: int | None = None
    with unchanged(*state):
        size = start
        while size <= limit and too_large is None:
            took = _timed(step, size, repeats, clock)
            if took is None:
                too_large = size
            else:
                seconds[size] = took
                size *= 2
        if not seconds:
            raise MemoryError(f"A batch of {start} does not fit; begin with a smaller start.")
        while too_large is not None and (size := _between(max(seconds), too_large, multiple)):
            took = _timed(step, size, repeats, clock)
            if took is None:
                too_large = size
            else:
                seconds[size] = took
    return BatchSizes(seconds, max(seconds), too_large)


def _between(fits: int, too_large: int, multiple: int) -> int:
    """Return a multiple in the middle of two sizes, 0 where there is none."""
    middle = (fits + too_large) // 2 // multiple * multiple
    return middle if fits < middle < too_large else 0


def _timed(step: Callable[[int], object], size: int, repeats: int, clock: Callable[[], float]) -> float | None:
    """Return the seconds of a step, None where memory is out; what it had taken is given back."""
    try:
        step(size)
        _synchronise()
        began = clock()
        for _ in range(repeats):
            step(size)
        _synchronise()
        return (clock() - began) / repeats
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    gc.collect()
    if _uses_gpu():
        torch.cuda.empty_cache()
    return None


def _synchronise() -> None:
    if _uses_gpu():
        torch.cuda.synchronize()


def _uses_gpu() -> bool:
    started: Callable[[], bool] = torch.cuda.is_initialized
    return started()

"""Times of calls: the device's by a queue that is filled first, the host's by the wall clock."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HOST_CALLS = 50
SLEEP_CYCLES_PER_CALL = 4_000_000  # about 2 ms: longer than any host takes to queue one call


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Return the median of the device's times of a call; on a CPU by the wall clock."""
    for _ in range(3):
        call()
    if DEVICE == "cpu":
        return _median_wall_ms(call, repeats)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES_PER_CALL * repeats)  # what follows is queued behind it
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(itertools.starmap(torch.cuda.Event.elapsed_time, itertools.pairwise(events)))


def alone_ms(call: Callable[[], object], repeats: int) -> float:
    """Return the median time from a call to the end of its work, on an idle device."""

    def waiting() -> None:
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    waiting()
    return _median_wall_ms(waiting, repeats)


def _median_wall_ms(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def host_us(call: Callable[[], object]) -> float:
    """Return the least of some means of what a call takes on the host, by the wall clock."""
    call()
    means = []
    for _ in range(4):
        begin = time.perf_counter()
        for _ in range(HOST_CALLS):
            call()
        means.append(1e6 * (time.perf_counter() - begin) / HOST_CALLS)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    return min(means)


def both_directions(function: Callable[..., Any], arguments: list[Tensor]) -> Callable[[], object]:
    """Return a call of forward and backward, the gradient of the result given and those of the inputs not kept."""
    inputs = [a for a in arguments if a.requires_grad]
    sample = function(*arguments)  # with gradients: torch.compile would compile it once more for a call without
    grads = [torch.ones_like(part) for part in (sample if isinstance(sample, tuple) else (sample,))]
    return lambda: torch.autograd.grad(function(*arguments), inputs, grads)


def copy_ms(size: int, dtype: torch.dtype, repeats: int) -> float:
    """Return the milliseconds of copying so many elements: a read and a write of each."""
    source = torch.empty(size, dtype=dtype, device=DEVICE)
    target = torch.empty_like(source)
    return median_ms(lambda: target.copy_(source), repeats)

"""Times the exchange of gradients, bucket by bucket.

What it cures
    `exposed-communication` whose cause is unclear: it separates low bandwidth from too many buckets, and shows how much
    of the exchange the backward hides, without a profiler and on any backend.

When it does not help
    Time that ranks wait for a late one looks like slow transfer here; compare ranks, or take the trace of every rank.

Cost
    Two clock readings a bucket; on a GPU two events a bucket, which are read in `report`, that waits for the device.

Numerics
    Identical: the wrapped hook does what it did.

Example::

    from diagnose.kernels.distributed.hook_timing import install_timed

    ddp = DistributedDataParallel(model)
    timing = install_timed(ddp, "bf16")
    for x, y in loader:
        criterion(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    log(timing.report())  # TimingReport(steps=…, buckets=…, bytes=…, busy_ms=…, exposed_ms=…)
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._hook import Bucket, CommHook
from diagnose.kernels.distributed.comm_hooks import comm_hook, install

__all__ = ["TimedHook", "TimingReport", "install_timed"]

MAX_STEPS = 100  # the newest; a run of days keeps no more
SKIPPED_STEPS = 2  # the first uses other buckets than all that follow, and opens connections

Moment = Any
"""Nanoseconds of the host's clock, or a recorded event of the device."""


@dataclass(frozen=True)
class TimingReport:
    """Medians over steps, for one rank; milliseconds and bytes.

    ``busy_ms`` is the time in which at least one bucket was under way, ``exposed_ms`` what of it came after the last
    bucket was ready, when the backward had nothing left to hide it under.
    """

    steps: int
    buckets: int
    bytes: int
    busy_ms: float
    exposed_ms: float

    @property
    def gigabytes_per_second(self) -> float:
        """Return the gradients' bytes over the busy time."""
        return self.bytes / self.busy_ms / 1e6 if self.busy_ms else 0.0


@dataclass
class _Bucket:
    num_bytes: int
    started: Moment
    ended: Moment = None


class TimedHook(CommHook):
    """Does what another hook does, and notes when each bucket went and came."""

    def __init__(self, hook: CommHook) -> None:
        super().__init__()
        if isinstance(hook, TimedHook):
            raise TypeError("The hook is timed already.")
        self.hook, self.name = hook, f"timed {hook.name}"
        self.bytes, self.takes_sparse = hook.bytes, hook.takes_sparse
        self._current: list[_Bucket] = []
        self._steps: deque[list[_Bucket]] = deque(maxlen=MAX_STEPS + SKIPPED_STEPS)
        self._seen = 0

    def bind(self, ddp: DistributedDataParallel) -> None:
        """Bind both."""
        self.hook.bind(ddp)
        super().bind(ddp)

    def __call__(self, bucket: Bucket) -> Future[Tensor]:
        """Run the wrapped hook."""
        buffer = bucket.buffer()
        entry = _Bucket(buffer.numel() * buffer.element_size(), _now(buffer.device))
        self._current.append(entry)
        if bucket.is_last():
            self._steps.append(self._current)
            self._current = []
            self._seen += 1

        def ended(future: Future[Any]) -> Tensor:
            value: Tensor = future.value()
            entry.ended = _now(buffer.device)
            return value

        future = self.hook(bucket)
        timed: Future[Tensor] = future.then(ended) if callable(getattr(future, "then", None)) else future
        return timed

    def report(self) -> TimingReport:
        """Return the medians so far, without the first two steps; waits for the device.

        Raises:
            RuntimeError: fewer than three steps were taken.
        """
        _wait_for_devices()
        complete = [s for s in self._steps if all(b.ended is not None for b in s)]
        steps = complete[max(0, SKIPPED_STEPS - (self._seen - len(complete))) :]
        if not steps:
            raise RuntimeError(f"report needs {SKIPPED_STEPS + 1} steps at least; {self._seen} were taken.")
        return TimingReport(
            steps=len(steps),
            buckets=len(steps[-1]),
            bytes=sum(b.num_bytes for b in steps[-1]),
            busy_ms=median(map(_busy_ms, steps)),
            exposed_ms=median(max(_ms(s[-1].started, b.ended) for b in s) for s in steps),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped hook's state."""
        return self.hook.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Hand the state to the wrapped hook."""
        self.hook.load_state_dict(state_dict)


def install_timed(ddp: nn.Module, hook: CommHook | str = "plain", **options: Any) -> TimedHook:
    """Install a hook with a clock around it; errors are those of ``install``."""
    timed = TimedHook(comm_hook(hook, **options) if isinstance(hook, str) else hook)
    install(ddp, timed)
    return timed


def _now(device: torch.device) -> Moment:
    if device.type != "cuda":
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _ms(start: Moment, end: Moment) -> float:
    return (end - start) / 1e6 if isinstance(start, int) else float(start.elapsed_time(end))


def _busy_ms(step: list[_Bucket]) -> float:
    """Return the length of the union of the buckets' times."""
    origin = step[0].started
    busy = reached = 0.0
    for start, end in sorted((_ms(origin, b.started), _ms(origin, b.ended)) for b in step):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy


def _wait_for_devices() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()

"""Reads losses and metrics one step later, without waiting.

What it cures
    `host-sync` from `.item()`, `.tolist()`, `float(loss)` or `print(loss)` in the loop, and `exposed-copy` of results
    to the host.

When it does not help
    When the same step decides by the value: an early stop, a learning rate that follows the loss, a skipped update.
    Decide one step later instead, or on the device with `torch.where`. On a CPU the values are there anyway.

Cost
    One small kernel and one copy a step for all values of a dtype together, some bytes of pinned memory, and the
    values of at most ``max_pending`` steps in flight.

Numerics
    The values are the ones that ``.item()`` would have given: each is copied in the order of its stream, before
    anything that the script does to it later. Nothing on the device changes.

Example::

    from diagnose.kernels.deferred_metrics import DeferredMetrics

    metrics = DeferredMetrics()
    for step, (x, y) in enumerate(loader):
        loss = train_step(x, y)
        metrics.push(step, loss=loss, lr=scheduler.get_last_lr()[0])
        for past, values in metrics.ready():  # those of earlier steps, without waiting
            log(past, values["loss"])
    for past, values in metrics.drain():  # the rest, once, after the loop
        log(past, values["loss"])
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["DeferredMetrics", "Value"]

Value: TypeAlias = float | int | bool | complex | Tensor
"""A plain number where a number or a tensor without dimensions was pushed, else a tensor on the host."""

WITH_EVENTS = frozenset({"cuda", "xpu"})
"""Device types that copy to pinned memory while the host goes on, and record an event when they are done."""


class DeferredMetrics:
    """Holds the metrics of a few steps until they have arrived; hands them out in the order of the steps.

    ``ready`` never waits for the device while at most ``max_pending`` steps are in flight. The newest step is held back
    on a CPU too, so that a script behaves alike everywhere. ``latest`` holds the values handed out last, for a
    progress display. Not for use by several threads.

    Raises:
        ValueError: ``max_pending`` is less than one.
    """

    def __init__(self, *, max_pending: int = 64) -> None:
        if max_pending < 1:
            raise ValueError(
                f"DeferredMetrics needs max_pending >= 1, not {max_pending}; use 1 to wait a step at most."
            )
        self.max_pending = max_pending
        self.latest: Mapping[str, Value] = {}
        self._pending: deque[_Pending] = deque()

    def __len__(self) -> int:
        """Return the number of steps whose values were not handed out yet."""
        return len(self._pending)

    def push(self, step: int, **values: Tensor | float) -> None:
        """Start the values of a step on their way to the host; waits for nothing.

        Numbers may be pushed beside tensors. A tensor may be changed or freed by the script at once.

        Raises:
            TypeError: a value is neither a number nor a tensor.
        """
        self._pending.append(_started(step, values))

    def ready(self) -> Iterator[tuple[int, dict[str, Value]]]:
        """Yield (step, values) of earlier steps that have arrived, the oldest first."""
        while len(self._pending) > 1 and (len(self._pending) > self.max_pending or self._pending[0].has_arrived()):
            yield self._hand_out()

    def drain(self) -> Iterator[tuple[int, dict[str, Value]]]:
        """Yield (step, values) of all steps that are left, waiting for the device."""
        while self._pending:
            yield self._hand_out()

    def _hand_out(self) -> tuple[int, dict[str, Value]]:
        pending = self._pending.popleft()
        values = pending.read()
        self.latest = values
        return pending.step, values


@dataclass(frozen=True)
class _Pending:
    """The values of one step on their way: copies on the host, and the events after which they may be read."""

    step: int
    names: tuple[str, ...]  # in the order of the push
    numbers: Mapping[str, float]
    copies: tuple[tuple[tuple[str, ...], Tensor], ...]  # names of a stack's rows, and the stack
    events: tuple[Any, ...]

    def has_arrived(self) -> bool:
        return all(event.query() for event in self.events)

    def read(self) -> dict[str, Value]:
        """Return the values; waits for the events, and for devices that have none."""
        for event in self.events:
            event.synchronize()
        found: dict[str, Value] = dict(self.numbers)
        for names, stack in self.copies:
            rows = stack.cpu()
            if rows.dim() == 1:
                found.update(zip(names, rows.tolist(), strict=True))
            else:
                found.update((name, row.clone()) for name, row in zip(names, rows, strict=True))
        return {name: found[name] for name in self.names}


def _started(step: int, values: Mapping[str, Tensor | float]) -> _Pending:
    """Queue one copy for all tensors of the same device, dtype and shape."""
    numbers: dict[str, float] = {}
    alike: defaultdict[tuple[torch.device, torch.dtype, torch.Size], dict[str, Tensor]] = defaultdict(dict)
    for name, value in values.items():
        if isinstance(value, Tensor):
            tensor = value.detach()
            alike[tensor.device, tensor.dtype, tensor.shape][name] = tensor
        elif isinstance(value, (int, float, complex)):
            numbers[name] = value
        else:
            raise TypeError(f"The metric {name!r} is a {type(value).__name__}; push a number or a tensor.")
    copies = tuple((tuple(group), _copied(torch.stack(tuple(group.values())))) for group in alike.values())
    devices = {device for device, _, _ in alike if device.type in WITH_EVENTS}
    return _Pending(step, tuple(values), numbers, copies, tuple(_event(device) for device in devices))


def _copied(stack: Tensor) -> Tensor:
    """Queue the copy to the host; a stack is new memory, so a device without events keeps it until it is read."""
    if stack.device.type not in WITH_EVENTS:
        return stack
    return torch.empty(stack.shape, dtype=stack.dtype, pin_memory=True).copy_(stack, non_blocking=True)


def _event(device: torch.device) -> Any:  # each device's module has its own class of events
    """Record an event behind the copies on the device's current stream."""
    module = torch.get_device_module(device)
    event = module.Event()
    event.record(module.current_stream(device))
    return event

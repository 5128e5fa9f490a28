"""Recommends arguments of DDP from a few real steps.

What it cures
    `buffer-broadcast`, `exposed-communication` of a single bucket, and the share of `launch-bound` that is the search
    for unused parameters; the memory of a second copy of all gradients.

When it does not help
    Models that are sharded otherwise. What no observed step did, it cannot see: a branch taken once in a thousand
    steps looks like a fixed graph, so give it batches that differ.

Cost
    The given number of steps, once, and a copy of the model's and the optimizer's state meanwhile.

Numerics
    Nothing is left changed. Each piece of advice states whether following it changes numbers.

Example::

    from diagnose.kernels.distributed.ddp_arguments import advise

    ddp = DistributedDataParallel(model, find_unused_parameters=True)

    def train_step(batch):
        x, y = batch
        criterion(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    advice = advise(ddp, train_step, loader, state=[optimizer])
    log(advice)
    ddp = DistributedDataParallel(model, **advice.arguments())
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels._state import Stateful, unchanged
from diagnose.kernels.distributed._agreement import on_every_rank
from diagnose.kernels.distributed._ddp_probe import Observed, observe, statistics_of_norms
from diagnose.kernels.distributed._hook import num_bytes

__all__ = ["Advice", "DDPAdvice", "advise"]

MB = 1024 * 1024
DEFAULT_BUCKET_MB = 25.0
MIN_BUCKETS = 4  # with fewer, less than three quarters of the bytes can go while the backward still computes
MAX_BUCKETS = 50  # each collective costs tens of microseconds, whatever its size
MIN_BUCKET_MB = 1.0  # below it latency, not bandwidth, is what a bucket takes on usual links
SAME = "same numbers"
NUM_NAMED = 4
BROADCAST = (
    "forward_sync_buffers"  # since torch 2.13, where the old name warns
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


@dataclass(frozen=True)
class Advice:
    """One argument: what it is, what it should be, why, and whether numbers change."""

    argument: str
    current: Any
    suggested: Any
    reason: str
    safety: str = SAME

    @property
    def is_change(self) -> bool:
        """Return whether anything is to be done."""
        return bool(self.current != self.suggested)

    def __str__(self) -> str:
        change = f"{self.current} → {self.suggested}" if self.is_change else f"{self.current}, keep"
        return f"{self.argument}: {change}. {self.reason}" + (f" ({self.safety})" if self.is_change else "")


@dataclass(frozen=True)
class DDPAdvice:
    """Advice on every argument, the same on all ranks."""

    advice: tuple[Advice, ...]

    def __getitem__(self, argument: str) -> Advice:
        name = BROADCAST if argument == "broadcast_buffers" else argument
        return next(a for a in self.advice if a.argument == name)

    def arguments(self, *, only_same_numbers: bool = False) -> dict[str, Any]:
        """Return the arguments to build the model with; on request only those that leave all numbers alone."""
        return {a.argument: a.current if only_same_numbers and a.safety != SAME else a.suggested for a in self.advice}

    def __str__(self) -> str:
        return "\n".join(map(str, self.advice))


@dataclass(frozen=True)
class _Seen:
    """What all ranks saw together."""

    module: nn.Module
    ranks: Sequence[Observed]

    @property
    def steps(self) -> list[dict[str, int]]:
        return [step for rank in self.ranks for step in rank.gradients]

    @property
    def is_fixed(self) -> bool:
        return all(step == self.steps[0] for step in self.steps)

    @property
    def unused(self) -> list[str]:
        """Return the parameters that lacked a gradient in some step of some rank."""
        named = [name for name, p in self.module.named_parameters() if p.requires_grad]
        return [name for name in named if any(not step.get(name) for step in self.steps)]

    @property
    def repeated(self) -> list[str]:
        """Return the parameters that got several gradients in one backward, as reentrant checkpointing does."""
        return sorted({name for step in self.steps for name, times in step.items() if times > 1})


def advise(
    ddp: DistributedDataParallel,
    train_step: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    state: Sequence[Stateful] = (),
    steps: int = 3,
) -> DDPAdvice:
    """Run ``steps`` steps on all ranks and advise; everything is put back afterwards.

    ``train_step`` takes a batch, calls ``ddp`` and its backward, and may step an optimizer, which is then listed in
    ``state``. Gradients are not exchanged meanwhile. Build the model anew with the arguments that it returns.

    Raises:
        TypeError: ``ddp`` is no DistributedDataParallel.
        ValueError: there is no batch, ``steps`` is less than one, or ``ddp`` was built with ``static_graph``.
        RuntimeError: a step failed on another rank, or computed no gradient.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(f"advise takes a model in DistributedDataParallel, not {type(ddp).__name__}; wrap it first.")
    if steps < 1:
        raise ValueError(f"advise needs steps >= 1, not {steps}.")
    if ddp.static_graph:
        raise ValueError("advise cannot watch a model with static_graph=True; build it without, and ask again.")

    def look() -> Observed:
        with unchanged():
            first = list(islice(batches, steps))
        if not first:
            raise ValueError("advise got no batch to look at.")
        with unchanged(ddp.module, *state):
            observed = observe(ddp, train_step, first)
        if not any(observed.gradients):
            raise RuntimeError("No parameter got a gradient: train_step has to call the model and its backward.")
        return observed

    seen = _Seen(ddp.module, on_every_rank(look, ddp.process_group))
    return DDPAdvice(
        (
            _find_unused(ddp, seen),
            _static_graph(ddp, seen),
            _bucket_view(ddp),
            _broadcast(ddp, seen),
            _bucket_cap(ddp),
        )
    )


def _find_unused(ddp: DistributedDataParallel, seen: _Seen) -> Advice:
    current, unused, where = (
        ddp.find_unused_parameters,
        seen.unused,
        f"in {len(seen.steps)} observed steps of all ranks",
    )
    if not unused:
        reason = f"Every parameter got a gradient {where}; the search walks the whole graph in each step for nothing."
        return Advice("find_unused_parameters", current, False, reason)
    if seen.is_fixed:
        reason = f"The same parameters stay without a gradient {where} ({_some(unused)}): static_graph finds them once."
        return Advice("find_unused_parameters", current, False, reason)
    reason = f"Which parameters get a gradient changes {where} ({_some(unused)}); without the search ranks would wait."
    return Advice("find_unused_parameters", current, True, reason)


def _static_graph(ddp: DistributedDataParallel, seen: _Seen) -> Advice:
    current = ddp.static_graph
    if not seen.is_fixed:
        reason = f"The graph changes from step to step or among ranks ({_some(seen.unused or seen.repeated)})."
        return Advice("static_graph", current, False, reason)
    if seen.unused:
        return Advice(
            "static_graph", current, True, f"The same parameters are unused in every step ({_some(seen.unused)})."
        )
    if seen.repeated:
        reason = f"Parameters get several gradients in a backward ({_some(seen.repeated)}), in every step alike."
        return Advice("static_graph", current, True, reason)
    return Advice("static_graph", current, current, "Every parameter gets one gradient in each step; nothing to gain.")


def _bucket_view(ddp: DistributedDataParallel) -> Advice:
    size = num_bytes(p for p in ddp.module.parameters() if p.requires_grad) / MB
    reason = (
        f"Gradients that are views into the buckets save {size:.1f} MB and a copy in each step; "
        "code that calls detach_() on gradients would fail."
    )
    return Advice("gradient_as_bucket_view", ddp.gradient_as_bucket_view, True, reason)


def _broadcast(ddp: DistributedDataParallel, seen: _Seen) -> Advice:
    buffers, current = dict(ddp.module.named_buffers()), ddp.broadcast_buffers
    if not buffers:
        return Advice(BROADCAST, current, current, "The model has no buffers.")
    what = f"{len(buffers)} buffers ({num_bytes(buffers.values()) / MB:.2f} MB)"
    written = set[str]().union(*(rank.written for rank in seen.ranks))
    if not written:
        return Advice(BROADCAST, current, False, f"No forward writes to the {what} that each one broadcasts.")
    if own := written - statistics_of_norms(ddp.module):
        reason = f"The forward writes to {_some(sorted(own))}, in which ranks would drift apart."
        return Advice(BROADCAST, current, True, reason)
    safety = "same gradients, and same statistics in rank 0; other ranks keep their own: evaluate with rank 0's"
    reason = f"Each forward waits for {what}, and only running statistics change, which training does not read."
    return Advice(BROADCAST, current, False, reason, safety)


def _bucket_cap(ddp: DistributedDataParallel) -> Advice:
    current = ddp.bucket_bytes_cap / MB
    size = num_bytes(p for p in ddp.module.parameters() if p.requires_grad) / MB
    num, has = math.ceil(size / current), f"{size:.1f} MB of gradients in buckets of {current:g} MB"
    if num > MAX_BUCKETS and current < DEFAULT_BUCKET_MB:
        better = min(DEFAULT_BUCKET_MB, float(math.ceil(size / MIN_BUCKETS)))
        return Advice(
            "bucket_cap_mb", current, better, f"{has} make {num} collectives a step; bucket_tuning measures it."
        )
    if num < MIN_BUCKETS and size / MIN_BUCKETS >= MIN_BUCKET_MB:
        better = float(math.ceil(size / MIN_BUCKETS))
        reason = f"{has} make {num}, so most are sent when the backward has ended; bucket_tuning measures it."
        return Advice("bucket_cap_mb", current, min(better, current), reason)
    return Advice("bucket_cap_mb", current, current, f"{has}: no reason to change it.")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(names[:NUM_NAMED]) + more

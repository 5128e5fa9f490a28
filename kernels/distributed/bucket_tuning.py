"""Measures which size of gradient buckets is fastest.

What it cures
    `exposed-communication`: buckets that are too large start late, too small ones pay the latency of a collective
    many times over.

When it does not help
    Where the exchange is hidden already, where ranks wait for a late one, and for models of less than a few megabytes.

Cost
    ``rounds`` × candidates × (3 + ``steps``) training steps, once; a copy of the model's and the optimizer's state
    meanwhile.

Numerics
    Means over other groupings of the same gradients: equal to rounding. The measured steps leave nothing changed.

Example::

    from diagnose.kernels.distributed.bucket_tuning import tune_buckets

    def make_step(ddp):
        def train_step(batch):
            x, y = batch
            criterion(ddp(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return train_step

    choice = tune_buckets(model, make_step, loader, state=[optimizer], steps=4)
    log(choice)
    ddp = DistributedDataParallel(model, bucket_cap_mb=choice.bucket_cap_mb)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels._state import Stateful, unchanged
from diagnose.kernels.distributed._agreement import check_alike, whole_group
from diagnose.kernels.distributed._hook import num_bytes
from diagnose.kernels.distributed._trials import MakeStep, in_ddp, of_all_ranks, timed_steps

__all__ = ["BucketChoice", "BucketTrial", "tune_buckets"]

MB = 1024 * 1024
DEFAULT_MB = 25.0
CANDIDATES_MB = (1.0, 5.0, 10.0, 25.0, 50.0, 100.0)
WARM_UP_STEPS = 3  # buckets are laid out anew after the first, and connections open in the second
MAX_TIE_SHARE = 0.02  # of the step: less than runs differ from each other


@dataclass(frozen=True)
class BucketTrial:
    """One size: median milliseconds of a step on the slowest rank, and how much of the exchange was hidden.

    ``hidden_share`` is what DDP itself measured, None where it could not.
    """

    bucket_cap_mb: float
    step_ms: float
    spread_ms: float
    hidden_share: float | None


@dataclass(frozen=True)
class BucketChoice:
    """The size to use, the same on all ranks, and what was measured."""

    bucket_cap_mb: float
    trials: tuple[BucketTrial, ...]

    def __str__(self) -> str:
        rows = [
            f"{t.bucket_cap_mb:7g} MB  {t.step_ms:9.2f} ms ± {t.spread_ms:.2f}"
            + ("" if t.hidden_share is None else f"  {t.hidden_share:4.0%} hidden")
            + ("  ← chosen" if t.bucket_cap_mb == self.bucket_cap_mb else "")
            for t in self.trials
        ]
        return "\n".join(rows)


def tune_buckets(  # what a measurement needs
    module: nn.Module,
    make_step: MakeStep,
    batches: Iterable[Any],
    *,
    state: Sequence[Stateful] = (),
    candidates: Sequence[float] | None = None,
    steps: int = 8,
    rounds: int = 3,
    **ddp_arguments: Any,  # DDP's own
) -> BucketChoice:
    """Return the fastest ``bucket_cap_mb`` for ``module``; all ranks call it, and all get the same answer.

    ``make_step`` gets the model in DDP and returns what takes a batch and trains on it; optimizers that it uses are
    listed in ``state``. Sizes take turns, ``rounds`` times. 25 MB are kept where nothing is 2 % faster.

    Raises:
        ValueError: a number is out of range, there is no batch, or ranks were given different candidates.
        RuntimeError: there is no process group, or what ``make_step`` made keeps the model in DDP alive elsewhere.
    """
    group = whole_group(ddp_arguments.get("process_group"))
    sizes = sorted({float(c) for c in (_candidates(module) if candidates is None else candidates)})
    if not sizes or sizes[0] <= 0 or steps < 1 or rounds < 1:
        raise ValueError(
            f"tune_buckets needs sizes above 0 MB, steps >= 1 and rounds >= 1, not {sizes}, {steps} and {rounds}."
        )
    check_alike("candidates, steps or rounds", (sizes, steps, rounds), group)
    with unchanged():
        first = list(islice(batches, steps))
    check_alike("numbers of batches", len(first), group)
    if not first:
        raise ValueError("tune_buckets got no batch to measure on.")
    measured: dict[float, list[float]] = {size: [] for size in sizes}
    hidden: dict[float, float | None] = {}
    for _ in range(rounds):
        for size in sizes:
            arguments = {"gradient_as_bucket_view": True, **ddp_arguments, "bucket_cap_mb": size}
            with unchanged(module, *state):
                times, hidden[size] = _measured(module, make_step, first, steps, arguments)
            measured[size] += of_all_ranks(times, dist.ReduceOp.MAX, group, next(module.parameters()).device)
    trials = tuple(BucketTrial(size, median(measured[size]), _spread(measured[size]), hidden[size]) for size in sizes)
    return BucketChoice(_chosen(trials), trials)


def _candidates(module: nn.Module) -> list[float]:
    """Return the usual sizes up to the model's own, and that one: everything in one bucket."""
    size = num_bytes(p for p in module.parameters() if p.requires_grad) / MB
    return [c for c in CANDIDATES_MB if c < size] + [max(size, 1.0) * 1.01]


def _measured(
    module: nn.Module, make_step: MakeStep, batches: Sequence[Any], steps: int, arguments: dict[str, Any]
) -> tuple[list[float], float | None]:
    device = next(module.parameters()).device

    def run(ddp: DistributedDataParallel, step: Callable[[Any], Any]) -> tuple[list[float], float | None]:
        times, _ = timed_steps(step, batches, WARM_UP_STEPS + steps, device)
        return times[WARM_UP_STEPS:], _hidden_share(ddp)

    return in_ddp(module, make_step, run, arguments)


def _hidden_share(ddp: DistributedDataParallel) -> float | None:
    facts = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    whole = facts.get("avg_backward_comm_time") or 0
    return min(1.0, facts.get("avg_backward_compute_comm_overlap_time", 0) / whole) if whole > 0 else None


def _spread(times: Sequence[float]) -> float:
    """Return the median distance from the median."""
    middle = median(times)
    return median(abs(t - middle) for t in times)


def _chosen(trials: Sequence[BucketTrial]) -> float:
    best = min(trials, key=lambda t: t.step_ms)
    near = [t.bucket_cap_mb for t in trials if t.step_ms <= best.step_ms * (1 + MAX_TIE_SHARE)]
    return DEFAULT_MB if DEFAULT_MB in near else best.bucket_cap_mb

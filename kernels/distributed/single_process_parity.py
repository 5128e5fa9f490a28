"""Compares a model on several ranks with one process.

What it cures
    Doubt before a long run, when `memory-pressure` or `exposed-communication` led to sharding: a wrong divisor, a
    forgotten sampler or a split in the wrong dimension trains without complaint.

When it does not help
    Models that one process cannot hold: compare a smaller configuration. Dropout and other random layers differ.

Cost
    The steps given, once on all ranks together and once on each by itself, with a second copy of the model.

Numerics
    None are changed; copy the model before, since both train.

Example::

    import copy

    from diagnose.kernels.distributed.single_process_parity import compare_with_one_process

    alone = copy.deepcopy(model)
    ddp = DistributedDataParallel(model)

    def trained_on(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def train_step(batch):
            loss = criterion(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return train_step

    mine = slice(dist.get_rank(), None, dist.get_world_size())
    comparison = compare_with_one_process(
        ddp,
        alone,
        trained_on(ddp),
        trained_on(alone),
        [(torch.randn(8, 16), torch.arange(8) % 4)] * 3,
        share=lambda batch: (batch[0][mine], batch[1][mine]),
    )
    comparison.check(tolerance=1e-4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from diagnose.kernels.distributed._agreement import check_alike, whole_group

__all__ = ["Comparison", "compare_with_one_process", "parameter_distances"]

PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


@dataclass(frozen=True)
class Comparison:
    """Losses of each step, means over ranks, and how far each parameter is from the reference, relative."""

    losses: tuple[float, ...]
    reference: tuple[float, ...]
    distances: Mapping[str, float]

    @property
    def worst(self) -> float:
        """Return the largest relative distance of all, of a loss or a parameter."""
        drift = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(self.losses, self.reference, strict=True)]
        return max([*drift, *self.distances.values()])

    def check(self, tolerance: float = 1e-4) -> None:
        """Raise unless all agree.

        Raises:
            ArithmeticError: a loss or a parameter is further away than ``tolerance``.
        """
        for step, (loss, reference) in enumerate(zip(self.losses, self.reference, strict=True)):
            if not abs(loss - reference) <= tolerance * max(abs(reference), 1e-12):
                raise ArithmeticError(
                    f"In step {step} the loss is {loss:.6g} on all ranks and {reference:.6g} on one; "
                    "look at how batches are shared out and at what losses are divided by."
                )
        for name, distance in self.distances.items():
            if not distance <= tolerance:
                raise ArithmeticError(
                    f"After {len(self.losses)} steps {name} is {distance:.2g} away from that of one process, relative; "
                    "look at how its gradient is reduced."
                )


def compare_with_one_process(  # both sides of a comparison
    parallel: nn.Module,
    alone: nn.Module,
    parallel_step: Callable[[Any], Any],
    alone_step: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    share: Callable[[Any], Any] = lambda batch: batch,
    group: dist.ProcessGroup | None = None,
) -> Comparison:
    """Train both models on the same batches and compare them; all ranks call it with the same batches.

    Each step takes a batch and returns its mean loss (``parallel_step`` None on ranks that compute none, as in a
    pipeline). ``share`` picks this rank's part of a batch.

    Raises:
        ValueError: there is no batch, ranks were given different ones, or no parameter has the same name in both.
    """
    group = whole_group(group)
    losses, reference = [], []
    for batch in batches:
        check_alike("batches", _sum_of(batch), group)
        losses.append(_mean_over_ranks(parallel_step(share(batch)), group))
        reference.append(_number(alone_step(batch)))
    if not losses:
        raise ValueError("compare_with_one_process got no batch.")
    return Comparison(tuple(losses), tuple(reference), parameter_distances(parallel.named_parameters(), alone, group))


def parameter_distances(
    parameters: Iterable[tuple[str, Tensor]], alone: nn.Module, group: dist.ProcessGroup | None = None
) -> dict[str, float]:
    """Return, by name, how far parameters are from those of ``alone`` (norms, relative), on whichever rank is worst.

    Sharded ones are gathered. A rank may hold some of them only.

    Raises:
        ValueError: a name, or all, are not in ``alone``.
    """
    expected = dict(alone.named_parameters())
    found: dict[str, float] = {}
    for long_name, p in parameters:
        name = _short(long_name)
        if name not in expected:
            raise ValueError(f"The model on one process has no parameter {name!r}; compare models of one class.")
        whole = p.full_tensor() if hasattr(p, "full_tensor") else p
        error = (whole.detach().double() - expected[name].detach().double().to(whole.device)).norm()
        found[name] = float(error / expected[name].detach().double().norm().clamp_min(1e-12))
    everyones: list[dict[str, float]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(everyones, found, group=group)
    names = dict.fromkeys(name for one in everyones for name in one)
    if set(names) != set(expected):
        raise ValueError(f"No rank holds {', '.join(sorted(set(expected) - set(names)))}.")
    return {name: max(one[name] for one in everyones if name in one) for name in names}


def _short(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix) if prefix == "module." else name.replace(prefix, "")
    return name


def _number(loss: Any) -> float:  # a number or a tensor
    return float(loss.detach() if isinstance(loss, Tensor) else loss)


def _mean_over_ranks(loss: Any, group: dist.ProcessGroup) -> float:  # a number, a tensor, or None
    value = None if loss is None else _number(loss)
    everyones: list[float | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, value, group=group)
    known = [v for v in everyones if v is not None]
    if not known:
        raise ValueError("No rank's parallel_step returned its loss.")
    return sum(known) / len(known)


def _sum_of(batch: Any) -> float:  # whatever a loader yields
    """Return a number that differs as soon as batches do."""
    if isinstance(batch, Tensor):
        return float(batch.detach().double().sum())
    if isinstance(batch, Mapping):
        return sum(_sum_of(v) for v in batch.values())
    return sum(map(_sum_of, batch)) if isinstance(batch, list | tuple) else 0.0

"""Whether a model computes the same after its layers were split: outputs and gradients of one batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from diagnose.kernels._nested import tensors
from diagnose.kernels._state import trial_passes
from diagnose.kernels.distributed._same_batches import generator_state

__all__ = ["Passes", "Sample", "difference", "draws_in_training", "passes"]

Sample: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""The arguments of one call of a model, positional or by name."""

SMALL_SHARE = 0.02  # of the norm of all gradients: what is smaller, such as a key's bias, may be rounding and no more


@dataclass(frozen=True)
class Passes:
    """What a forward and a backward gave: the floating outputs, and each parameter's gradient; whole, on the CPU."""

    outputs: tuple[Tensor, ...]
    gradients: Mapping[str, Tensor]

    @property
    def tolerance(self) -> float:
        """Return how far apart results may be, relative: the root of the coarsest rounding among them."""
        given = [t.dtype for t in (*self.outputs, *self.gradients.values())]
        return float(max(torch.finfo(dtype).eps for dtype in given) ** 0.5)


def passes(model: nn.Module, sample: Sample) -> Passes:
    """Run the sample in evaluation mode, forward and backward, and leave no trace of it in the model.

    What is differentiated is a fixed weighted sum of all outputs. Gradients of plain parameters leave the device one by
    one.

    Raises:
        ValueError: the model returns no floating tensor.
    """
    moved: dict[str, Tensor] = {}
    handles = []
    with trial_passes(model), _mode(model, training=False), torch.enable_grad():
        for name, p in model.named_parameters():
            if p.requires_grad and not hasattr(p, "to_local"):

                def move(p: Tensor, name: str = name) -> None:
                    if p.grad is not None:
                        moved[name] = p.grad.cpu()
                        p.grad = None

                handles.append(p.register_post_accumulate_grad_hook(move))  # type: ignore[no-untyped-call]
        try:
            outputs = [t for t in tensors(_called(model, sample)) if t.is_floating_point()]
            if not outputs:
                raise ValueError(
                    f"{type(model).__name__} returns no floating tensor for the sample; return the logits."
                )
            weighted = [(t.float() * torch.arange(t.numel(), device=t.device).cos().view_as(t)).sum() for t in outputs]
            total = torch.stack([w.to(weighted[0].device) for w in weighted]).sum()
            if total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]
        finally:
            for handle in handles:
                handle.remove()
        sharded = {name: _whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        return Passes(tuple(map(_whole, outputs)), moved | sharded)


def draws_in_training(model: nn.Module, sample: Sample) -> bool:
    """Return whether a forward in training mode draws random numbers; leaves no trace of it."""
    device = next(model.parameters()).device
    with trial_passes(model), _mode(model, training=True), torch.no_grad():
        before = generator_state(device)
        _called(model, sample)
        return not torch.equal(before, generator_state(device))


def difference(expected: Passes, found: Passes, tolerance: float) -> str:
    """Return what differs most beyond ``tolerance``, relative, in words; empty if nothing does."""
    whole = sum(float(g.double().norm()) ** 2 for g in expected.gradients.values()) ** 0.5
    rows = [
        (f"output {place}", _distance(a, b, 0.0))
        for place, (a, b) in enumerate(zip(expected.outputs, found.outputs, strict=True))
    ]
    rows += [
        (f"the gradient of {name}", _distance(g, found.gradients.get(name, torch.zeros_like(g)), SMALL_SHARE * whole))
        for name, g in expected.gradients.items()
    ]
    what, distance = max(rows, key=lambda row: row[1] if row[1] == row[1] else float("inf"))
    return "" if distance <= tolerance else f"{what} is {distance:.2g} off, relative to its norm"


def _distance(expected: Tensor, found: Tensor, least: float) -> float:
    if expected.shape != found.shape:
        return float("inf")
    error = float((expected.double() - found.double()).norm())
    return error / max(float(expected.double().norm()), least, 1e-30)


def _whole(tensor: Tensor) -> Tensor:
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().cpu()


def _called(model: nn.Module, sample: Sample) -> Any:
    return model(**sample) if isinstance(sample, Mapping) else model(*sample)


@contextmanager
def _mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    flags = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag

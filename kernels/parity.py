"""Compares the first losses with those of float32 training.

What it cures
    Guesswork after a change for `full-precision-matmul` or any other remedy that may change numbers: it shows on this
    model and this data how far the losses move.

When it does not help
    Drift that begins after thousands of steps. Compare runs then.

Cost
    Twice ``steps`` training steps once, and a copy of the state meanwhile.

Numerics
    None: model, optimizer and random generators are as before.

Example::

    from diagnose.kernels.parity import check_parity
    from diagnose.kernels.precision import Precision

    precision = Precision("cuda")
    parity = check_parity(train_step, loader, state=(model, optimizer), reference=precision.switched_off, steps=4)
    print(parity)  # losses of both, and how far apart they are
    parity.require(0.05)  # raises where they are further apart
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from diagnose.kernels._state import Stateful, unchanged

__all__ = ["Parity", "ParityError", "check_parity"]

TOLERANCE = 0.05
"""Relative: bfloat16 and TF32 runs of sound models stay within a few per cent of float32 over their first steps."""


class ParityError(ArithmeticError):
    """The losses are further apart than was allowed."""


@dataclass(frozen=True)
class Parity:
    """Losses of the same steps, trained in two ways."""

    losses: tuple[float, ...]
    reference: tuple[float, ...]

    @property
    def drift(self) -> tuple[float, ...]:
        """Return the relative distance of each step's losses; infinite where only one of them is finite."""
        return tuple(map(_distance, self.losses, self.reference))

    @property
    def worst(self) -> float:
        """Return the largest relative distance."""
        return max(self.drift)

    def require(self, tolerance: float = TOLERANCE) -> None:
        """Raise unless all losses agree.

        Raises:
            ParityError: a loss is further from its reference than ``tolerance``, relative.
        """
        for step, (loss, reference, drift) in enumerate(zip(self.losses, self.reference, self.drift, strict=True)):
            if not drift <= tolerance:
                raise ParityError(
                    f"In step {step} the loss is {loss:.6g} and {reference:.6g} in the reference ({drift:.1%} apart, "
                    f"{tolerance:.1%} allowed); keep the reference's settings, or find the layer that needs them."
                )

    def __str__(self) -> str:
        rows = zip(self.losses, self.reference, self.drift, strict=True)
        lines = [f"step {step}: {a:.6g} against {b:.6g} ({d:.2%})" for step, (a, b, d) in enumerate(rows)]
        return "\n".join([*lines, f"at most {self.worst:.2%} apart"])


def _distance(loss: float, reference: float) -> float:
    if not (math.isfinite(loss) and math.isfinite(reference)):
        return 0.0 if repr(loss) == repr(reference) else math.inf
    return abs(loss - reference) / max(abs(reference), 1e-12)


def check_parity(
    train_step: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    state: Sequence[Stateful],
    reference: Callable[[], AbstractContextManager[object]],
    steps: int = 20,
) -> Parity:
    """Train ``steps`` steps as they are and again inside ``reference()``, each time from the state as it is now.

    ``train_step`` takes a batch and returns its loss, a number or a tensor of one. ``state`` lists all that it changes.
    Everything is put back afterwards, also after an error, and both see the same batches and random numbers.

    Raises:
        ValueError: there is no batch, ``steps`` is less than one, or ``state`` is empty.
    """
    if steps < 1 or not state:
        raise ValueError(
            f"check_parity needs steps >= 1 and a state to put back, not steps={steps} and {len(state)} objects; "
            "list the model, the optimizer and the scaler."
        )
    with unchanged():
        first = list(islice(batches, steps))
    if not first:
        raise ValueError("check_parity got no batch to compare on.")
    with unchanged(*state):
        losses = _losses(train_step, first)
    with unchanged(*state), reference():
        return Parity(losses, _losses(train_step, first))


def _losses(train_step: Callable[[Any], Any], batches: Sequence[Any]) -> tuple[float, ...]:
    found: list[Any] = []
    for batch in batches:
        loss = train_step(batch)
        if loss is None:
            raise TypeError("check_parity needs a train_step that returns its loss; it returned None.")
        found.append(loss.detach().clone() if isinstance(loss, torch.Tensor) else loss)  # without its graph
    return tuple(map(float, found))

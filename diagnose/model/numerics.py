"""What a change does to the numbers: the words of its prescription, and the promise that a trial checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

NumericsPromise: TypeAlias = Literal["identical", "rounding", "reduced"]
"""What happens to the numbers: nothing, another order of roundings, or arithmetic of fewer bits."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """What happens to the numbers.

    ``promise`` is None where no comparison of losses can check it: the script trains differently.
    """

    promise: NumericsPromise | None
    detail: str = ""
    own_draws: bool = False  # samples that draw random numbers draw others than without the change
    first_epoch: bool = False  # the promise ends with it: later epochs draw other random numbers
    other_draws: bool = False  # whatever the script, other random numbers are drawn

    @property
    def safety(self) -> str:
        """Return the words of a prescription."""
        if self.promise == "identical":
            return f"same numbers{'' if self.detail.startswith(',') or not self.detail else ' '}{self.detail}"
        return f"may change the numbers: {self.detail}"


def identical(condition: str = "", *, own_draws: bool = False, first_epoch: bool = False) -> Numerics:
    """Return that the numbers stay the same; ``condition`` goes on after those words."""
    return Numerics("identical", condition, own_draws, first_epoch)


def rounding(what: str) -> Numerics:
    """Return that the numbers are rounded in another order; ``what`` names where, and how to check it."""
    return Numerics("rounding", what)


def reduced(what: str) -> Numerics:
    """Return that fewer bits are computed with; ``what`` names where, and how to check it."""
    return Numerics("reduced", what)


def redrawn(what: str) -> Numerics:
    """Return that other random numbers are drawn, of the same distribution; ``what`` names which."""
    return Numerics("reduced", what, other_draws=True)


def other_training(what: str) -> Numerics:
    """Return that the script trains differently, so that its losses cannot be compared."""
    return Numerics(None, what)


def number(facts: Mapping[str, object], key: str) -> float:
    """Return a number among the facts of a finding, 0 where it is not known."""
    value = facts.get(key)
    return float(value) if isinstance(value, int | float) else 0.0

"""What the device's memory holds at its peak, as far as a finding's facts show it, and what sharing it frees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding

__all__ = ["ACTIVATIONS", "OPTIMIZER", "held", "num_ranks", "share_freed"]

# Categories of `analyzers.common.memory`, which needs NumPy.
ACTIVATIONS, GRADIENTS, PARAMETERS, OPTIMIZER = "activations", "gradients", "parameters", "optimizer state"


def held(finding: Finding, *categories: str) -> int:
    """Return the bytes of these categories at the peak, 0 where they are not known."""
    known = finding.facts.get("by_category")
    sizes = [known.get(name, 0) for name in categories] if isinstance(known, Mapping) else []
    return sum(size for size in sizes if isinstance(size, int))


def num_ranks(finding: Finding) -> int:
    """Return the number of ranks, 1 where it is not known."""
    known = finding.facts.get("world_size")
    return known if isinstance(known, int) and known > 1 else 1


def share_freed(finding: Finding, what: Literal["model", "optimizer"]) -> int:
    """Return the bytes that a rank no longer holds where each keeps its share."""
    categories = (PARAMETERS, GRADIENTS, OPTIMIZER) if what == "model" else (OPTIMIZER,)
    return int(held(finding, *categories) * (1 - 1 / num_ranks(finding)))

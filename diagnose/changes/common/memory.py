"""What the device's memory holds at its peak, as far as a finding's facts show it, and what sharing it frees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from diagnose.model.limits import MAX_TIMES, USABLE_SHARE

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding

# Categories of `analyzers.common.memory`, which needs NumPy.
ACTIVATIONS, GRADIENTS, PARAMETERS, OPTIMIZER = "activations", "gradients", "parameters", "optimizer state"

# Of the link's rate that copies from pinned memory reach, at least and at most: hosts may be a generation older than
# the card, and memory may lie behind another processor.
LINK_SHARE = (0.4, 0.9)


def held(finding: Finding, *categories: str) -> int:
    """Return the bytes of these categories at the peak, 0 where they are not known."""
    known = finding.facts.get("by_category")
    sizes = [known.get(name, 0) for name in categories] if isinstance(known, Mapping) else []
    return sum(size for size in sizes if isinstance(size, int))


def num_ranks(finding: Finding) -> int:
    """Return the number of ranks, 1 where it is not known."""
    known = finding.facts.get("world_size")
    return known if isinstance(known, int) and known > 1 else 1


def freed_by(finding: Finding, categories: Sequence[str], share: float = 1.0) -> int:
    """Return the bytes at the peak of which a share is no longer held.

    Activations are each rank's own; of the model's state a rank then holds its part alone.
    """
    of_others = 1.0 if ACTIVATIONS in categories else 1 - 1 / num_ranks(finding)
    return int(held(finding, *categories) * share * of_others)


def batch_that_fits(finding: Finding, batch_size: int | None, frees_bytes: int, *, spares_samples: bool) -> int | None:
    """Return the largest batch that fits where ``frees_bytes`` are no longer held, None where it is not known.

    What grows with the batch grows in proportion to it; ``spares_samples``: what is freed is a part of that.
    """
    allocated, capacity = _known(finding, "allocated"), _known(finding, "capacity")
    growing = _known(finding, "growing")
    if not batch_size or not capacity or not growing:
        return None
    fixed = allocated - growing - (0 if spares_samples else frees_bytes)
    left = growing - (frees_bytes if spares_samples else 0)
    most = MAX_TIMES * batch_size
    fits = (USABLE_SHARE * capacity - fixed) * batch_size / left if left > 0 else most
    return max(int(min(fits, most)), 0)


def forward_again_ns(finding: Finding) -> tuple[float, float] | None:
    """Return what computing the forward pass once more costs a step: nothing where the device idles, at most all."""
    forward = _known(finding, "forward_ns")
    return (0.0, forward) if forward else None


def copied_ns(finding: Finding, num_bytes: int, *, hidden: bool) -> tuple[float, float] | None:
    """Return what it costs a step to copy bytes to the host and back; ``hidden``: at least nothing, where all is."""
    link = _known(finding, "link_gb_s")
    if not link or not num_bytes:
        return None
    slow, fast = (2 * num_bytes / (share * link) for share in LINK_SHARE)  # 1e9 bytes a second is a byte a ns
    return (0.0 if hidden else fast, slow)


def _known(finding: Finding, key: str) -> float:
    value = finding.facts.get(key)
    return float(value) if isinstance(value, int | float) else 0.0

"""How much a batch holds, as far as that is easily found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["num_numbers"]

MAX_BATCH_DEPTH, MAX_BATCH_PARTS = 3, 16  # of a batch that are looked at


def num_numbers(batch: Any, depth: int = 0) -> int:
    """Return how many numbers the tensors of a batch hold, as far as they are easily found."""
    if type(batch) in (tuple, list):  # the usual batch; looking for Mapping is several times as slow
        parts = batch[:MAX_BATCH_PARTS] if depth < MAX_BATCH_DEPTH else ()
        return sum([num_numbers(part, depth + 1) for part in parts])
    count = getattr(batch, "numel", None)
    if callable(count):
        try:
            return int(count())
        except Exception:  # a class of the script's own
            return 0
    if depth == MAX_BATCH_DEPTH or not isinstance(batch, Mapping | list | tuple):
        return 0
    held = list(batch.values() if isinstance(batch, Mapping) else batch)[:MAX_BATCH_PARTS]
    return sum(num_numbers(part, depth + 1) for part in held)

"""Cuts a chain of layers into stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["balanced"]


def balanced(costs: Sequence[float], num_parts: int) -> list[int]:
    """Return where to cut layers into ``num_parts`` parts in a row so that the most expensive part costs least.

    ``cuts[i]`` to ``cuts[i + 1]`` are part i; none is empty.

    Raises:
        ValueError: there are fewer layers than parts.
    """
    num = len(costs)
    if not 1 <= num_parts <= num:
        raise ValueError(f"{num} layers cannot be cut into {num_parts} stages; use fewer ranks, or finer layers.")
    sums = [0.0, *accumulate(costs)]
    best = list(sums)  # the cost of the most expensive part, for the first n layers in as many parts as so far
    cuts: list[list[int]] = []
    for parts in range(2, num_parts + 1):
        found, at = [float("inf")] * (num + 1), [0] * (num + 1)
        for end in range(parts, num + 1):
            found[end], at[end] = min((max(best[cut], sums[end] - sums[cut]), cut) for cut in range(parts - 1, end))
        best = found
        cuts.append(at)
    places = [num]
    for at in reversed(cuts):
        places.append(at[places[-1]])
    return [0, *reversed(places)]

"""Selects rows by masks at a fixed size, without synchronization.

What it cures
    `host-sync`: ``values[mask]`` has as many rows as the mask has ones, so the host waits for the device to count them.
    `launch-bound`: that one expression is four kernels and a copy. Rows in sequence are a view instead of a copy
    (`memory-pressure`).

When it does not help
    On a CPU, and where few of many rows are left and much is computed on them: then the wait is worth it.

Cost
    Reductions touch masked-out values too. ``compact`` allocates its capacity whatever the mask holds.

Numerics
    The same values, summed in another order: equal to rounding. Masked-out NaN and infinities do not reach results
    or gradients.

Example::

    from diagnose.kernels.indexing import assign_where, compact, masked_mean, select_rows

    losses, mask = torch.rand(64, requires_grad=True), torch.rand(64) > 0.5
    # before: loss = losses[mask].mean()
    loss = masked_mean(losses, mask)
    loss.backward()
    # before: kept = losses[mask][:32]
    kept, count = compact(losses, mask, capacity=32)  # rows behind count are zero
    # before: scores[mask] = other[mask]
    scores = assign_where(torch.zeros(64), mask, torch.ones(64))
    # before: rows = table[[8, 9, 10, 11]], a copy
    rows = select_rows(torch.randn(100, 4), [8, 9, 10, 11])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["as_slice", "assign_where", "compact", "masked_mean", "masked_sum", "select_rows"]

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
"""What sums are kept in, as torch's own mean does."""


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return ``values[mask].sum()``, or the sums along ``dim``, without counting on the host.

    ``mask`` is boolean and broadcasts to ``values``.

    Raises:
        TypeError: the mask is not boolean.
        ValueError: it does not broadcast to the values.
    """
    chosen = torch.where(_expanded(mask, values), values, 0)
    return chosen.sum() if dim is None else chosen.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return ``values[mask].mean()``, or the means along ``dim``; 0, not NaN, where the mask chooses nothing.

    Raises:
        TypeError: the mask is not boolean, or the values are integers.
        ValueError: the mask does not broadcast to the values.
    """
    if not (values.is_floating_point() or values.is_complex()):
        raise TypeError(f"masked_mean needs floating-point values, not {values.dtype}; call values.float() first.")
    full = _expanded(mask, values)
    count = full.sum() if dim is None else full.sum(dim)
    wide = WIDER.get(values.dtype, values.dtype)  # sums of many values overflow in 16 bits where their mean does not
    chosen = torch.where(full, values, 0)
    total = chosen.sum(dtype=wide) if dim is None else chosen.sum(dim, dtype=wide)
    return (total / count.clamp(min=1)).to(values.dtype)


def assign_where(target: Tensor, mask: Tensor, values: Tensor | complex) -> Tensor:
    """Write ``values`` into ``target`` where the mask is true, in place, and return the target.

    ``values`` broadcast to the target: its value at each place, not one for each true entry of the mask. Unlike
    ``target[mask].zero_()``, which changes a copy, this changes the target.

    Raises:
        TypeError: the mask is not boolean.
        ValueError: mask or values do not broadcast to the target.
    """
    full = _expanded(mask, target)
    if not isinstance(values, Tensor):
        return target.masked_fill_(full, values)
    return target.copy_(torch.where(full, _broadcast(values, target, "values"), target))


def compact(values: Tensor, mask: Tensor, *, capacity: int) -> tuple[Tensor, Tensor]:
    """Return the rows that the mask chooses, in order, in ``capacity`` rows, and how many there are, on the device.

    values: (N, ...), mask: (N,) → (capacity, ...), (). Rows behind the count are zero; chosen rows beyond the capacity
    are left out, and the count does not include them.

    Raises:
        TypeError: the mask is not boolean.
        ValueError: the mask is not one value for each row, or the capacity is less than one.
    """
    _check_mask(mask)
    if mask.shape != values.shape[:1]:
        raise ValueError(f"compact needs one mask value for each of {len(values)} rows, not {tuple(mask.shape)}.")
    if capacity < 1:
        raise ValueError(f"compact needs capacity >= 1, not {capacity}; give the most rows that are used.")
    place = mask.cumsum(0) - 1
    place = torch.where(mask & (place < capacity), place, capacity)  # the row behind the last takes what is left out
    rows = values.new_zeros((capacity + 1, *values.shape[1:])).index_copy(0, place, values)
    return rows[:capacity], mask.sum().clamp(max=capacity)


def select_rows(source: Tensor, index: Tensor | Sequence[int], *, out: Tensor | None = None) -> Tensor:
    """Return ``source[index]``: a view where the index runs in equal steps, else a copy, into ``out`` if given.

    A view shares memory with the source. Whether an index on a device runs in equal steps is not looked at, since that
    would wait for it. ``out`` is not used for views or where gradients flow, which need memory of their own.

    Raises:
        IndexError: an index on the host is out of range.
        TypeError: the index is boolean; use ``compact`` or ``masked_sum``.
    """
    if isinstance(index, Tensor) and index.dtype == torch.bool:
        raise TypeError("select_rows takes numbers of rows, not a mask; use compact, masked_sum or masked_mean.")
    if not isinstance(index, Tensor) or index.device.type == "cpu":
        run = as_slice(index, len(source))
        if run is not None:
            return source[run]
    places = torch.as_tensor(index, dtype=torch.long, device=source.device)
    places = torch.where(places < 0, places + len(source), places)
    if out is None or (source.requires_grad and torch.is_grad_enabled()):
        return source.index_select(0, places)
    return torch.index_select(source, 0, places, out=out)


def as_slice(index: Tensor | Sequence[int], length: int) -> slice | None:
    """Return the slice that chooses the same rows of ``length``, or None where there is none.

    torch has no negative steps, so falling indices have none.

    Raises:
        IndexError: an index is out of range.
    """
    places = [int(place) for place in (index.tolist() if isinstance(index, Tensor) else index)]
    if wrong := [place for place in places if not -length <= place < length]:
        raise IndexError(f"Row {wrong[0]} is out of range; there are {length} rows.")
    if not places:
        return slice(0, 0)
    places = [place % length for place in places]
    step = places[1] - places[0] if len(places) > 1 else 1
    if step < 1 or any(b - a != step for a, b in pairwise(places)):
        return None
    return slice(places[0], places[-1] + 1, step)


def _check_mask(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(f"The mask must be boolean, not {mask.dtype}; write mask.bool() or a comparison.")


def _expanded(mask: Tensor, values: Tensor) -> Tensor:
    _check_mask(mask)
    return _broadcast(mask, values, "mask")


def _broadcast(tensor: Tensor, target: Tensor, what: str) -> Tensor:
    try:
        return tensor.expand(target.shape)
    except RuntimeError as error:
        raise ValueError(
            f"The {what} of shape {tuple(tensor.shape)} does not broadcast to {tuple(target.shape)}; reshape it."
        ) from error

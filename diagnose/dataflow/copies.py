"""Which parts of a tensor are known copies of each other, wherever a view of it looks.

Expanded and overlapping views show the same memory several times. A value that was computed of such a view holds
copies, and where they lie follows from its strides; contents need not be looked at. Along a dimension, equal labels
mean equal parts. A storage keeps them as axes: positions a step apart, each with the first one that holds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.model.dataflow import Use
from diagnose.model.intervals import grouped
from diagnose.model.shapes import num_elements

__all__ = ["MAX_PARTS", "Argument", "Axes", "Axis", "Copies", "axes_of", "copies_in", "shared_copies"]

MAX_PARTS = 1 << 18  # that are told apart: a sort of more takes longer than 20 ms
_ODD = 0x9E3779B97F4A7C15  # its powers are the weights of a hash

Labels: TypeAlias = npt.NDArray[np.int64]


class Axis(NamedTuple):
    """Positions of a storage, some of which hold the same."""

    step: int  # elements from one to the next
    first: bytes  # for each the first one that holds the same, int64
    origin: int  # the operator that repeats them


Axes: TypeAlias = tuple[Axis, ...]


class Copies(NamedTuple):
    """Dimensions along which a tensor repeats some parts."""

    dims: tuple[int, ...]
    labels: Labels  # equal for equal parts, of the shape of the dimensions
    origin: int

    @property
    def num_distinct(self) -> int:
        """Return how many parts differ."""
        return int(self.labels.max()) + 1


class Argument(NamedTuple):
    """What an operator reads, and which of its dimensions become which of the result's."""

    use: Use
    dims: Mapping[int, int]  # those that are not named are consumed whole


def copies_in(argument: Argument, axes: Axes, origin: int) -> Iterator[Copies]:
    """Yield the copies that an operator sees along the dimensions that it keeps; ``origin`` made the view."""
    use, kept = argument
    moving = [d for d, size in enumerate(use.shape) if size > 1 and use.stride[d]]
    for d, to in kept.items():
        if use.shape[d] > 1 and not use.stride[d]:
            yield Copies((to,), np.zeros(use.shape[d], np.int64), origin)
    for group in _colliding(use, moving, axes):
        mine = [d for d in group if d in kept]
        sizes = [use.shape[d] for d in mine]
        others = [d for d in group if d not in kept]
        if not mine or num_elements(use.shape[d] for d in group) > MAX_PARTS:
            continue
        place = _places(use, [*mine, *others])
        by = origin
        for axis in axes:
            first = np.frombuffer(axis.first, np.int64)
            digit = place // axis.step % len(first)
            if (digit != digit.flat[0]).any():
                by = axis.origin
            place = place + (first[digit] - digit) * axis.step
        labels = _rows_numbered(place.reshape(num_elements(sizes), -1)).reshape(sizes)
        if labels.max() + 1 < labels.size:
            yield from _apart(Copies(tuple(kept[d] for d in mine), labels, by))


def _apart(one: Copies) -> Iterator[Copies]:
    """Yield copies along each dimension alone, where parts are equal if they are along each."""
    if len(one.dims) > 1:
        along = [
            _rows_numbered(np.moveaxis(one.labels, k, 0).reshape(size, -1)) for k, size in enumerate(one.labels.shape)
        ]
        each = [Copies((d,), labels, one.origin) for d, labels in zip(one.dims, along, strict=True)]
        if num_elements(c.num_distinct for c in each) == one.num_distinct:
            yield from (c for c in each if c.num_distinct < c.labels.size)
            return
    yield one


def _places(use: Use, dims: Sequence[int]) -> Labels:
    """Return where the elements along some dimensions lie."""
    place = np.full((1,) * len(dims), use.offset, np.int64)
    for k, d in enumerate(dims):
        along = np.arange(use.shape[d], dtype=np.int64) * use.stride[d]
        place = place + along.reshape([-1 if j == k else 1 for j in range(len(dims))])
    return place


def _rows_numbered(rows: Labels) -> Labels:
    """Return for each row a number that equal ones share."""
    weights = np.cumprod(np.full(rows.shape[1], _ODD, np.uint64))
    return _numbered((rows.astype(np.uint64) * weights).sum(1).view(np.int64) if rows.shape[1] > 1 else rows[:, 0])


def _numbered(labels: Labels) -> Labels:
    """Return labels as numbers from 0 without a gap."""
    return grouped(labels.ravel()).of.reshape(labels.shape).astype(np.int64)


def _colliding(use: Use, moving: Iterable[int], axes: Axes) -> list[list[int]]:
    """Return the dimensions that may reach one element in several ways, or that move along one axis, in groups."""
    order = sorted(moving, key=lambda d: use.stride[d])
    reach = {d: (use.shape[d] - 1) * use.stride[d] for d in order}
    group = {d: d for d in order}

    def merge(a: int, b: int) -> None:
        old, new = group[a], group[b]
        for d, root in group.items():
            group[d] = new if root == old else root

    for k, d in enumerate(order):
        lower = order[:k]
        while lower and use.stride[d] <= sum(reach[e] for e in lower):
            merge(lower.pop(), d)
    for axis in axes:
        period = axis.step * (len(axis.first) // 8)
        along = [d for d in order if use.stride[d] % period and reach[d] >= axis.step]
        for d in along[1:]:
            merge(d, along[0])
    shared = bool(axes) or len(set(group.values())) < len(order)
    return [[d for d in sorted(order) if group[d] == root] for root in set(group.values())] if shared else []


def shared_copies(
    shape: Sequence[int], arguments: Iterable[tuple[Argument, Sequence[Copies]]], kept: Iterable[int], origin: int
) -> list[Copies]:
    """Return the copies along the kept dimensions of a result: parts are equal if they are in each argument."""
    each = [
        (copies, {to for d, to in argument.dims.items() if argument.use.shape[d] > 1}) for argument, copies in arguments
    ]
    varied = {to for _, dims in each for to in dims}
    found = [Copies((d,), np.zeros(shape[d], np.int64), origin) for d in kept if shape[d] > 1 and d not in varied]
    groups: list[set[int]] = []
    for copies in (one for parts, _ in each for one in parts):
        joined = set(copies.dims).union(*(g for g in groups if not g.isdisjoint(copies.dims)))
        groups = [*(g for g in groups if g.isdisjoint(joined)), joined]
    for dims in (tuple(sorted(group)) for group in groups):
        one = _joined(tuple(shape[d] for d in dims), dims, each)
        if one is not None:
            found.append(one)
    return found


def _joined(
    sizes: tuple[int, ...], dims: tuple[int, ...], each: Iterable[tuple[Sequence[Copies], set[int]]]
) -> Copies | None:
    """Return the copies along some dimensions together, None if no two parts are equal in all arguments."""
    if num_elements(sizes) > MAX_PARTS:
        return None
    labels, origin = np.zeros(sizes, np.int64), -1
    for parts, varied in each:
        mine = [one for one in parts if set(one.dims) <= set(dims)]
        alone = varied.intersection(dims).difference(*(one.dims for one in mine))
        if len(alone) == len(dims):
            return None
        mine += [Copies((d,), np.arange(sizes[dims.index(d)], dtype=np.int64), -1) for d in alone]
        for one in mine:
            order = sorted(range(len(one.dims)), key=lambda k: one.dims[k])
            wide = one.labels.transpose(order)
            wide = wide.reshape([size if d in one.dims else 1 for d, size in zip(dims, sizes, strict=True)])
            labels = _numbered(labels * one.num_distinct + wide)
            origin = max(origin, one.origin)
    return Copies(dims, labels, origin) if labels.max() + 1 < labels.size else None


def axes_of(result: Use, copies: Iterable[Copies]) -> Axes:
    """Return the axes of a storage of which a result is all."""
    found = []
    for one in copies:
        order = sorted(range(len(one.dims)), key=lambda k: -result.stride[one.dims[k]])
        dims = [one.dims[k] for k in order]
        if all(result.stride[d] == result.shape[e] * result.stride[e] for d, e in pairwise(dims)):
            same = grouped(one.labels.transpose(order).ravel())
            where = same.first[same.of].astype(np.int64)
            found.append(Axis(result.stride[dims[-1]], where.tobytes(), one.origin))
    return tuple(found)

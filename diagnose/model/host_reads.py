"""What the host waits for the device for, as far as the names of the operators around the wait show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

WaitsFor: TypeAlias = Literal["copy", "exchange", "shape", "branch", "value", "synchronize"]
"""A copy from the host; the sizes of an exchange; the shape of a result; which branch to take; a value that is read;
nothing but that the device is done."""

SHARES: Mapping[str, WaitsFor] = MappingProxyType({"to_device": "copy", "feeds_exchange": "exchange"})
"""Facts of a finding that hold the share of the idle time with one reason."""

_REASONS: tuple[WaitsFor, ...] = get_args(WaitsFor)
# Operators whose result's shape depends on values, and those that a branch in Python rests on.
_SHAPES = frozenset(
    f"aten::{name}"
    for name in (
        *("nonzero", "masked_select", "index", "index_put", "index_put_", "_index_put_impl_", "where", "bincount"),
        *("_unique", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"),
    )
) | {"torchvision::nms"}
_BRANCHES = frozenset({"aten::is_nonzero", "aten::equal", "aten::allclose"})
_READS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::to", "aten::_to_copy", "aten::copy_"})


def read_by(operators: Iterable[str]) -> WaitsFor:
    """Return what operators around a wait read, outermost first: the outermost is the one that the script calls."""
    for op in operators:
        if op in _BRANCHES:
            return "branch"
        if op in _SHAPES:
            return "shape"
        if op in _READS:
            return "value"
    return "value"


def as_reason(value: object) -> WaitsFor | None:
    """Return a fact as a reason, None where it is none."""
    return next((reason for reason in _REASONS if reason == value), None)

"""Nested batches: what a loader yields, and one change to every tensor in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["Batch", "has_opaque", "mapped", "moved", "needs_pin", "pinned", "tensors"]

Batch: TypeAlias = Any
"""A tensor, an object that moves itself, or mappings, lists, tuples and dataclasses of them, however deep."""


def moved(batch: Batch, device: torch.device, *, non_blocking: bool) -> Batch:
    """Return the batch with every tensor on ``device``."""
    return mapped(batch, lambda leaf: leaf.to(device, non_blocking=non_blocking))


def pinned(batch: Batch) -> Batch:
    """Return the batch with what can be pinned in page-locked memory."""
    return mapped(batch, lambda leaf: leaf.pin_memory() if _can_pin(leaf) else leaf)


def needs_pin(batch: Batch) -> bool:
    """Return whether pinning would change anything."""
    return any(_can_pin(leaf) for leaf in _leaves(batch))


def tensors(batch: Batch) -> list[Tensor]:
    """Return the tensors of the batch, those inside objects that move themselves left out."""
    return [leaf for leaf in _leaves(batch) if isinstance(leaf, Tensor)]


def has_opaque(batch: Batch) -> bool:
    """Return whether the batch holds objects that move themselves."""
    return any(not isinstance(leaf, Tensor) for leaf in _leaves(batch))


def _is_opaque(value: object) -> bool:
    """Return whether the value moves itself: a PackedSequence, a graph, a tokenizer's output."""
    return not isinstance(value, type) and callable(getattr(value, "to", None))


def _can_pin(leaf: Batch) -> bool:
    """Return whether the leaf is in ordinary memory of the host and can be pinned."""
    if not isinstance(leaf, Tensor):
        is_pinned = getattr(leaf, "is_pinned", None)
        return callable(getattr(leaf, "pin_memory", None)) and not (callable(is_pinned) and is_pinned())
    strided = leaf.device.type == "cpu" and leaf.layout is torch.strided
    return strided and leaf.numel() > 0 and not leaf.is_pinned()


def _leaves(batch: Batch) -> list[Batch]:
    found: list[Batch] = []

    def keep(leaf: Batch) -> Batch:
        found.append(leaf)
        return leaf

    mapped(batch, keep)
    return found


def mapped(value: Batch, change: Callable[[Batch], Batch]) -> Batch:
    """Return the same nesting with every tensor and every object that moves itself replaced by ``change`` of it."""
    if isinstance(value, Tensor) or _is_opaque(value):
        return change(value)
    if isinstance(value, Mapping):
        return _rebuilt(value, {key: mapped(item, change) for key, item in value.items()})
    if isinstance(value, tuple):
        items = [mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: mapped(getattr(value, f.name), change) for f in fields(value) if f.init})
    return value


def _rebuilt(value: Mapping[Any, Batch], changed: dict[Any, Batch]) -> Batch:
    """Return a mapping of the same type; its copy keeps what a constructor would not, such as a default."""
    if type(value) is dict:
        return changed
    try:
        copied = value.copy()  # type: ignore[attr-defined]  # most mappings have it, and the others are caught
        copied.update(changed)
    except (AttributeError, TypeError):
        return changed
    return copied

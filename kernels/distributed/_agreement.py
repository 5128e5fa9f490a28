"""All ranks do the same, or all of them raise: an error on one rank is raised on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn

__all__ = ["check_alike", "group_of", "on_every_rank", "whole_group"]

T = TypeVar("T")


def whole_group(group: dist.ProcessGroup | None = None) -> dist.ProcessGroup:
    """Return the group, by default that of all ranks.

    Raises:
        RuntimeError: there is no process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("There is no process group; start with torchrun and call dist.init_process_group first.")
    found = group or dist.group.WORLD
    if found is None:
        raise RuntimeError("This rank is in no process group.")
    return found


def group_of(ddp: nn.Module, taker: str) -> dist.ProcessGroup:
    """Return the ranks that share a model's gradients; ``taker`` is what asks, for the message.

    Raises:
        TypeError: the model is not in DistributedDataParallel, compiled or not.
    """
    group = getattr(ddp, "process_group", None)
    if group is None:
        raise TypeError(f"{taker} takes a model in DistributedDataParallel, not {type(ddp).__name__}; wrap it first.")
    return group  # type: ignore[no-any-return]  # a module's attributes have no types


def on_every_rank(act: Callable[[], T], group: dist.ProcessGroup) -> list[T]:
    """Run ``act``, which must not exchange anything, and return what it returned on each rank.

    Raises:
        RuntimeError: it raised on another rank. On the rank where it raised, that error.
    """
    found: tuple[T | None, str] = (None, "")
    error: Exception | None = None
    try:
        found = act(), ""
    except Exception as caught:  # raised below, with the others
        error = caught
        found = None, f"{type(caught).__name__}: {caught}"
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, found, group=group)
    if error is not None:
        raise error
    for rank, (_, text) in enumerate(everyones):
        if text:
            raise RuntimeError(f"Rank {rank} stopped with {text}")
    return [value for value, _ in everyones]


def check_alike(what: str, value: object, group: dist.ProcessGroup) -> None:
    """Compare a value among ranks.

    Raises:
        ValueError: ranks have different ones.
    """
    everyones = on_every_rank(lambda: value, group)
    if any(other != everyones[0] for other in everyones):
        raise ValueError(f"Ranks were given different {what}: {everyones}; hand the same to all of them.")

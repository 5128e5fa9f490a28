"""Patches of DistributedDataParallel: its arguments, and hooks that exchange fewer bytes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from diagnose.changes.common.change import Log, SetArguments, Undo, replace_attribute
from diagnose.changes.common.gradients import BUCKETS, NO_BROADCAST, NO_SEARCH

WARM_UP_STEPS = 4  # of lossy hooks in a trial, which is shorter than the thousand that a training should take
RANK = 2  # of its products


def bucket_gradients(log: Log, options: Mapping[str, Any]) -> Undo:
    """Exchange gradients in buckets of a moderate size."""
    return _arguments(log, BUCKETS, options)


def overlap_gradients(log: Log, options: Mapping[str, Any]) -> Undo:
    """Exchange gradients in buckets that begin while backward is at work."""
    return _arguments(log, BUCKETS, options)


def no_buffer_broadcast(log: Log, options: Mapping[str, Any]) -> Undo:
    """Do not broadcast buffers in every forward."""
    return _arguments(log, NO_BROADCAST, options)


def no_unused_search(log: Log, options: Mapping[str, Any]) -> Undo:
    """Do not look for parameters that a forward did not use."""
    return _arguments(log, NO_SEARCH, options)


def compress_gradients(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Exchange gradients in bf16."""
    return _hook(log, "bf16", "gradients are exchanged in bf16")


def eight_bit_gradients(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Exchange gradients in 8 bits."""
    return _hook(log, "int8", "gradients are exchanged in 8 bits")


def low_rank_gradients(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Exchange gradients as products of thin matrices."""
    return _hook(log, "power_sgd", "gradients are exchanged as thin matrices", rank=RANK, warm_up=WARM_UP_STEPS)


def top_k_gradients(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Exchange the largest gradients."""
    return _hook(log, "top_k", "the largest gradients are exchanged", warm_up=WARM_UP_STEPS)


def one_bit_gradients(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Exchange the signs of gradients."""
    return _hook(log, "one_bit", "signs of gradients are exchanged", warm_up=WARM_UP_STEPS)


def hierarchical_exchange(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Exchange gradients inside each host first."""

    def made(ddp: Any) -> None:  # a DistributedDataParallel
        from diagnose.kernels.distributed.comm_hooks import install
        from diagnose.kernels.distributed.mesh import two_levels

        try:
            install(ddp, "hierarchical", mesh=two_levels(ddp.device_type, by="links"))
        except ValueError as error:
            log.left(str(error))
        else:
            log.did("DistributedDataParallel: gradients are summed inside each host first")

    return _around_init(lambda _given: None, made)


def _hook(log: Log, name: str, what: str, **options: object) -> Undo:
    def made(ddp: Any) -> None:  # a DistributedDataParallel
        from diagnose.kernels.distributed.comm_hooks import install

        install(ddp, name, **options)
        log.did(f"DistributedDataParallel: {what}")

    return _around_init(lambda _given: None, made)


def _arguments(log: Log, edit: SetArguments, options: Mapping[str, Any]) -> Undo:
    def change(given: dict[str, Any]) -> None:
        changed = edit.values(options)
        given.update(changed)
        log.did(f"DistributedDataParallel: {', '.join(f'{k}={v}' for k, v in changed.items())}")

    return _around_init(change, lambda _ddp: None)


def _around_init(change: Callable[[dict[str, Any]], None], made: Callable[[Any], None]) -> Undo:
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> None:  # whatever it takes
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        given.pop("self")
        change(given)
        original(self, **given)
        made(self)

    return replace_attribute(DistributedDataParallel, "__init__", patched)

"""Patches of DistributedDataParallel: its arguments, and a hook that halves what is exchanged."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from diagnose.changes.common.gradients import BUCKET_MB
from diagnose.changes.common.patching import Log, Undo, replace_attribute

__all__ = ["bucket_gradients", "compress_gradients", "no_buffer_broadcast", "overlap_gradients"]


def bucket_gradients(log: Log, options: Mapping[str, Any]) -> Undo:
    """Exchange gradients in buckets of a moderate size."""
    size = float(options.get("bucket_cap_mb") or BUCKET_MB)
    return _arguments(log, bucket_cap_mb=size, gradient_as_bucket_view=True)


def overlap_gradients(log: Log, options: Mapping[str, Any]) -> Undo:
    """Exchange gradients in buckets that begin while backward is at work."""
    size = float(options.get("bucket_cap_mb") or BUCKET_MB)
    return _arguments(log, bucket_cap_mb=size, gradient_as_bucket_view=True)


def no_buffer_broadcast(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Do not broadcast buffers in every forward."""
    return _arguments(log, broadcast_buffers=False)


def compress_gradients(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Exchange gradients in bf16."""

    def made(ddp: Any) -> None:  # a DistributedDataParallel
        from diagnose.kernels.distributed.comm_hooks import install

        install(ddp, "bf16")
        log.did("DistributedDataParallel: gradients are exchanged in bf16")

    return _around_init(lambda _given: None, made)


def _arguments(log: Log, **changed: object) -> Undo:
    def change(given: dict[str, Any]) -> None:
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

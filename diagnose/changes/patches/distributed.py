"""Patches of DistributedDataParallel: its arguments, and hooks that exchange fewer bytes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from diagnose.changes.common.change import Log, SetArguments, Undo, replace_attribute

WARM_UP_STEPS = 4  # of lossy hooks in a trial, which is shorter than the thousand that a training should take


HOOKS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "bf16": ("gradients are exchanged in bf16", {}),
    "int8": ("gradients are exchanged in 8 bits", {}),
    "power_sgd": ("gradients are exchanged as thin matrices", {"rank": 2, "warm_up": WARM_UP_STEPS}),
    "top_k": ("the largest gradients are exchanged", {"warm_up": WARM_UP_STEPS}),
    "one_bit": ("signs of gradients are exchanged", {"warm_up": WARM_UP_STEPS}),
}
"""What a hook does, in words, and its options in a trial."""


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


def hook(log: Log, options: Mapping[str, Any], *, name: str) -> Undo:  # the signature of a patch
    """Exchange gradients by one of the HOOKS."""
    what, arguments = HOOKS[name]

    def made(ddp: Any) -> None:  # a DistributedDataParallel
        from diagnose.kernels.distributed.comm_hooks import install

        install(ddp, name, **arguments)
        log.did(f"DistributedDataParallel: {what}")

    return _around_init(lambda _given: None, made)


def with_arguments(log: Log, options: Mapping[str, Any], *, edit: SetArguments) -> Undo:
    """Make every DistributedDataParallel with the arguments of an edit."""

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

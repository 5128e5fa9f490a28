"""Sends DDP gradients in fewer bytes or in two levels.

What it cures
    `exposed-communication` where the link is the limit: gradients cross it in 16, 8 or 1 bits, as the largest of them,
    as thin matrices, or once for each host.

When it does not help
    Where latency is the limit (many small buckets: see `bucket_tuning`), where the exchange is hidden under the
    backward already, and where ranks wait for a late one. `int8`, `one_bit` and `top_k`
    receive from every rank, and gain nothing beyond 8, 56 and 1 / `density` ranks.

Cost
    `fp16`, `bf16`: one pass over the gradients each way. `int8`: about six passes; memory for what rounding dropped and
    for every rank's bytes; `one_bit` likewise. `top_k`: a selection of each bucket's largest, a sort in all but name.
    `power_sgd`: four thin products and one small decomposition for each matrix; memory for the
    errors (as large as the gradients). On gloo those of several rounds (`int8`, `one_bit`, `top_k`, `power_sgd`,
    `hierarchical`) are waited for in the backward.

Numerics
    `plain` and `hierarchical` round differently only. `fp16` loses means below 6e-8, `bf16` all but 8 bits; `int8`,
    `power_sgd`, `one_bit` and `top_k` lose more, and send it later (error feedback). After 60 steps of a small
    network the loss was within 0.1 % of plain DDP's with `fp16`, `bf16` and `int8`, 0.7 % above it with `power_sgd`
    of rank 4 and 5.9 % of rank 1 (evaluation/pages/remedies.md). Compare the first steps with `hook_trials`. Save the
    hook's `state_dict` with the model's, on every rank: errors differ.

Example::

    from diagnose.kernels.distributed.comm_hooks import install

    ddp = DistributedDataParallel(model)
    hook = install(ddp, "power_sgd", rank=2, warm_up=1000)
    for x, y in loader:
        criterion(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    checkpoint = {"model": model.state_dict(), "hook": hook.state_dict()}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._cast import BFloat16, Float16, Plain
from diagnose.kernels.distributed._hierarchical import Hierarchical
from diagnose.kernels.distributed._hook import Bucket, CommHook
from diagnose.kernels.distributed._int8 import Int8
from diagnose.kernels.distributed._one_bit import OneBit
from diagnose.kernels.distributed._power_sgd import PowerSGD
from diagnose.kernels.distributed._top_k import TopK

__all__ = ["CommHook", "comm_hook", "hook_names", "install", "register"]

_HOOKS: dict[str, Callable[..., CommHook]] = {
    kind.name: kind for kind in (Plain, Float16, BFloat16, Int8, OneBit, TopK, PowerSGD, Hierarchical)
}


def hook_names() -> list[str]:
    """Return the names that ``comm_hook`` accepts."""
    return sorted(_HOOKS)


def register(name: str, make: Callable[..., CommHook]) -> None:
    """Add a hook of your own to the names; ``make`` takes its options and returns it.

    Raises:
        ValueError: the name is taken.
    """
    if name in _HOOKS:
        raise ValueError(f"A hook named {name!r} exists already; register yours under another name.")
    _HOOKS[name] = make


def comm_hook(name: str, **options: Any) -> CommHook:  # each hook's own
    """Return a new hook by its name, one of ``hook_names()``, with its options.

    Raises:
        ValueError: there is no such name, or an option's value is out of range.
        TypeError: the hook has no such option.
    """
    if name not in _HOOKS:
        raise ValueError(f"Invalid hook {name!r}: use one of {', '.join(hook_names())}.")
    make = _HOOKS[name]
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        takes = ", ".join(inspect.signature(make).parameters) or "no options"
        raise TypeError(f"The hook {name!r} takes {takes}: {error}.") from None
    return make(**options)


def install(ddp: nn.Module, hook: CommHook | str | Callable[..., Any], **options: Any) -> CommHook:
    """Let ``ddp`` exchange its gradients through a hook, and return the hook.

    ``hook`` is a name with its options, what ``comm_hook`` returned, or a function ``(state, bucket)`` as torch takes
    it, with ``state=`` as its only option. Call it before the first backward pass, on all ranks.

    Raises:
        TypeError: ``ddp`` is no DistributedDataParallel; options were given that the hook does not take.
        ValueError: the model or the hook is taken already, or the hook does not suit the model.
    """
    ddp = getattr(ddp, "_orig_mod", ddp)  # of torch.compile
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"Hooks are for DistributedDataParallel, not for {type(ddp).__name__}; "
            "a model sharded by fully_shard sends 16 bits with MixedPrecisionPolicy(reduce_dtype=…)."
        )
    if taken := _taken_by(ddp):
        raise ValueError(
            f"This model has the hook {taken!r} already, and torch takes one; build it again to change it."
        )
    if isinstance(hook, str):
        hook = comm_hook(hook, **options)
    elif not isinstance(hook, CommHook):
        hook = _Function(hook, **options)
    elif options:
        raise TypeError(
            f"Options go to comm_hook({hook.name!r}, …); install got {', '.join(options)} with a made hook."
        )
    hook.bind(ddp)
    ddp.register_comm_hook(None, _guarded(hook))
    return hook


class _Function(CommHook):
    """A hook in torch's own form."""

    takes_sparse = True  # as far as is known

    def __init__(self, function: Callable[..., Any], *, state: object = None) -> None:
        super().__init__()
        if not callable(function):
            raise TypeError(f"install takes a hook's name, a hook or a function, not {type(function).__name__}.")
        self.function, self.state = function, state
        self.name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, bucket: Bucket) -> Future[Tensor]:
        """Run it; what it sends is not known."""
        return self.function(self.state, bucket)  # type: ignore[no-any-return]  # checked by the guard


def _guarded(hook: CommHook) -> Callable[..., Any]:
    """Return the plain function that torch wants, by its parameter's name; it refuses annotations that are strings.

    torch crashes the process where a hook returns None, so that is an error here.
    """

    def guarded(_: object, bucket: Bucket) -> Future[Tensor]:
        future = hook(bucket)
        if not callable(getattr(future, "then", None)):
            raise TypeError(
                f"The hook {hook.name!r} returned {type(future).__name__}; it has to return a Future of the bucket, "
                "such as dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])."
            )
        return future

    guarded.__annotations__ = {}
    guarded.__qualname__ = hook.name  # what DDP's own log shows
    return guarded


def _taken_by(ddp: DistributedDataParallel) -> str:
    for registered, _ in getattr(ddp, "_comm_hooks", ()):
        return str(registered.__qualname__)
    return str(ddp._get_ddp_logging_data().get("comm_hook") or "")  # type: ignore[no-untyped-call]

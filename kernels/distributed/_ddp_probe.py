"""Watches the parameters and buffers of a model in DistributedDataParallel over a few real steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Observed", "observe", "statistics_of_norms"]


@dataclass(frozen=True)
class Observed:
    """What one rank saw: how often each parameter got a gradient, step by step, and which buffers a forward wrote."""

    gradients: tuple[dict[str, int], ...]
    written: frozenset[str]


def observe(ddp: DistributedDataParallel, train_step: Callable[[Any], Any], batches: Sequence[Any]) -> Observed:
    """Run one step for each batch without exchanging gradients, so that it works whatever is unused."""
    steps: list[dict[str, int]] = []
    written: set[str] = set()
    for batch in batches:
        with _counting(ddp.module) as counts, _watching_buffers(ddp.module, written), ddp.no_sync():
            train_step(batch)
        steps.append(dict(counts))
    return Observed(tuple(steps), frozenset(written))


@contextmanager
def _counting(module: nn.Module) -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        for name, p in module.named_parameters():
            if p.requires_grad:
                handle = p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda _, n=name: counts.update([n])
                )
                stack.callback(handle.remove)
        yield counts


@contextmanager
def _watching_buffers(module: nn.Module, written: set[str]) -> Iterator[None]:
    """Note the buffers whose version a forward raises; DDP broadcasts before that, and raises it as well."""
    versions: dict[str, int] = {}

    def before(*_: object) -> None:
        versions.update({name: b._version for name, b in module.named_buffers()})

    def after(*_: object) -> None:
        written.update(name for name, b in module.named_buffers() if versions.get(name) != b._version)

    handles = module.register_forward_pre_hook(before), module.register_forward_hook(after)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def statistics_of_norms(module: nn.Module) -> set[str]:
    """Return the buffers of batch normalisation: no training step reads them."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        if isinstance(part, _NormBase) and part.training
        for name, _ in part.named_buffers(recurse=False)
    }

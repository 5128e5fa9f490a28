"""Hooks into what changes edit: constructors of DataLoader, optimizers and DistributedDataParallel; first batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["OnMade", "watch_constructions", "watch_first_batches"]

OnMade: TypeAlias = Callable[[str, object], None]
"""Called with the name that a class is known by and with the object, before its constructor returns."""


def watch_constructions(made: OnMade) -> Callable[[], None]:
    """Report every object of these classes while the call that makes it is being executed; return what ends that."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.optimizer import Optimizer
    from torch.utils.data import DataLoader

    undo = [
        _after_init(DataLoader, lambda loader: made("DataLoader", loader)),
        _after_init(Optimizer, lambda optimizer: made(type(optimizer).__name__, optimizer)),
        _after_init(DistributedDataParallel, lambda model: made("DistributedDataParallel", model)),
    ]

    def end() -> None:
        for one in reversed(undo):
            one()

    return end


def _after_init(cls: Any, then: Callable[[object], None]) -> Callable[[], None]:  # a class of torch
    original = cls.__init__

    @functools.wraps(original)
    def constructed(self: object, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        then(self)

    cls.__init__ = constructed

    def undo() -> None:
        if cls.__init__ is constructed:
            cls.__init__ = original

    return undo


def watch_first_batches(seen: Callable[[object, object], None]) -> Callable[[], None]:
    """Report the first batch of each dataset with the dataset; return what ends that."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original = _BaseDataLoaderIter.__next__
    known: set[int] = set()

    @functools.wraps(original)
    def delivered(self: Any) -> object:  # torch's iterator, whose type is private
        batch = original(self)
        dataset = getattr(self, "_dataset", None)
        if id(dataset) not in known:
            known.add(id(dataset))
            seen(dataset, batch)
        return batch

    _BaseDataLoaderIter.__next__ = delivered  # type: ignore[method-assign]  # wrapped on purpose

    def undo() -> None:
        if _BaseDataLoaderIter.__next__ is delivered:
            _BaseDataLoaderIter.__next__ = original  # type: ignore[method-assign]

    return undo

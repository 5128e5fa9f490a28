"""Hooks into the constructors whose arguments changes are made to: DataLoader, optimizers, DistributedDataParallel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["OnMade", "watch_constructions"]

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

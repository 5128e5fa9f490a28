"""What every wrapper around a loader hands through: its length, its attributes, the epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

__all__ = ["LoaderWrapper"]

T = TypeVar("T")


class LoaderWrapper(Generic[T]):
    """Stands for ``loader``: attributes that are not the wrapper's (``dataset``, ``batch_size``) are the loader's."""

    def __init__(self, loader: Iterable[T]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        """Return the loader's number of batches."""
        return len(self.loader)  # type: ignore[arg-type]  # a loader without a length raises its own error

    def __getattr__(self, name: str) -> Any:  # whatever the loader has
        if name == "loader":  # not set yet: this is a copy in the making
            raise AttributeError(name)
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Hand the epoch to whatever shuffles by it: the loader, its dataset, its sampler or its batch sampler."""
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        inner = [getattr(self.loader, name, None) for name in ("dataset", "sampler")]
        for part in (self.loader, *inner, batch_sampler, getattr(batch_sampler, "sampler", None)):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)

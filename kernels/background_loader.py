"""Loads the next batches on a thread during the step.

What it cures
    `data-stall` where the training process loads by itself (``num_workers=0``) and worker processes are no way out: the
    dataset holds what cannot be sent to them, or there is no memory for copies of it.

When it does not help
    When a sample is made by Python code that holds the interpreter's lock; waiting for files and networks, numpy, image
    decoding and decompression let go of it. Beside worker processes that keep up. When no core is free.

Cost
    One thread, and memory for ``ahead`` more batches. torch operators of the dataset run on that thread, with a thread
    pool of their own.

Numerics
    The same batches in the same order. A dataset that draws from the global random generators would share them with the
    model's draws in no certain order; where the second batch shows that it does, everything is loaded in the calling
    thread as before, with a warning.

Example::

    from diagnose.kernels.background_loader import BackgroundLoader

    batches = BackgroundLoader(DataLoader(dataset, batch_size=16, shuffle=True), ahead=2)
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for batch in batches:  # the next two are being loaded
            train_step(batch)
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from diagnose.kernels._state import fingerprint
from diagnose.kernels._wrapping import LoaderWrapper

__all__ = ["BackgroundLoader"]

T = TypeVar("T")
END = object()


class BackgroundLoader(LoaderWrapper[T]):
    """Iterates over ``loader``, which is asked for up to ``ahead`` batches early, on a thread.

    The loader's errors arrive where a plain loop would meet them. A loop may be left early and started again.

    Raises:
        ValueError: ``ahead`` is less than one.
    """

    def __init__(self, loader: Iterable[T], *, ahead: int = 2) -> None:
        if ahead < 1:
            raise ValueError(
                f"BackgroundLoader needs ahead >= 1, not {ahead}; use the loader itself to load nothing early."
            )
        super().__init__(loader)
        self.ahead = ahead

    def __iter__(self) -> Generator[T, None, None]:
        """Yield every batch; the first two are loaded here, to see whether loading draws random numbers."""
        source = iter(self.loader)
        try:
            yield next(source)  # the sampler draws its seed here
            before = fingerprint()
            second = next(source)
        except StopIteration:
            return
        draws = before != fingerprint()
        yield second
        del second
        if not draws:
            yield from self._ahead_of(source)
            return
        warnings.warn(
            "BackgroundLoader loads in the calling thread: the dataset draws from the global random generators, which "
            "a thread would share with the model; give the dataset its own generator, or use worker processes.",
            stacklevel=2,
        )
        yield from source

    def _ahead_of(self, source: Iterator[T]) -> Iterator[T]:
        pool = ThreadPoolExecutor(1, thread_name_prefix="load-batches")
        coming: deque[Future[T | object]] = deque(pool.submit(next, source, END) for _ in range(self.ahead))
        try:
            while (batch := coming.popleft().result()) is not END:
                coming.append(pool.submit(next, source, END))
                yield batch  # type: ignore[misc]  # the end was just ruled out
                del batch  # the user alone decides how long it lives
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

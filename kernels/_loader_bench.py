"""Tries a DataLoader in other settings on the same batches, and builds it anew in them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import default_collate

from diagnose.kernels._loader_costs import Step, private_bytes, same
from diagnose.kernels._nested import Batch, moved
from diagnose.kernels._state import random_state
from diagnose.kernels.background_loader import BackgroundLoader
from diagnose.kernels.concurrent_samples import ConcurrentSamples, gives_whole_batches

__all__ = ["Bench", "LoaderTrial", "Settings", "SteadyLoader", "can_gather", "can_thread", "rebuilt"]


@dataclass(frozen=True)
class Settings:
    """What is changed of a loader."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    whole_batches: bool = False  # the dataset is asked for a batch at once (``__getitems__``)
    in_order: bool = True
    threads: int = 1  # that load the samples of a batch, in each worker or in the training process
    receive_ahead: bool = False  # workers' batches are received on a thread, not when the step asks for them

    def __str__(self) -> str:
        parts = [f"{self.num_workers} workers"]
        parts += [f"{self.threads} threads each" if self.num_workers else f"{self.threads} threads"][: self.threads - 1]
        parts += [f"{self.prefetch_factor} batches ahead each"] if self.prefetch_factor else []
        parts += ["whole batches"] if self.whole_batches else []
        parts += ["received on a thread"] if self.receive_ahead else []
        parts += [] if self.in_order else ["in any order"]
        return ", ".join(parts)


@dataclass(frozen=True)
class LoaderTrial:
    """One setting that was tried."""

    settings: Settings
    seconds: float | None  # for one step with its batch; None where it failed
    error: str = ""


class SteadyLoader(DataLoader[Any]):
    """A DataLoader whose epochs draw from the random generators as one without persistent workers does.

    torch draws a seed for its workers at the start of each epoch, but not where the workers live on; the next
    shuffle would then be another one. With ``receive_ahead`` workers' batches are received on a thread; without page
    locking, which has one of its own, torch receives a batch when the step asks for it, and the step waits meanwhile.
    """

    receive_ahead = False
    _received: Callable[[], _Received | None] = staticmethod(lambda: None)

    def __iter__(self) -> Any:  # torch's iterator is private
        former = self._received()
        if former is not None:
            former.close()  # its thread asks the same workers
        if self.persistent_workers and self.num_workers > 0 and self._iterator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        batches = super().__iter__()
        if self.receive_ahead and self.num_workers > 0:
            received = _Received(batches)
            self._received = weakref.ref(received)
            return received
        return batches


class _Received:
    """The batches of torch's iterator, received on a thread; everything else is the iterator's own."""

    def __init__(self, batches: Any) -> None:  # torch's iterator is private
        self._torch = batches
        self._batches = iter(BackgroundLoader(batches))

    def __iter__(self) -> _Received:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._torch)

    def __getattr__(self, name: str) -> Any:  # whatever torch's iterator has
        if name == "_torch":  # not there yet
            raise AttributeError(name)
        return getattr(self._torch, name)

    def close(self) -> None:
        """End the thread; the workers go on."""
        self._batches.close()

    def _shutdown_workers(self) -> None:
        self.close()
        self._torch._shutdown_workers()


@dataclass(frozen=True)
class Bench:
    """Tries settings on the same batches."""

    loader: DataLoader[Any]
    entries: Sequence[Any]
    expected: Sequence[Batch]  # what the first batches must be, bit by bit
    step: Step | None
    device: torch.device
    seconds: float

    @property
    def pin(self) -> bool:
        """Return whether batches go to a device, which page-locked memory is for."""
        return self.device.type == "cuda"

    def run(self, settings: Settings) -> tuple[LoaderTrial, int]:
        """Return how it went, and the private memory of one worker (bytes; 0: unknown)."""
        restore = random_state()
        try:
            with _closing(rebuilt(self.loader, settings, pin=self.pin, entries=self.entries)) as batches:
                taken, memory = self._loop(batches, settings)
        except Exception as error:  # whatever workers die of rules the setting out, not the tuning
            if settings == Settings():
                raise
            return LoaderTrial(settings, None, f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"), 0
        finally:
            restore()
        return (LoaderTrial(settings, taken) if taken else LoaderTrial(settings, None, "gave other batches")), memory

    def _loop(self, batches: Iterator[Batch], settings: Settings) -> tuple[float | None, int]:
        """Return the seconds per step once the queues are as full as they stay, None where a batch was not the same."""
        stamps: list[float] = []
        memory = 0
        skip = min(len(self.entries) // 2, settings.num_workers * (settings.prefetch_factor or 0) + 1)
        for number, batch in enumerate(batches):
            if settings.in_order and number < len(self.expected) and not same(batch, self.expected[number]):
                return None, 0
            if self.step is not None:
                self.step(moved(batch, self.device, non_blocking=True) if self.device.type != "cpu" else batch)
            stamps.append(time.perf_counter())
            if number == skip:
                memory = max((private_bytes(w.pid) for w in getattr(batches, "_workers", ())), default=0)
            if number > skip + 2 and stamps[-1] - stamps[skip] > self.seconds:
                break
        later = stamps[skip:]
        return (later[-1] - later[0]) / (len(later) - 1) if len(later) > 1 else stamps[-1] - stamps[0] or None, memory


class _closing:
    """Iterates over a loader and ends its workers at once, whatever happens."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __enter__(self) -> Iterator[Batch]:
        self.batches = iter(self.loader)
        return self.batches

    def __exit__(self, *_: object) -> None:
        end = getattr(self.batches, "_shutdown_workers", None)
        if end is not None:
            end()


def can_gather(loader: DataLoader[Any]) -> bool:
    """Return whether a batch of the dataset can be gathered at once where it was indexed item by item."""
    return (
        type(loader.dataset) is TensorDataset
        and loader.collate_fn is default_collate
        and loader.batch_sampler is not None
    )


class Gathered(TensorDataset):
    """A TensorDataset that gives a whole batch for a list of indices."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        rows = torch.tensor(indices)
        return [tensor[rows] for tensor in self.tensors]


def as_it_is(batch: list[torch.Tensor]) -> list[torch.Tensor]:
    """Collate nothing: the batch was gathered whole."""
    return batch


def can_thread(loader: DataLoader[Any]) -> bool:
    """Return whether batches are put together from samples that are asked for one by one."""
    return loader.batch_sampler is not None and not gives_whole_batches(loader.dataset)


def rebuilt(
    loader: DataLoader[Any], settings: Settings, *, pin: bool, entries: Sequence[Any] | None = None
) -> DataLoader[Any]:
    """Return a loader over the same dataset, samplers and generator with other settings.

    With ``entries`` the dataset is asked for these, once, instead of the sampler's.
    """
    dataset, workers = loader.dataset, settings.num_workers
    collate = loader.collate_fn
    if settings.whole_batches:
        dataset, collate = Gathered(*dataset.tensors), as_it_is  # type: ignore[attr-defined]  # as can_gather found
    elif settings.threads > 1:
        dataset = ConcurrentSamples(dataset, threads=settings.threads)
    persistent = workers > 0 and entries is None and not hasattr(loader.dataset, "set_epoch")
    arguments: dict[str, Any] = {
        "num_workers": workers,
        "prefetch_factor": settings.prefetch_factor if workers else None,
        "persistent_workers": persistent,  # where the dataset takes the epoch, living workers would keep the old one
        "collate_fn": collate,
        "pin_memory": loader.pin_memory or pin,
        "timeout": loader.timeout if workers else 0,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context if workers else None,
        "generator": loader.generator if entries is None else None,
        "in_order": settings.in_order,
    }
    if entries is not None:
        one_by_one = loader.batch_sampler is None
        arguments |= {"batch_size": None, "sampler": entries} if one_by_one else {"batch_sampler": entries}
    elif loader.batch_size is not None or loader.batch_sampler is None:
        arguments |= {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last}
    else:
        arguments["batch_sampler"] = loader.batch_sampler
    found = SteadyLoader(dataset, **arguments)
    found.receive_ahead = settings.receive_ahead
    return found

"""Patches of the DataLoader: worker processes, threads, and batches copied to the device ahead of time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from diagnose.changes.common.change import REMOVED, Log, Undo, replace_attribute
from diagnose.changes.common.loading import (
    FIRST_WORKERS,
    IN_PROCESS,
    KEEPING_WORKERS,
    MORE_WORKERS,
    PREFETCH_FACTOR,
    THREADS,
)
from diagnose.model.launched import usable_cores


def load_in_workers(log: Log, options: Mapping[str, Any]) -> Undo:
    """Give every DataLoader without workers some, kept alive between epochs.

    A stream that shares itself out among workers gets one: with several, batches would hold other samples.
    """
    wanted = int(options.get("workers") or min(4, usable_cores()))

    def change(given: dict[str, Any]) -> None:
        edits, why = FIRST_WORKERS.of_call(given, _pinned(options))
        if why:
            log.left(f"a DataLoader: {why}")
            return
        stream = _is_iterable(given["dataset"])
        if stream and not _shares_out(given["dataset"]):
            log.left("a DataLoader over an IterableDataset: each worker would repeat the whole stream")
            return
        num = 1 if stream else wanted
        given.update({**edits, "num_workers": num})
        log.did(f"DataLoader: num_workers 0 to {num}, persistent_workers=True")

    return _change_arguments(change)


def more_workers(log: Log, options: Mapping[str, Any]) -> Undo:
    """Give every DataLoader with workers more of them, kept alive, with more batches ahead."""

    def change(given: dict[str, Any]) -> None:
        has = given.get("num_workers") or 0
        wanted = int(options.get("workers") or min(2 * has, max(usable_cores(), has)))
        edits, why = MORE_WORKERS.of_call(given, {**_pinned(options), "workers": wanted})
        if why:
            log.left(f"a DataLoader: {why}")
            return
        if _is_iterable(given["dataset"]):
            log.left("a DataLoader over an IterableDataset: how it is split depends on the number of workers")
            return
        given.update(edits)
        log.did(
            f"DataLoader: num_workers {has} to {wanted}, persistent_workers=True, prefetch_factor={PREFETCH_FACTOR}"
        )

    return _change_arguments(change)


def load_in_process(log: Log, options: Mapping[str, Any]) -> Undo:
    """Let every DataLoader with workers load in the process that asks for its batches."""

    def change(given: dict[str, Any]) -> None:
        has = given.get("num_workers") or 0
        edits, why = IN_PROCESS.of_call(given, options)
        if why:
            log.left(f"a DataLoader: {why}")
            return
        given.update(edits)
        log.did(f"DataLoader: num_workers {has} to 0")

    return _change_arguments(change)


def keep_workers(log: Log, options: Mapping[str, Any]) -> Undo:
    """Let the workers of every DataLoader live on between epochs."""

    def change(given: dict[str, Any]) -> None:
        edits, why = KEEPING_WORKERS.of_call(given, options)
        if why:
            log.left(f"a DataLoader: {why}")
            return
        given.update(edits)
        log.did("DataLoader: persistent_workers=True")

    return _change_arguments(change)


def load_on_thread(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let every DataLoader without workers load the coming batches on a thread."""
    from torch.utils.data import DataLoader

    from diagnose.kernels.background_loader import BackgroundLoader

    original = DataLoader.__iter__

    @functools.wraps(original)
    def ahead(self: Any) -> Iterator[Any]:  # a DataLoader of anything
        if self.num_workers:
            log.left(f"a DataLoader that has {self.num_workers} workers already")
            return original(self)
        log.did("DataLoader: batches are loaded on a thread, two ahead")
        return iter(BackgroundLoader(_Plain(self, original)))

    return replace_attribute(DataLoader, "__iter__", ahead)


def concurrent_samples(log: Log, options: Mapping[str, Any]) -> Undo:
    """Let the samples of each batch of a map-style DataLoader be loaded by threads at the same time."""
    from diagnose.changes.patches.noted_samples import NotedSamples

    threads = int(options.get("threads") or THREADS)

    def change(given: dict[str, Any]) -> None:
        try:
            samples = NotedSamples(given["dataset"], threads=threads)
        except TypeError as error:
            log.left(f"a DataLoader: {error}")
            return
        given["dataset"] = samples
        log.did_unless(
            samples.fell_back,
            f"DataLoader: the samples of a batch are loaded by {threads} threads",
            "a DataLoader whose dataset draws from the global random generators: its samples are loaded one by one",
        )

    return _change_arguments(change)


def cache_samples(log: Log, options: Mapping[str, Any]) -> Undo:
    """Keep the samples of every map-style DataLoader in shared memory once they were loaded."""
    from diagnose.changes.patches.noted_samples import CachedSamples
    from diagnose.kernels.concurrent_samples import gives_whole_batches

    num_bytes = int(options.get("bytes") or 1 << 30)  # of shared memory in a trial

    def change(given: dict[str, Any]) -> None:
        if _is_iterable(given["dataset"]):
            log.left("a DataLoader over an IterableDataset: a stream has no samples to come back to")
            return
        if gives_whole_batches(given["dataset"]):
            log.left(f"a DataLoader whose {type(given['dataset']).__name__} gives whole batches")
            return
        samples = CachedSamples(given["dataset"], num_bytes=num_bytes)
        given["dataset"] = samples
        log.did_unless(
            samples.fell_back,
            f"DataLoader: samples are kept in {num_bytes / 1e9:.1f} GB of shared memory from their first load on",
            "a DataLoader whose samples differ from load to load: nothing is kept of them",
        )

    return _change_arguments(change)


def prefetch_to_device(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let every DataLoader hand out batches that are on the device already, copied on a side stream."""
    import torch
    from torch.utils.data import DataLoader

    from diagnose.kernels.prefetch import DevicePrefetcher

    original = DataLoader.__iter__

    @functools.wraps(original)
    def ahead(self: Any) -> Iterator[Any]:  # a DataLoader of anything
        device = torch.device("cuda", torch.cuda.current_device())
        log.did(f"DataLoader: batches are copied to {device} one step ahead")
        return iter(DevicePrefetcher(_Plain(self, original), device))

    return replace_attribute(DataLoader, "__iter__", ahead)


class _Plain:
    """A loader as it was before the patch."""

    def __init__(self, loader: Any, iterate: Any) -> None:  # a DataLoader, and its own __iter__
        self._loader, self._iterate = loader, iterate

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._loader)  # type: ignore[no-any-return]  # an iterator of batches

    def __len__(self) -> int:
        return len(self._loader)


def _change_arguments(change: Any) -> Undo:  # a function of the bound arguments
    """Let ``change`` edit the arguments of every DataLoader that is made."""
    from torch.utils.data import DataLoader

    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:  # whatever it takes
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        given.pop("self")
        extra = given.pop("kwargs", {})
        change(given)
        left = {name: value for name, value in given.items() if value is not REMOVED}
        original(self, **left, **extra)

    return replace_attribute(DataLoader, "__init__", made)


def _pinned(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a prescription, or where there is none those for the machine."""
    import torch

    return options if "workers" in options else {"pin_memory": True} if torch.cuda.is_available() else {}


def _is_iterable(dataset: object) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)


def _shares_out(dataset: object) -> bool:
    """Return whether a method of the dataset's own asks which worker it is in."""
    methods = [method for cls in type(dataset).__mro__ for method in vars(cls).values()]
    return any("get_worker_info" in getattr(getattr(m, "__code__", None), "co_names", ()) for m in methods)

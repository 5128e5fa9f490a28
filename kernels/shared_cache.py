"""Caches a deterministic part of the dataset for all workers.

What it cures
    `data-stall` where samples are slow to read or decode, and all of them, or the ones wanted most, fit the budget:
    from the second epoch on they are mapped into memory instead. A dictionary in the dataset cannot do that: each
    worker has its own, and loses it with the epoch.

When it does not help
    In the first epoch. For stages that draw random numbers: keep augmentation outside, after the cache. When the budget
    is much smaller than the data and every sample is wanted equally often: the oldest goes before it is wanted again.

Cost
    Up to ``num_bytes`` of shared memory, or of the disk under ``path``; tens of µs for a hit, and under ``path`` a
    checksum of the value, about 0.5 ms per MB. Each process computes its first value twice, to see that the stage
    repeats itself.

Numerics
    None: values come back bit by bit. What a worker changes in place stays its own.

Example::

    from diagnose.kernels.shared_cache import SharedCache

    cache = SharedCache(256 << 20)  # one budget for all workers
    decode = cache.stage(decode, version="1")  # the slow, deterministic part; change the version with the code
    loader = DataLoader(Augmented(files, decode), batch_size=16, num_workers=2)
    for batch in loader:
        train_step(batch)
    print(cache.counts())  # hits, misses, evicted, ... over all processes
    cache.close()
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import types
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from diagnose.kernels._atomic_write import remove_leftovers
from diagnose.kernels._cache_files import Ledger, load, pack, store
from diagnose.kernels._loader_costs import same
from diagnose.kernels._private_files import check_folder, make_private
from diagnose.kernels._state import fingerprint

__all__ = ["CacheCounts", "SharedCache"]

P = ParamSpec("P")
R = TypeVar("R")

KEEP_SHARE = 0.9
"""When the budget is full, the oldest go until this share is left: so files are listed once for many insertions."""


@dataclass(frozen=True)
class CacheCounts:
    """What happened so far, over all processes."""

    hits: int
    misses: int
    evicted: int
    refused: int  # values larger than the budget, or no room left on the device
    held_bytes: int


class SharedCache:
    """A cache of at most ``num_bytes`` that forked and spawned workers and all ranks of the machine can share.

    Without ``path`` it lives in shared memory and goes with the process that made it. With ``path``, a folder, it stays
    for later runs; give every rank the same one. The least recently used values go first.

    Raises:
        ValueError: ``num_bytes`` is not positive.
        PermissionError: another user owns, can write or can replace ``path``, whose values could run code here.
    """

    def __init__(self, num_bytes: int, *, path: str | os.PathLike[str] | None = None) -> None:
        if num_bytes < 1:
            raise ValueError(f"SharedCache needs num_bytes >= 1, not {num_bytes}; such as 4 << 30 for 4 GB.")
        self.num_bytes = num_bytes
        self._remove: Callable[[], object] | None = None
        self._named: dict[str, Callable[..., Any]] = {}  # by prefix, in this process
        self.stays = path is not None
        if path is None:
            shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            self.folder = Path(tempfile.mkdtemp(prefix="sample-cache-", dir=shared))
            self._remove = weakref.finalize(self, _remove_own, self.folder, os.getpid())
        else:
            self.folder = Path(path)
            make_private(self.folder)
        self._identity = _identity(self.folder)
        self._ledger = Ledger(self.folder / "ledger")

    def __getstate__(self) -> dict[str, Any]:
        """Send the folder to a spawned worker, which uses it and does not remove it."""
        return {
            "num_bytes": self.num_bytes, "folder": self.folder, "_identity": self._identity, "stays": self.stays,
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if _identity(self.folder) != self._identity:
            raise PermissionError(f"{self.folder} has been replaced since this process got it; make a new cache.")
        self._remove, self._named = None, {}
        self._ledger = Ledger(self.folder / "ledger")

    def stage(self, function: Callable[P, R], *, version: str = "", name: str | None = None) -> CachedStage[P, R]:
        """Return ``function`` with its results kept.

        Its arguments must be strings, numbers, paths, bytes or tuples of them. ``version`` is part of the key: change
        it with the function's code, or with what it reads. ``name`` is the other part, and by default the function's
        own. Methods, lambdas, partials and functions within functions have none that tells two of them apart: their
        results are found again within this cache, and one with a path needs a ``name`` for them.

        Raises:
            ValueError: the cache has a path and the function no name of its own, or another function has its name.
        """
        prefix = f"{name or self._name_of(function)}@{version}"
        if self._named.setdefault(prefix, function) != function:
            raise ValueError(
                f"The name {prefix.partition('@')[0]!r} belongs to another function of this cache, whose values it "
                "would get; pass another name= or version=."
            )
        return CachedStage(self, function, prefix)

    def _name_of(self, function: Callable[..., Any]) -> str:
        if (own := _own_name(function)) is not None:
            return own
        if self.stays:
            raise ValueError(
                f"{_shown(function)} has no name by which later runs would "
                "find its values again and no other function's; pass name=, such as name='train'."
            )
        known = (prefix.partition("@")[0] for prefix, other in self._named.items() if other == function)
        return next(known, uuid.uuid4().hex)

    def counts(self) -> CacheCounts:
        """Return what happened so far, over all processes."""
        return CacheCounts(**self._ledger.read())

    def close(self) -> None:
        """Remove a cache that lives in shared memory; one with a path stays."""
        if self._remove is not None:
            self._remove()

    def get(self, key: str) -> tuple[Any] | None:
        """Return the value under a file name, in a tuple, or None where there is none."""
        found = load(self.folder / key, all_of_it=self.stays)  # a disk may damage it between runs
        self._ledger.add(hits=int(found is not None), misses=int(found is None))
        return found

    def put(self, key: str, value: Any) -> None:  # whatever the stage returns
        """Keep the value, if there is room once the least recently used are gone."""
        chunks = pack(value)
        size = sum(map(len, chunks))
        if size > self.num_bytes:
            self._ledger.add(refused=1)
            return
        with self._ledger.locked() as totals:
            if totals["held_bytes"] + size > self.num_bytes:
                self._evict(totals, int(KEEP_SHARE * self.num_bytes) - size)
            path = self.folder / key
            if path.exists():  # another worker was faster
                return
            try:
                store(path, chunks)
            except OSError:
                totals["refused"] += 1
                return
            totals["held_bytes"] += size

    def _evict(self, totals: dict[str, int], keep: int) -> None:
        remove_leftovers(self.folder)
        files = [(e.stat().st_mtime_ns, e.stat().st_size, e.path) for e in os.scandir(self.folder) if len(e.name) == 32]
        held = sum(size for _, size, _ in files)  # what is there, also after a process died in between
        for _, size, path in sorted(files):
            if held <= max(keep, 0):
                break
            Path(path).unlink(missing_ok=True)
            held -= size
            totals["evicted"] += 1
        totals["held_bytes"] = held


class CachedStage(Generic[P, R]):
    """A function whose results are kept; made by ``SharedCache.stage``."""

    def __init__(self, cache: SharedCache, function: Callable[P, R], prefix: str) -> None:
        self.cache, self.function, self.prefix = cache, function, prefix
        self.checked_in: int | None = None  # the process that saw the function repeat itself

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function's result for these arguments, computed or kept.

        Raises:
            TypeError: an argument cannot be part of a key.
            ValueError: the function gave two different results for the same arguments.
        """
        text = "|".join([self.prefix, *map(_key, args), *(f"{name}={_key(kwargs[name])}" for name in sorted(kwargs))])
        key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        found = self.cache.get(key)
        if found is not None:
            return found[0]  # type: ignore[no-any-return]  # what this function returned
        value = self._computed(*args, **kwargs)
        self.cache.put(key, value)
        return value

    def _computed(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.checked_in == os.getpid():
            return self.function(*args, **kwargs)
        before = fingerprint()
        first = self.function(*args, **kwargs)
        if before != fingerprint() or not same(first, self.function(*args, **kwargs)):
            raise ValueError(
                f"{_shown(self.function)} is not deterministic, and a cache would freeze one outcome for all "
                "epochs; cache the part before the random augmentation."
            )
        self.checked_in = os.getpid()
        return first


def _own_name(function: Callable[..., Any]) -> str | None:
    """Return the name that leads to this function alone, None where there is none, as of a method or a lambda."""
    if isinstance(function, types.BuiltinFunctionType):
        is_bound = not (function.__self__ is None or isinstance(function.__self__, types.ModuleType))
        return None if is_bound else f"{function.__module__}.{function.__qualname__}"
    if not isinstance(function, types.FunctionType | type) or "<" in function.__qualname__:
        return None
    code = getattr(function, "__code__", None)
    if getattr(function, "__closure__", None) is not None and not _is_found(function):
        return None  # made by another function, and named as what it wraps
    script = f"{Path(code.co_filename).name}:" if code is not None and function.__module__ == "__main__" else ""
    return f"{script}{function.__module__}.{function.__qualname__}"


def _is_found(function: Callable[..., Any]) -> bool:
    found: object = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _shown(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def _key(value: object) -> str:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, os.PathLike):
        return f"path:{os.fspath(value)!r}"
    if isinstance(value, tuple):
        return f"({','.join(map(_key, value))})"
    if hasattr(value, "__index__"):  # numpy's integers and tensors of one
        return f"int:{value.__index__()!r}"
    raise TypeError(
        f"A cached stage was called with a {type(value).__name__}, which has no stable name across processes; "
        "pass an index, a path, a string or a tuple of them, and let the stage look the rest up."
    )


def _identity(folder: Path) -> tuple[int, int]:
    """Return which folder it is, whatever its name, after checking that it is this user's alone."""
    found = check_folder(folder)
    return found.st_dev, found.st_ino


def _remove_own(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker inherits the finalizer, but not the folder
        shutil.rmtree(folder, ignore_errors=True)

"""What loading a batch takes and depends on: its processes, its random draws, the function and the loop around it."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import inspect
import os
import sys
import time
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from diagnose.capture.record.sampler import is_users
from diagnose.capture.record.source_lines import tree_of
from diagnose.capture.steps.hooks import nothing

# What the processes that load batches read and compute: Linux's own counters, read at the ends of each window.
#
# Reading them takes some 0.1 ms a process, outside the steps that are timed. A worker that is replaced at the begin of
# an epoch counts from its first reading to its last one.


class _Reading(NamedTuple):
    """One process at one moment; None where the kernel does not show it."""

    time_s: float
    disk_bytes: int | None  # fetched from storage
    read_bytes: int | None  # returned by reads, from storage or the page cache, pipes and sockets included
    major_faults: int
    user_s: float
    system_s: float
    swap_bytes: int


class LoadingCounters:
    """Sums up what the loading processes did between the first reading and the last."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._first: dict[int, _Reading] = {}
        self._last: dict[int, _Reading] = {}
        self._batches = [0, 0]  # delivered at the first and at the last reading
        self._in_workers = False

    def read(self, workers: Sequence[int], batches: int) -> None:
        """Take a reading of the workers, of this process where there are none; ``batches`` were delivered so far."""
        if bool(workers) != self._in_workers or not self._first:
            self._first.clear()
            self._last.clear()
            self._in_workers = bool(workers)
            self._batches[0] = batches
        self._batches[1] = batches
        for pid in workers or [os.getpid()]:
            reading = _read(self._proc / str(pid))
            if reading is not None:
                self._first.setdefault(pid, reading)
                self._last[pid] = reading

    def summary(self, batch_size: int | None) -> dict[str, float]:
        """Return what was measured by the names of the loader's record; what is not known is missing."""
        pairs = [(first, self._last[pid]) for pid, first in self._first.items()]
        # Shorter intervals are a few ticks of the clock.
        pairs = [(a, b) for a, b in pairs if b.time_s - a.time_s >= 0.05]
        if not pairs:
            return {}
        lasted = max(b.time_s - a.time_s for a, b in pairs)
        lived = sum(b.time_s - a.time_s for a, b in pairs)
        user = sum(b.user_s - a.user_s for a, b in pairs)
        system = sum(b.system_s - a.system_s for a, b in pairs)
        found = {
            "processes": float(len(pairs)),
            "cpu_share": (user + system) / lived,
            "major_faults_per_s": sum(b.major_faults - a.major_faults for a, b in pairs) / lasted,
            "swapped_mb": sum(b.swap_bytes for _, b in pairs) / 1e6,
        }
        if all(None not in (*a, *b) for a, b in pairs):
            disk, read = (sum((b[i] or 0) - (a[i] or 0) for a, b in pairs) for i in (1, 2))
            found |= {"disk_mb_per_s": disk / 1e6 / lasted, "read_mb_per_s": read / 1e6 / lasted}
            if read > 0:
                found["cached_share"] = min(1.0, max(0.0, 1 - disk / read))
        samples = (self._batches[1] - self._batches[0]) * (batch_size or 0)
        if self._in_workers and samples > 0:  # in the training process most of the CPU time is the training's
            found |= {"user_ms_per_sample": user * 1e3 / samples, "system_ms_per_sample": system * 1e3 / samples}
        return {name: round(value, 4) for name, value in found.items()}


def _read(process: Path) -> _Reading | None:
    """Return the counters of a process, None where it has ended or this is not Linux."""
    try:
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        fields = (process / "stat").read_text().rpartition(") ")[2].split()
        status = (process / "status").read_text()
        major_faults, user, system = int(fields[9]), int(fields[11]) * tick_s, int(fields[12]) * tick_s
        swap = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmSwap:")), 0)
    except (OSError, ValueError, IndexError):
        return None
    disk = read = None
    with contextlib.suppress(OSError, ValueError, KeyError):  # a kernel or a container may not show them
        lines = dict(line.split(": ") for line in (process / "io").read_text().splitlines())
        disk, read = int(lines["read_bytes"]), int(lines["rchar"])
    return _Reading(time.monotonic(), disk, read, major_faults, user, system, swap)


# Whether loading a batch in the script's process draws random numbers: the generators before and after it.

# Packages whose transforms draw from generators of their own, which nothing here sees.
_OWN_GENERATORS = ("albumentations", "audiomentations", "imgaug", "monai", "torchio")


class DrawnBatches:
    """Looks at the global generators around a few batches of each dataset.

    An iterator's first batch is left out: with it the sampler draws the seed of its order.
    """

    def __init__(self) -> None:
        self._own: set[int] = set()  # datasets with generators of their own
        self._begun: Callable[[], Any] = nothing  # the iterator whose first batch came
        self._before: tuple[Hashable, ...] = ()
        self._looked: Counter[int] = Counter()  # batches, by dataset
        self._drew: set[int] = set()

    def asked(self, iterator: Any) -> None:  # torch's iterator, whose type is private
        """Take down where the generators stand before a batch is made."""
        self._before = ()
        if self._begun() is not iterator:
            self._begun = weakref.ref(iterator)
            return
        dataset = getattr(iterator, "_dataset", None)
        if self._looked[id(dataset)] < 4:  # 30 µs each
            if not self._looked[id(dataset)] and _has_generator(dataset):
                self._own.add(id(dataset))
            self._before = random_state()

    def delivered(self, dataset: object, iterator: object) -> None:
        """Compare with where they stand once it is there."""
        if self._before and self._begun() is iterator:
            self._looked[id(dataset)] += 1
            if random_state() != self._before:
                self._drew.add(id(dataset))
        self._before = ()

    def of(self, dataset: int) -> bool | None:
        """Return whether batches of a dataset, by its id, draw random numbers; None where that is not known."""
        if dataset in self._drew:
            return True
        is_hidden = dataset in self._own or any(name in sys.modules for name in _OWN_GENERATORS)
        return False if self._looked[dataset] >= 2 and not is_hidden else None


def _has_generator(dataset: object) -> bool:
    """Return whether a dataset, or what it holds, as a transform, has a generator of random numbers of its own."""
    import random

    import torch

    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        kinds = (*kinds, numpy.Generator, numpy.RandomState)
    pending: list[Any] = [dataset]
    seen = set[int]()
    while pending and len(seen) < 500:  # objects of a dataset
        held = pending.pop()
        if isinstance(held, kinds):
            return True
        if id(held) not in seen and not isinstance(held, type):
            seen.add(id(held))
            pending += getattr(held, "__dict__", {}).values()
            if type(held) in (list, tuple, dict) and len(held) <= 50:
                pending += held.values() if type(held) is dict else held
    return False


def random_state() -> tuple[Hashable, ...]:
    """Return the state of the generators that torch, NumPy and Python draw from unless they are given another.

    Nothing where it cannot be read: the script may have put generators of its own in their place.
    """
    import random

    import torch

    with contextlib.suppress(Exception):
        state = torch.default_generator.get_state()
        words = (ctypes.c_char * state.numel()).from_address(state.data_ptr()) if state.numel() else b""
        found: list[Hashable] = [zlib.crc32(words), hash(random.getstate())]
        if "numpy" in sys.modules:
            name, key, *rest = sys.modules["numpy"].random.get_state()
            found += [name, zlib.crc32(key), *rest]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it so
            found += [generator.get_offset() for generator in torch.cuda.default_generators]
        return tuple(found)
    return ()


# Whether a script comes back to its samples, and the function of its own that makes batches.


def comes_again(frame: FrameType | None) -> bool | None:
    """Return whether the loop over a loader that is being opened is in another one, so that a script comes back to it.

    The line of a `for` is no part of its body. None where the source of an open call is not known.
    """
    with contextlib.suppress(Exception):  # a script must not fail for what is only printed
        while frame is not None and _module(frame).startswith(("diagnose.", "torch.utils.data")):
            frame = frame.f_back
        while frame is not None and not _module(frame).startswith(("runpy", "diagnose.")):  # below the script's own
            inside = _is_in_a_loop(frame.f_code.co_filename, frame.f_lineno)
            if inside is not False:
                return inside
            frame = frame.f_back
        return False
    return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_in_a_loop(file: str, line: int) -> bool | None:
    tree = tree_of(file)
    if tree is None:
        return None
    open_here = [node for node in ast.walk(tree) if getattr(node, "lineno", line + 1) <= line <= (node.end_lineno or 0)]  # type: ignore[attr-defined]
    scopes = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    begins = max((node.lineno for node in open_here if isinstance(node, scopes)), default=0)
    # A loop around a function's definition runs it no more.
    return any(
        begins <= node.lineno and node.body[0].lineno <= line
        for node in open_here
        if isinstance(node, ast.For | ast.AsyncFor | ast.While)
    )


def batch_maker(loader: Any, dataset: object) -> tuple[str, int, int, str] | None:
    """Return the file, first and last line, and name of the function; None where libraries make the batches."""
    methods = (getattr(type(dataset), name, None) for name in ("__getitem__", "__iter__"))
    return next(filter(None, map(_of_users, (getattr(loader, "collate_fn", None), *methods))), None)


def batch_choosers(loader: Any) -> tuple[tuple[str, int, int, str], ...]:
    """Return the same of the functions that choose the samples of a batch, none of them a library's."""
    chooser = getattr(loader, "batch_sampler", None)
    each = (chooser, getattr(loader, "sampler", None), getattr(chooser, "sampler", None))
    return tuple(dict.fromkeys(filter(None, (_of_users(getattr(type(one), "__iter__", None)) for one in each))))


def _of_users(function: Any) -> tuple[str, int, int, str] | None:
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):  # an object that is called
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not is_users(code):
        return None
    last = code.co_firstlineno
    with contextlib.suppress(OSError):  # the source is not known
        last += len(inspect.getsourcelines(code)[0]) - 1
    return code.co_filename, code.co_firstlineno, last, code.co_name

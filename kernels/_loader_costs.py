"""What loading a batch costs, and how many workers a machine has room for."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from diagnose.kernels._nested import Batch, moved, tensors
from diagnose.kernels._state import fingerprint

__all__ = [
    "Costs",
    "Room",
    "draws_numbers",
    "fetch",
    "free_bytes",
    "index_batches",
    "measure_costs",
    "private_bytes",
    "room_for_workers",
    "same",
]

Step: TypeAlias = Callable[[Batch], object]


@dataclass(frozen=True)
class Costs:
    """Seconds for one batch, medians: what each part of feeding and of training takes."""

    samples: float  # reading and transforming the samples, in the training process
    collate: float
    transfer: float  # to the device; 0 where the batch stays on the host
    step: float  # 0 where no step was given
    batch_bytes: int

    @property
    def load(self) -> float:
        """What one process needs for one batch, seconds."""
        return self.samples + self.collate


def index_batches(loader: DataLoader[Any], num: int) -> list[Any]:
    """Return what the samplers ask the dataset for first; the caller puts the random state back."""
    source = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    found: list[Any] = []
    for entry in source:
        found.append(entry)
        if len(found) == num:
            break
    return found


def fetch(loader: DataLoader[Any], entry: Any) -> tuple[Any, float, float]:  # an index or a list of them
    """Load one batch in this process; return it and the seconds for its samples and for collating them."""
    dataset = loader.dataset
    start = time.perf_counter()
    if loader.batch_sampler is None:
        samples = dataset[entry]
    elif callable(whole := getattr(dataset, "__getitems__", None)):
        samples = whole(entry)
    else:
        samples = [dataset[index] for index in entry]
    middle = time.perf_counter()
    batch = loader.collate_fn(samples)
    return batch, middle - start, time.perf_counter() - middle


def measure_costs(
    loader: DataLoader[Any], entries: Sequence[Any], step: Step | None, device: torch.device, seconds: float
) -> tuple[Costs, list[Batch]]:
    """Load, move and train on the batches one after the other until ``seconds`` are over; return medians and batches.

    The first batch warms caches up and is not counted where there are more.
    """
    rows: list[tuple[float, float, float, float]] = []
    batches: list[Batch] = []
    end = time.perf_counter() + seconds
    for entry in entries:
        batch, samples, collate = fetch(loader, entry)
        batches.append(batch)
        start = time.perf_counter()
        there = moved(batch, device, non_blocking=False) if device.type != "cpu" else batch
        transfer = time.perf_counter() - start if device.type != "cpu" else 0.0
        rows.append((samples, collate, transfer, _timed(step, there, device)))
        if time.perf_counter() > end:
            break
    samples, collate, transfer, taken = (statistics.median(column) for column in zip(*(rows[1:] or rows), strict=True))
    size = max(sum(t.numel() * t.element_size() for t in tensors(batch)) for batch in batches)
    return Costs(samples, collate, transfer, taken, batch_bytes=size), batches


def _timed(step: Step | None, batch: Batch, device: torch.device) -> float:
    if step is None:
        return 0.0
    start = time.perf_counter()
    step(batch)
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
    return time.perf_counter() - start


def draws_numbers(loader: DataLoader[Any], entries: Sequence[Any], batches: Sequence[Batch]) -> str:
    """Return the evidence that samples depend on more than their index, "" where there is none.

    The batches are loaded a second time, from other random states; the caller puts those back.
    """
    torch.manual_seed(torch.initial_seed() ^ 0x5EED)
    random.seed(0x5EED)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0x5EED)
    before = fingerprint()
    for entry, batch in zip(entries, batches, strict=False):
        again = fetch(loader, entry)[0]
        if not same(again, batch):
            return "the same index gave another sample when it was asked for again"
    return "" if before == fingerprint() else "samples draw from the training process's random generators"


def same(one: Any, other: Any) -> bool:  # noqa: PLR0911  # batches, of any nesting: a case each
    """Return whether two batches agree bit by bit, NaNs included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and _same_bits(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one) and not isinstance(one, type):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if type(one).__module__ == "numpy":
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124  # NaN
    if getattr(type(one), "__eq__", None) is object.__eq__:  # nothing but its identity: its attributes stand for it
        return same(vars(one), vars(other)) if hasattr(one, "__dict__") else True
    return bool(one == other)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True)
class Room:
    """How many workers fit, and the limit that decides it."""

    workers: int
    reason: str


def room_for_workers(
    *, local_ranks: int, memory_bytes: int | None, worker_bytes: int, batch_bytes: int, prefetch: int
) -> Room:
    """Return how many workers this process may start: cores, memory and shared memory shared with the other ranks."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rooms = [Room(max(1, cores // local_ranks), f"{cores} cores for {local_ranks} rank(s)")]
    memory = memory_bytes if memory_bytes is not None else free_bytes()
    if memory is not None and worker_bytes + batch_bytes:
        num = memory // local_ranks // (worker_bytes + prefetch * batch_bytes)
        rooms.append(Room(int(num), f"{memory >> 20} MB of memory, {worker_bytes >> 20} MB a worker"))
    shared = _shared_memory_bytes()
    if shared is not None and batch_bytes:
        num = shared // local_ranks // ((prefetch + 1) * batch_bytes)
        rooms.append(Room(int(num), f"{shared >> 20} MB of shared memory, {batch_bytes >> 10} kB a batch"))
    return min(rooms, key=lambda room: room.workers)


MEMORY_SHARE = 0.5
"""The share of free memory that loading may take: the rest is for the model's own growth and for file caches."""


def free_bytes() -> int | None:
    """Return the memory that may be taken, None where the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    if free is None:
        return None
    return int(MEMORY_SHARE * min(free, *_group_limits()))


def _group_limits() -> Iterator[int]:
    yield 1 << 62
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such group, or "max"
            yield max(0, int(Path(limit).read_text()) - int(Path(used).read_text()))


def _shared_memory_bytes() -> int | None:
    try:
        return int(MEMORY_SHARE * shutil.disk_usage("/dev/shm").free)
    except OSError:
        return None


def private_bytes(pid: int) -> int:
    """Return the memory that only this process has, bytes; 0 where the system does not report it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))

"""Lists the lines that hold memory at the peak.

What it cures
    Nothing by itself; it names what to change for `memory-pressure` and `memory-fragmentation`, and what outlives a
    step without need.

When it does not help
    On memory that is not torch's: libraries, NCCL, other processes.

Cost
    ``memory_watch``: microseconds an operator, for a step or two. ``snapshot_on_oom``: on a GPU some per cent while it
    records, and a few kilobytes of host memory for each of ``max_entries`` allocations; on a CPU nothing until memory
    runs out.

Numerics
    None: nothing is computed differently.

Example::

    from diagnose.kernels.memory_snapshot import memory_watch, snapshot_on_oom

    batches = iter(loader)
    train_step(*next(batches))  # the first step makes what stays
    with memory_watch() as watch:
        train_step(*next(batches))
    log(watch)  # the peak, and the lines that hold it
    log(watch.alive())  # what outlived the step
    with snapshot_on_oom(folder):  # the whole run; writes only when memory runs out
        for x, y in batches:
            train_step(x, y)
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from diagnose.kernels._lifetimes import ELSEWHERE, OWN, Held, Lifetimes, lines_of, memory_watch

__all__ = ["Held", "Lifetimes", "held_by_line", "is_out_of_memory", "live_tensors", "memory_watch", "snapshot_on_oom"]

MAX_ENTRIES = 100_000
"""Allocations and frees that are remembered: some tens of steps, and at most a few hundred MB on the host."""

SHOWN = 30
"""Lines of a report: what follows holds next to nothing."""

_log = logging.getLogger(__name__)


@contextmanager
def snapshot_on_oom(
    folder: str | Path, *, max_entries: int = MAX_ENTRIES, record: bool | None = None
) -> Iterator[list[Path]]:
    """Write what holds the memory into ``folder`` when memory runs out within the block, and let the error through.

    A text file lists it by line of code (on a GPU) or by kind of tensor (elsewhere). On a GPU a ``.pickle`` beside it
    opens in torch's memory viewer. ``record``: whether the lines are recorded; by default where there is a GPU. The
    list that is yielded holds the files that were written.

    Raises:
        ValueError: ``max_entries`` is less than one.
        RuntimeError: ``record`` was asked for where torch cannot.
    """
    if max_entries < 1:
        raise ValueError(f"snapshot_on_oom needs max_entries >= 1, not {max_entries}.")
    has_device = torch.cuda.is_available()
    if record and not has_device:
        raise RuntimeError("Allocations can be recorded on a CUDA device only; leave record out, or use memory_watch.")
    recording = has_device if record is None else record
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)  # before hours of training, not after
    files: list[Path] = []
    if recording:
        torch.cuda.memory._record_memory_history(max_entries=max_entries)
    try:
        yield files
    except BaseException as error:
        if is_out_of_memory(error):
            files += _write(target, error, recording)
        raise
    finally:
        if recording:
            torch.cuda.memory._record_memory_history(enabled=None)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error is that a device, or the host, has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)


def held_by_line(snapshot: Mapping[str, Any]) -> list[Held]:
    """Return what the blocks in use hold, by the line that allocated them, most first.

    ``snapshot`` is ``torch.cuda.memory._snapshot()`` or what was read from a pickle of it.
    """
    return lines_of(
        [
            (_place(block.get("frames", ())), block.get("requested_size", block["size"]))
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["state"].startswith("active")  # also those that wait for another stream
        ]
    )


def live_tensors() -> list[Held]:
    """Return the tensors that Python holds, by kind, most first; those that only a graph holds are not among them.

    Memory that several tensors share counts once, for the first one found.
    """
    seen: set[int] = set()
    found: list[tuple[str, int]] = []
    for thing in gc.get_objects():
        try:
            # not isinstance: it asks proxies for their class, and some of them warn or import
            if not issubclass(type(thing), Tensor) or issubclass(type(thing), FakeTensor) or thing.is_meta:
                continue
            address, num_bytes = thing.untyped_storage().data_ptr(), thing.untyped_storage().nbytes()
        except (
            ReferenceError,
            RuntimeError,
            NotImplementedError,
        ):  # dying proxies, tensors without memory
            continue
        if address and address not in seen:
            seen.add(address)
            kind = type(thing).__name__ + (" with gradient" if thing.grad_fn is not None else "")
            found.append((f"{kind} {tuple(thing.shape)} {thing.dtype} on {thing.device}", num_bytes))
    return lines_of(found)


def _write(folder: Path, error: BaseException, recording: bool) -> list[Path]:
    """Write the report; failing at that must not hide the error itself."""
    rank = os.environ.get("RANK", "0")
    stem = folder / f"out-of-memory-rank{rank}-{os.getpid()}-{time.time_ns()}"
    files = [stem.with_suffix(".txt")]
    try:
        if recording:
            snapshot = torch.cuda.memory._snapshot()
            held, title = held_by_line(snapshot), "by line of code"
            files.append(stem.with_suffix(".pickle"))
            with files[-1].open("wb") as file:
                pickle.dump(snapshot, file)
        else:
            held, title = live_tensors(), "by kind of tensor"
        total = sum(one.num_bytes for one in held) / 1e6
        lines = [str(error).partition("\n")[0], "", f"{total:.2f} MB are held, {title}:", *map(str, held[:SHOWN])]
        files[0].write_text("\n".join(lines) + "\n", encoding="utf-8")
    except (OSError, RuntimeError, MemoryError) as problem:
        _log.warning("memory ran out, and what held it could not be written: %s", problem)
        return [file for file in files if file.exists()]
    _log.error("memory ran out; what held it is in %s", files[0])
    return files


def _place(frames: Any) -> str:  # a list of dictionaries
    for frame in frames:
        if frame["filename"].endswith(".py") and not frame["filename"].startswith(OWN):
            return f"{frame['filename']}:{frame['line']} in {frame['name']}"
    return ELSEWHERE

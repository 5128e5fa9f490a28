"""Loads a few batches again in a child process, whose copy of the script is thrown away.

The child is forked, as workers of a loader are. It ends where a sample writes a file, starts a process or connects to
another machine; files that both processes share are put back to where they were.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

from diagnose.capture.record.sampler import is_users
from diagnose.capture.samples.instrument import Expression, instrument
from diagnose.capture.samples.listed import listed_numbers
from diagnose.capture.samples.recorder import Recorder, Seen, wide_types
from diagnose.model.records import MAX_TEXT, ExpressionRecord, LoadedRecord
from diagnose.text.code_places import from_here

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = frozenset(
    {
        *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.symlink", "os.link", "os.fork"),
        *("os.forkpty", "os.exec", "os.posix_spawn", "os.system", "os.kill", "subprocess.Popen", "shutil.rmtree"),
        *("socket.connect", "socket.bind", "socket.sendto"),
    }
)


class _EffectError(BaseException):
    """A sample would change something outside the child; datasets catch exceptions of the usual kind."""


def load_again(loader: Any, *, max_s: float = 20.0, min_share: float = 0.01) -> LoadedRecord:
    """Return what the expressions of a loader's samples computed; nothing of this process changes.

    Expressions with less than ``min_share`` of the time are not kept.
    """
    if sys.platform != "linux":
        return LoadedRecord(left_out="Samples are loaded again on Linux only.")
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return LoadedRecord(left_out="The dataset is a stream, whose samples cannot be loaded again.")
    offsets: dict[int, int] = {}  # where the files stand that the child shares
    for number in (int(each.name) for each in list(Path("/proc/self/fd").iterdir())):
        with contextlib.suppress(OSError):  # pipes and sockets have no place
            offsets[number] = os.lseek(number, 0, os.SEEK_CUR)
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads: the child runs none of them
        child = os.fork()
    if not child:
        _in_child(loader, send, min_share)
    os.close(send)
    try:
        until, answer = time.monotonic() + max_s, b""
        while select.select([receive], [], [], max(until - time.monotonic(), 0.0))[0]:
            part = os.read(receive, 1 << 16)
            if not part:
                break
            answer += part
    finally:
        os.close(receive)
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(child, 0)
        for number, offset in offsets.items():
            with contextlib.suppress(OSError):
                os.lseek(number, offset, os.SEEK_SET)
    try:
        return msgspec.json.decode(answer, type=LoadedRecord)
    except msgspec.DecodeError:
        return LoadedRecord(left_out=f"Loading samples again did not end within {max_s:g} s.")


def _in_child(loader: Any, send: int, min_share: float) -> None:
    """Load, write what was found, and end without anything that the script does at its end."""
    try:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        try:
            found = _loaded(loader, min_share)
        except _EffectError as error:
            found = LoadedRecord(left_out=f"Samples were not loaded again, as loading does more than reading: {error}.")
        except BaseException as error:
            found = LoadedRecord(left_out=f"Samples could not be loaded again: {type(error).__name__}.")
        answer = msgspec.json.encode(found)
        while answer:  # opening a file is forbidden here
            answer = answer[os.write(send, answer) :]
    finally:
        os._exit(0)


def _forbid(event: str, given: tuple[Any, ...]) -> None:
    if event in _FORBIDDEN:
        raise _EffectError(event)
    if event == "open" and isinstance(given[2], int) and given[2] & _WRITES and given[0] != os.devnull:
        raise _EffectError("it opens a file to write")


def _loaded(loader: Any, min_share: float) -> LoadedRecord:
    import torch

    torch.set_num_threads(1)  # as in a worker: those of the script's process are not in this one
    sys.addaudithook(_forbid)
    most = 8  # samples of a batch
    batches = [list(batch)[:most] for batch in itertools.islice(loader.batch_sampler, 4)]
    codes: set[CodeType] = set()
    until, num = time.monotonic() + 1.0, 0  # for loading them once

    def called(frame: FrameType, event: str, _of: object) -> None:
        if event == "call" and is_users(frame.f_code):
            codes.add(frame.f_code)

    narrow = True
    _enter_worker(loader)
    while num < len(batches) and (num < 2 or time.monotonic() < until):
        sys.setprofile(called)
        batch = _collated(loader, batches[num], None)
        sys.setprofile(None)
        narrow = narrow and not wide_types(batch)
        num += 1
    listed = listed_numbers(loader, list(next(iter(loader.batch_sampler))))
    # Other batches of the same samples: what is the same then belongs to the samples.
    every = [index for batch in batches[:num] for index in batch]
    again = [every[i::num] for i in range(num)]
    recorder = Recorder()
    recorder.install()
    expressions = instrument(codes)
    recorder.places = [(each.file, each.line, each.function, each.text) for each in expressions]
    began = recorder.now_ns
    for recorder.load, dealt in enumerate((batches[:num], again)):
        for i, indices in enumerate(dealt):
            recorder.sample = i * most
            _collated(loader, indices, recorder)
            recorder.end_batch()
    total = recorder.now_ns - began
    rows = _rows(expressions, recorder, min_share * total, compares_batches=num > 1)
    samples = sum(map(len, batches[:num]))
    size = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0
    calls = recorder.host.records(min_share * total / 2)
    return LoadedRecord(
        samples=samples, total_ns=total, dataset_size=size, narrow=narrow, expressions=rows, calls=calls, listed=listed
    )


def _collated(loader: Any, indices: Sequence[Any], recorder: Recorder | None) -> Any:
    """Make a batch as a loader's fetcher does."""
    dataset = loader.dataset
    if callable(getattr(dataset, "__getitems__", None)):
        samples = dataset.__getitems__(indices)
    else:
        samples = []
        for index in indices:
            samples.append(dataset[index])
            if recorder is not None:
                recorder.end_sample()
        if recorder is not None:
            recorder.sample = -1 - recorder.sample
    return loader.collate_fn(samples)


def _enter_worker(loader: Any) -> None:
    """Let a dataset that workers load see itself in one."""
    from torch.utils.data._utils import worker

    if loader.num_workers:
        information: Any = worker.WorkerInfo
        worker._worker_info = information(
            id=0, num_workers=loader.num_workers, seed=0, dataset=loader.dataset, rng=None
        )
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(0)


def _rows(
    expressions: Sequence[Expression], recorder: Recorder, min_ns: float, *, compares_batches: bool
) -> tuple[ExpressionRecord, ...]:
    """Return the expressions that take a share of the time, and those around them."""
    by_number: dict[int, list[Seen]] = defaultdict(list)
    for each in recorder.seen:
        by_number[each.number].append(each)
    pads = recorder.paddings.found()
    kept = sorted(n for n, group in by_number.items() if n in pads or sum(one.ns for one in group) >= min_ns)
    row_of = {number: row for row, number in enumerate(kept)}
    around = {number: {one.parent for one in group if one.parent >= 0} for number, group in by_number.items()}
    cuts = {number: expressions[by] for number in kept if (by := recorder.cuts.cut_by(number)) is not None}
    return tuple(
        msgspec.structs.replace(
            _row(expressions[number], by_number[number], compares_batches=compares_batches),
            file=from_here(expressions[number].file),
            inside=tuple(sorted(row_of[n] for n in _all_around(number, around) if n in row_of)),
            is_written=number in recorder.written,
            padded_to=pads.get(number, 0),
            used=round(recorder.cuts.used(number), 6),
            cut=(from_here(one.file), one.line, one.text[:MAX_TEXT]) if (one := cuts.get(number)) else None,
        )
        for number in kept
    )


def _row(expression: Expression, group: Sequence[Seen], *, compares_batches: bool) -> ExpressionRecord:
    known = all(one.result for one in group)
    first, second = ([one for one in group if one.load == load] for load in range(2))
    comparable = compares_batches or all(one.sample >= 0 for one in group)
    samples = {one.sample for one in first}
    results: dict[tuple[int, int], list[str]] = defaultdict(list)  # of each sample, in order
    for one in group:
        results[one.load, one.sample].append(one.result)
    return ExpressionRecord(
        file=expression.file,
        line=expression.line,
        function=expression.function,
        text=expression.text[:MAX_TEXT],
        num=len(group),
        samples=len(samples),
        ns=sum(max(one.ns, 0) for one in group),
        own_ns=sum(max(one.own_ns, 0) for one in group),
        what=group[-1].what,
        num_bytes=sum(one.num_bytes for one in group) // 2,
        is_constant=known and len(set(map(tuple, results.values()))) == 1 and len(samples) >= 4,
        is_repeated=known and comparable and Counter(o.result for o in first) == Counter(o.result for o in second),
        is_wide=any(one.is_wide for one in group),
        is_tensor=any(one.is_wide and one.is_tensor for one in group),
    )


def _all_around(number: int, around: dict[int, set[int]]) -> set[int]:
    found: set[int] = set()
    pending = [number]
    while pending:
        new = around.get(pending.pop(), set()) - found
        found |= new
        pending += new
    return found - {number}

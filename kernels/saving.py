"""Saves checkpoints from a background thread.

What it cures
    `periodic-stall` and `python-stall` at a line that saves: serialising and writing a checkpoint takes seconds, in
    which nothing is launched.

When it does not help
    Where the next checkpoint comes before the last one is written: `save` then waits for it. Where host memory has no
    room for a copy.

What to watch
    The file is not there yet when `save` returns: call `wait` before what reads, copies, moves, uploads or removes it.
    With ``waits_before_use=True`` that is done for what this process opens, lists, moves or removes, before it starts a
    program and before it connects to another one. What it asks of a process that runs already is not seen.
    A process that ends by itself waits for the last file. If that could not be written, it prints why and ends with
    an exit code that is not 0, also without `close`; ``os._exit`` and signals end it at once.

Cost
    One copy of the state in host memory, taken while the step waits, whose memory serves the next copy too; the
    interpreter's lock while a thread pickles.

Files of many parts
    `save_files` writes weights as safetensors files with an index, on the thread (`fast_save`). `save_sharded` writes
    each rank's part into one folder (``torch.distributed.checkpoint``), by a thread of each rank
    and over a group of its own, so that its messages never meet those of the training.

Numerics
    Identical: the file holds what the state was when `save` was called, tensors that share memory included. They are
    saved as tensors of the CPU: ``torch.load`` leaves them there, where one from a GPU would go back to it.

Example::

    from diagnose.kernels.saving import BackgroundSaver

    with BackgroundSaver() as saver:  # its end waits for the last file
        for step, (x, y) in enumerate(loader):
            train_step(x, y)
            if step % 100 == 0:  # before: torch.save(model.state_dict(), folder / "model.pt")
                saver.save(model.state_dict(), folder / "model.pt")
"""

from __future__ import annotations

import copy
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diagnose.kernels._atomic_write import atomic_write
from diagnose.kernels._file_uses import before_use, never_waits
from diagnose.kernels._unwritten import forget, watch

__all__ = ["BackgroundSaver"]


class BackgroundSaver:
    """Writes what ``torch.save`` would, on a thread; a file appears under its name when it is whole and on the disk.

    As ``torch.save`` does, it follows links, writes into devices and pipes, and leaves a file its mode and owner.
    `save_sharded` does the same for a folder of all ranks' parts. At most ``max_pending`` files are being written; a
    further `save` waits for the oldest. An error of a write is raised by the next `save`, or by `wait`.
    ``waits_before_use`` lets this process wait by itself before it uses a file, and with several ranks in `save`.

    Raises:
        ValueError: ``max_pending`` is less than one.
    """

    _pending: deque[_Pending]
    _written: Sequence[torch.UntypedStorage]  # copies whose files are written: the next ones go there
    _group: dist.ProcessGroup | None

    def __init__(self, *, max_pending: int = 1, waits_before_use: bool = False) -> None:
        if max_pending < 1:
            raise ValueError(f"BackgroundSaver needs max_pending >= 1, not {max_pending}.")
        self.max_pending = max_pending
        self._is_closed = False
        self._start()
        self._waits_before_use = waits_before_use
        if waits_before_use:
            before_use(self.wait)

    def save(self, obj: Any, path: str | os.PathLike[str]) -> None:  # whatever torch.save takes
        """Copy ``obj`` to the host and start to write it; return when the copy is made.

        What is no path, such as an open file or a buffer, is written at once, as ``torch.save`` does.

        Raises:
            OSError: an earlier file could not be written.
            RuntimeError: `close` was called.
        """
        self._make_room(path)
        if not isinstance(path, str | os.PathLike):
            torch.serialization.save(obj, path)
            return
        copies = _Copies(self._written)
        copied, self._written = copies.of(obj), ()
        path = Path(path).absolute()
        self._add(_Pending(self._pool.submit(_write, copied, path), path, copies.made))
        if self._waits_before_use and dist.is_initialized() and dist.get_world_size() > 1:
            self.wait()  # another rank may use the file after the next exchange

    def save_files(
        self, state: Mapping[str, Tensor], folder: str | os.PathLike[str], *, max_bytes: int = 5 << 30
    ) -> None:
        """Copy named tensors to the host and begin to write them as safetensors files; return when the copy is made.

        See `fast_save.save_files` for what is written and which errors `wait` or the next call raises.

        Raises:
            OSError: an earlier file could not be written.
            RuntimeError: `close` was called.
        """
        from diagnose.kernels.fast_save import save_files

        self._make_room(folder)
        copies = _Copies(self._written)
        copied, self._written = copies.of(dict(state)), ()
        folder = Path(folder).absolute()
        writing = self._pool.submit(save_files, copied, folder, max_bytes=max_bytes)
        self._add(_Pending(writing, folder, copies.made))

    def save_sharded(self, state: dict[str, Any], folder: str | os.PathLike[str]) -> None:
        """Copy this rank's part of ``state`` to the host and begin to write it into ``folder``; all ranks call it.

        ``state`` is what ``torch.distributed.checkpoint.save`` takes, such as a sharded model's ``state_dict()``. The
        folder is read by ``torch.distributed.checkpoint.load`` and by `fast_load`; it is whole once it holds
        ``.metadata``, which is written last. All ranks have to reach the folder. One process without ranks may call it.
        All earlier files are waited for, whatever ``max_pending`` is.

        Raises:
            FileExistsError: the folder holds a checkpoint already, which a crash would leave half overwritten.
            OSError: an earlier file could not be written.
            RuntimeError: `close` was called.
        """
        self._make_room(folder)
        self.wait()  # two at once would exchange messages in an order that differs between ranks
        if dist.is_initialized() and self._group is None:
            self._group = dist.new_group(backend="gloo")
        holds_one = [(Path(folder) / ".metadata").exists()]
        if self._group is not None:  # else one rank would raise and the others wait for it
            dist.broadcast_object_list(holds_one, src=0, group=self._group)
        if holds_one[0]:
            raise FileExistsError(f"{folder} holds a checkpoint already; give each one its own folder.")
        from torch.distributed.checkpoint.state_dict_saver import async_save

        folder = Path(folder).absolute()
        pending: Any = async_save(_unshared(state), checkpoint_id=folder, process_group=self._group)
        self._add(_Pending(getattr(pending, "upload_completion", pending), folder))

    def _start(self) -> None:
        """Make the thread, which another process does not have; files that are not written yet are its parent's."""
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(1, "save-checkpoint", never_waits)
        self._pending, self._written, self._group = deque(), (), None

    def _add(self, pending: _Pending) -> None:
        self._pending.append(pending)
        watch(pending.writing, pending.path)

    def _make_room(self, path: str | os.PathLike[str]) -> None:
        if self._is_closed:
            raise RuntimeError(f"{path} cannot be saved: the saver was closed; make another BackgroundSaver.")
        if self._process != os.getpid():
            self._start()
        while len(self._pending) >= self.max_pending:
            self._finish_oldest()

    def wait(self, path: str | os.PathLike[str] | None = None) -> None:
        """Return when every file is written, or where ``path`` is given, when none at it or under it is left to write.

        Raises:
            OSError: one of them could not be.
        """
        if self._process != os.getpid():
            self._start()
        needed = None if path is None or not self._pending else Path(os.path.realpath(path))
        while any(needed in (None, each, *each.parents) for each in [pending.target for pending in self._pending]):
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        oldest = self._pending[0]
        try:
            oldest.writing.result()
        finally:
            if oldest.writing.done():  # else the wait was interrupted, and goes on another time
                self._pending.popleft()
                forget(oldest.writing)
        self._written = oldest.copies or self._written

    def close(self) -> None:
        """Wait for the files and end the thread."""
        self._is_closed = True
        try:
            self.wait()
        finally:
            self._pool.shutdown(wait=True)
            self._written = ()

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        self._is_closed = True  # the block's own error goes on; one of a file is reported when the process ends
        wait_for(pending.writing for pending in self._pending)
        self._pool.shutdown(wait=True)


def _unshared(value: Any) -> Any:  # whatever is saved
    """Return the value with copies of its tensors on the CPU, which some releases of torch do not copy themselves."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_unshared, value))
    if isinstance(value, Tensor):
        return value.detach().clone() if value.device.type == "cpu" else value.detach()
    return value


class _Pending(NamedTuple):
    """A file that is being written, and the copies that it is written from."""

    writing: Future[Any]
    path: Path
    copies: Sequence[torch.UntypedStorage] = ()

    @property
    def target(self) -> Path:
        """Return the file behind links."""
        return Path(os.path.realpath(self.path))


class _Copies:
    """One copy of each memory, however many tensors of the object share it.

    Copies are made in the memory of ``written`` ones of the same size: fresh memory costs several times what copying
    does, page by page.
    """

    def __init__(self, written: Iterable[torch.UntypedStorage] = ()) -> None:
        self._storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}
        self._free: dict[int, list[torch.UntypedStorage]] = defaultdict(list)
        for storage in written:
            self._free[storage.nbytes()].append(storage)

    @property
    def made(self) -> list[torch.UntypedStorage]:
        """Return the copies."""
        return list(self._storages.values())

    def _copy(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        free = self._free[storage.nbytes()]
        return (free.pop() if free else torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage()).copy_(
            storage
        )

    def of(self, value: Any) -> Any:  # whatever is saved
        """Return the value with every tensor copied to the host; of other objects a deep copy."""
        if type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_quantized:
            return self._tensor(value)
        if type(value) is tuple:
            return tuple(self.of(item) for item in value)
        if type(value) is list:
            return [self.of(item) for item in value]
        if isinstance(value, dict):
            made = copy.copy(value)  # of the same class, with its attributes: a state dict has metadata
            made.update({key: self.of(item) for key, item in value.items()})
            return made
        return copy.deepcopy(value)

    def _tensor(self, value: Tensor) -> Tensor:
        if value.device.type == "meta":
            return value
        storage = value.untyped_storage()
        key = (value.device, storage.data_ptr())
        if key not in self._storages:
            self._storages[key] = self._copy(storage)
        made = torch.empty(0, dtype=value.dtype)
        made.set_(self._storages[key], value.storage_offset(), value.size(), value.stride())
        if value.is_conj():
            made = made.conj()
        if value.is_neg():
            made = torch._neg_view(made)
        if isinstance(value, nn.Parameter):
            return nn.Parameter(made, requires_grad=value.requires_grad)
        return made.requires_grad_(value.requires_grad)


def _write(obj: Any, path: Path) -> None:  # whatever torch.save takes
    """Write a file so that no reader finds half of it."""
    with atomic_write(path) as file:
        torch.serialization.save(obj, file)  # whatever stands in the place of torch.save meanwhile

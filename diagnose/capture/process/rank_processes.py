"""Traces the ranks that a script starts by ``multiprocessing.Process``, ``torch.multiprocessing.spawn`` or ``os.fork``.

Which of its processes are ranks shows once one joins a process group of several: from there on it captures itself. All
others are left alone. The script's own process makes no step then: its capture is theirs, as of ranks that a launcher
has started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.process import end_workers, process_group, rank_and_size
from diagnose.capture.process.script import Ended, StopScript, stop_script
from diagnose.capture.record.folder import OUR_FILES, CaptureFolder
from diagnose.capture.record.session import Session
from diagnose.capture.steps.hooks import Undo, replace_function, undo_all, when_imported
from diagnose.errors import DiagnoseError
from diagnose.text.progress import Progress

# The store that the script's ranks share, lent to the process that waits for the script.
#
# The script's process has torch and the store; the process that started it has the analysis. Once the capture is
# written, the script's process serves requests over a socket: put bytes under a key, get them. Nothing else crosses
# it.

MAX_VALUE_BYTES = 7 << 20  # torch's TCPStore takes 8 MiB at a time


class StoreGone(Exception):  # an event of the run, and no error of anybody
    """The store, or the process that lends it, is no longer there."""


def _replace_in_distributed(name: str, make: Callable[[Any], Callable[..., Any]]) -> list[Undo]:
    """Replace a function in both modules that have it; nothing where torch was built without torch.distributed."""
    import torch.distributed

    if not torch.distributed.is_available():
        return []
    return [replace_function(each, name, make) for each in (torch.distributed, torch.distributed.distributed_c10d)]


class KeptStore:
    """Keeps the store of the default process group when the script leaves the group."""

    def __init__(self) -> None:
        self.store: Any = None  # None where the script had no group
        self._undo: list[Undo] = []

    def install(self) -> None:
        """Watch for the end of the group; torch has just been imported."""
        self._undo += _replace_in_distributed("destroy_process_group", self._before_destroy)
        self._undo += _replace_in_distributed("init_process_group", self._before_init)

    def remove(self) -> None:
        """Watch no longer, and keep the store of a group that is still there."""
        while self._undo:
            self._undo.pop()()
        self.keep()

    def keep(self) -> None:
        """Keep the store of the group, where there is one."""
        distributed = process_group()
        if distributed is not None:
            with contextlib.suppress(RuntimeError, ValueError, AttributeError):
                self.store = distributed.distributed_c10d._get_default_store()

    def _before_destroy(self, destroy: Callable[..., Any]) -> Callable[..., object]:
        def destroyed(*args: Any, **kwargs: Any) -> object:
            self.keep()
            return destroy(*args, **kwargs)

        return destroyed

    def _before_init(self, join: Callable[..., Any]) -> Callable[..., object]:
        def joined(*args: Any, **kwargs: Any) -> object:
            self.store = None  # a new group may need the port of the old one
            return join(*args, **kwargs)

        return joined


def serve_store(store: Any, descriptor: int, folder: Path, run_id: str) -> None:
    """Offer the store over an open socket, and serve it until the other side closes it."""
    with Connection(descriptor) as link, contextlib.suppress(OSError, EOFError, KeyboardInterrupt):
        link.send((str(folder), run_id))
        while True:
            key, data, wait_s = link.recv()
            try:
                if data is not None:
                    store.set(key, data)
                link.send((_wait_for(store, key, wait_s) if data is None else None, ""))
            except OSError:
                raise
            except Exception as error:  # torch has a type for each backend's faults, and they change between releases
                link.send((None, f"{type(error).__name__}: {error}"[:300]))


def _wait_for(store: Any, key: str, wait_s: float) -> bytes | None:
    """Return what is stored under a key, None where it does not come in time."""
    end = time.monotonic() + wait_s
    while not store.check([key]):  # raises where the store is gone; a wait that ends in vain looks the same
        left = end - time.monotonic()
        if left <= 0:
            return None
        with contextlib.suppress(RuntimeError):
            # In slices, so that signals are handled; less than a millisecond means no limit to torch.
            store.wait([key], timedelta(seconds=min(max(left, 0.01), 1.0)))
    data = bytes(store.get(key))
    if len(data) > MAX_VALUE_BYTES:
        raise ValueError("the value is too large")
    return data


class StoreLink:
    """The other side: the store as the process sees it that waits for the script."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self.folder = Path()  # the capture of this process
        self.run_id = ""

    def accept(self) -> bool:
        """Return whether the store is offered; the script's process has begun to send, or has ended."""
        with contextlib.suppress(OSError, EOFError):
            folder, self.run_id = self._link.recv()
            self.folder = Path(folder)
            return True
        return False

    def put(self, key: str, data: bytes) -> None:
        """Store bytes for the other ranks; what is larger than ``MAX_VALUE_BYTES`` is not for it.

        Raises:
            StoreGone: the store is no longer there.
        """
        self._ask(key, data, 0.0)

    def get(self, key: str, wait_s: float) -> bytes | None:
        """Return what a rank has stored, None where it does not come in time.

        Raises:
            StoreGone: the store is no longer there.
        """
        return self._ask(key, None, wait_s)

    def _ask(self, key: str, data: bytes | None, wait_s: float) -> bytes | None:
        try:
            self._link.send((f"diagnose/{self.run_id}/{key}", data, wait_s))
            found: tuple[bytes | None, str] = self._link.recv()
        except (OSError, EOFError) as error:
            raise StoreGone(str(error) or "the script's process has ended") from error
        if found[1]:
            raise StoreGone(found[1])
        return found[0]


RANKS = "ranks"  # the folder of their captures in the partial folder of the script's own process


def publish_rank(session: Session, ended: Ended) -> None:
    """Write the capture of a rank; its failure is printed and does not become the script's."""
    session.close()
    session.listener.shut_loaders()
    if not session.measured.files:
        session.folder.discard()
        return
    session.note_what_is_missing()
    try:
        session.publish(ended, 1 if ended == "raised" else 0)
    except DiagnoseError as error:  # the ranks of the script need not fail with it
        print(f"diagnose: error: {error}", file=sys.stderr)


def options_of_ranks(session: Session) -> CaptureOptions:
    """Return the options of ranks that a script starts: they write into the folder of its own process."""
    return replace(session.options, output=session.folder.partial / RANKS, force=False)


def captured_ranks(folder: CaptureFolder) -> list[Path]:
    """Return the descriptions of the ranks that have written their captures."""
    return sorted((folder.partial / RANKS).glob("capture.rank*.json"))


def adopt_ranks(folder: CaptureFolder) -> Path | None:
    """Take the captures of spawned ranks for the script's own; return a description of one, None without any."""
    described = captured_ranks(folder)
    if not described:
        return None
    ranks = folder.partial / RANKS
    for path in [path for pattern in OUR_FILES for path in ranks.glob(pattern)]:
        path.rename(folder.partial / path.name)
    shutil.rmtree(ranks, ignore_errors=True)
    return folder.partial / described[0].name


def destroy_process_group() -> None:
    """Leave the script's process group, which its own code can no longer do."""
    distributed = process_group()
    if distributed is not None:
        with contextlib.suppress(RuntimeError, ValueError):  # another rank has left it already
            distributed.destroy_process_group()


NO_RANKS = ("torch.utils.data", "multiprocessing.", "concurrent.")  # whose targets are workers of loaders and pools


class _Joined:
    """Begins a capture in this process, or in one that is forked from it, when it joins a process group."""

    def __init__(self, options: CaptureOptions, command: tuple[str, ...], *, owner: int) -> None:
        self.options, self.command = options, command
        self.session: Session | None = None
        self._owner = owner  # the script's own process, which is traced in another way
        self._undo: list[Undo] = []

    def install(self) -> None:
        """Watch for it; torch has just been imported."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._undo += _replace_in_distributed("init_process_group", self._around)
        if self._undo:  # a script may have taken the function out of its module before
            self._undo.append(register_optimizer_step_pre_hook(lambda *_: self._begin()).remove)

    def remove(self) -> None:
        """Watch no longer."""
        while self._undo:
            self._undo.pop()()

    def _around(self, join: Callable[..., Any]) -> Callable[..., object]:
        def joined(*args: Any, **kwargs: Any) -> object:
            result = join(*args, **kwargs)
            self._begin()
            return result

        return joined

    def _begin(self) -> None:
        rank, size = rank_and_size()
        if os.getpid() == self._owner or self.session is not None or size == 1:
            return
        report = Progress(quiet=self.options.quiet or rank > 0).report
        stop = partial(stop_script, report)
        self.session = Session(self.options, self.command, report=report, stop=stop, spawned=(rank, size))
        self.session.install()

    def end(self, ended: Ended) -> None:
        """Write what this process has captured, if it was a rank."""
        if self.session is None:
            return
        publish_rank(self.session, ended)
        if ended == "stopped":
            destroy_process_group()
            end_workers()


@dataclass(frozen=True, slots=True)
class RankProcess:
    """What a process runs in the place of its target; it is pickled where the process is not forked."""

    target: Callable[..., object]
    options: CaptureOptions
    command: tuple[str, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the target; as a rank it ends once everything is captured, unless it is to keep going."""
        if _inherited:
            watch = _inherited[-1]
        else:
            watch = _Joined(self.options, self.command, owner=-1)
            when_imported("torch", watch.install)
        ended: Ended = "raised"
        try:
            self.target(*args, **kwargs)
            ended = "finished"
        except StopScript:
            ended = "stopped"
        finally:
            watch.end(ended)


_inherited: list[_Joined] = []  # what a process finds that is forked from the script's own one


def watch_forked(options: CaptureOptions, command: tuple[str, ...]) -> Undo:
    """Watch for ranks that are forked from this process; torch has just been imported."""
    watch = _Joined(options, command, owner=os.getpid())
    watch.install()
    _inherited.append(watch)

    def end() -> None:
        _inherited.remove(watch)
        watch.remove()

    return end


def end_forked_rank(ended: Ended) -> None:
    """Write what this process, forked by the script, has captured until the script's end or until it was stopped."""
    for watch in _inherited:
        watch.end(ended)


def trace_processes(
    options: CaptureOptions, command: tuple[str, ...], *, is_first: Callable[[], bool], all_captured: Callable[[], None]
) -> Undo:
    """Let processes that this one starts capture themselves if they turn out to be ranks.

    ``is_first`` is asked whether nothing was captured here; ``all_captured`` is called once those that were started
    have ended, on the thread that waits for them.
    """
    started: list[BaseProcess] = []

    def start_of(start: Any) -> Callable[..., object]:
        def start_traced(process: Any) -> object:
            target = process._target
            is_worker = str(getattr(target, "__module__", "")).startswith(NO_RANKS)
            if target is not None and not is_worker and is_first():
                process._target = RankProcess(process._target, options, command)
                started.append(process)
            return start(process)

        return start_traced

    def join_of(join: Any) -> Callable[..., object]:
        def join_traced(process: Any, timeout: float | None = None) -> object:
            result = join(process, timeout)
            if process in started and is_first() and not any(one.is_alive() for one in started):
                all_captured()
            return result

        return join_traced

    return undo_all([replace_function(BaseProcess, "start", start_of), replace_function(BaseProcess, "join", join_of)])

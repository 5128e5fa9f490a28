"""Traces the ranks that a script starts by ``multiprocessing.Process(target=…)`` or ``os.fork``.

Which of its processes are ranks shows once one joins a process group of several: from there on it captures itself, as
one that ``torch.multiprocessing.spawn`` has started does. All others are left alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.children import end_workers
from diagnose.capture.process.ranks import rank_and_size
from diagnose.capture.process.script import Ended, StopScript, stop_script
from diagnose.capture.process.spawned import SpawnedRank, destroy_process_group, publish_rank
from diagnose.capture.record.session import Session
from diagnose.capture.steps.import_hooks import when_imported
from diagnose.capture.steps.replacing import Undo, replace_function
from diagnose.text.progress import Progress

__all__ = ["end_forked_rank", "trace_processes", "watch_forked"]

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
        import torch.distributed
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        if not torch.distributed.is_available():
            return
        for module in (torch.distributed, torch.distributed.distributed_c10d):
            self._undo.append(replace_function(module, "init_process_group", self._around))
        # a script may have taken the function out of its module before
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
    options: CaptureOptions,
    command: tuple[str, ...],
    *,
    is_first: Callable[[], bool],
    all_captured: Callable[[], None],
) -> Undo:
    """Let processes that this one starts capture themselves if they turn out to be ranks.

    ``is_first`` is asked whether nothing was captured here; ``all_captured`` is called once those that were started
    have ended, on the thread that waits for them.
    """
    started: list[BaseProcess] = []

    def start_of(start: Any) -> Callable[..., object]:
        def start_traced(process: Any) -> object:
            if is_first() and _may_be_rank(process):
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

    undo = [replace_function(BaseProcess, "start", start_of), replace_function(BaseProcess, "join", join_of)]

    def end() -> None:
        for one in undo:
            one()

    return end


def _may_be_rank(process: Any) -> bool:
    target, args = process._target, process._args
    if target is None or str(getattr(target, "__module__", "")).startswith(NO_RANKS):
        return False
    return not any(isinstance(arg, SpawnedRank) for arg in args)

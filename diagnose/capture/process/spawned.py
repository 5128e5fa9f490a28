"""Traces the ranks that a script starts by ``torch.multiprocessing.spawn``: each captures itself, in its own process.

The script's own process makes no step then. Its capture is theirs, as of ranks that a launcher has started.
"""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.children import end_workers
from diagnose.capture.process.script import Ended, StopScript
from diagnose.capture.record.folder import OUR_FILES, CaptureFolder
from diagnose.capture.record.session import Session
from diagnose.capture.steps.replacing import Undo, replace_function
from diagnose.errors import DiagnoseError
from diagnose.text.progress import Progress

__all__ = ["RANKS", "adopt_ranks", "destroy_process_group", "watch_spawned"]

RANKS = "ranks"  # the folder of their captures in the partial folder of the script's own process
MODULE = "torch.multiprocessing.spawn"  # of that name the package has the function


@dataclass(frozen=True, slots=True)
class SpawnedRank:
    """What a spawned process runs in the place of the script's function; it is pickled."""

    function: Callable[..., object]
    options: CaptureOptions
    command: tuple[str, ...]
    num_ranks: int

    def __call__(self, index: int, *args: Any) -> None:
        """Run the function under capture; it ends once everything is captured, unless it is to keep going."""
        progress = Progress(quiet=self.options.quiet or index > 0)
        session = Session(self.options, self.command, say=progress.say, stop=_stop, spawned=(index, self.num_ranks))
        session.install()
        ended: Ended = "raised"
        try:
            self.function(index, *args)
            ended = "finished"
        except StopScript:
            ended = "stopped"
        finally:
            _publish(session, ended)
        if ended == "stopped":
            destroy_process_group()
            end_workers()


def _stop() -> None:
    raise StopScript


def _publish(session: Session, ended: Ended) -> None:
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


def watch_spawned(session: Session, stop: Callable[[], None]) -> Undo:
    """Trace the processes that the script spawns, and call ``stop`` once they were captured."""
    import torch.multiprocessing

    module = sys.modules[MODULE]

    def watched(start: Any) -> Callable[..., object]:
        def start_traced(*args: Any, **kwargs: Any) -> object:
            given = inspect.signature(start).bind(*args, **kwargs)
            given.apply_defaults()
            call = given.arguments
            is_first = session.listener.active and session.num_steps == 0
            if not is_first or call["nprocs"] < 2 or call["start_method"] != "spawn":
                return start(*args, **kwargs)
            options = replace(session.options, output=session.folder.partial / RANKS, force=False)
            call["fn"] = SpawnedRank(call["fn"], options, session.command, call["nprocs"])
            context = start(*given.args, **given.kwargs)
            if call["join"] and not session.options.keep_going and _captured(session.folder):
                stop()
            return context

        return start_traced

    undo = [replace_function(owner, "start_processes", watched) for owner in (module, torch.multiprocessing)]

    def end() -> None:
        for one in undo:
            one()

    return end


def _captured(folder: CaptureFolder) -> list[Path]:
    return sorted((folder.partial / RANKS).glob("capture.rank*.json"))


def adopt_ranks(folder: CaptureFolder) -> Path | None:
    """Take the captures of spawned ranks for the script's own; return a description of one, None without any."""
    described = _captured(folder)
    if not described:
        return None
    ranks = folder.partial / RANKS
    for path in [path for pattern in OUR_FILES for path in ranks.glob(pattern)]:
        path.rename(folder.partial / path.name)
    shutil.rmtree(ranks, ignore_errors=True)
    return folder.partial / described[0].name


def destroy_process_group() -> None:
    """Leave the script's process group, which its own code can no longer do."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        try:
            distributed.destroy_process_group()
        except (RuntimeError, ValueError):  # another rank has left it already
            return

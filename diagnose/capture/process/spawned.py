"""Traces the ranks that a script starts by ``torch.multiprocessing.spawn``: each captures itself, in its own process.

The script's own process makes no step then. Its capture is theirs, as of ranks that a launcher has started.
"""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.children import end_workers
from diagnose.capture.process.script import Ended, StopScript, stop_script
from diagnose.capture.record.folder import OUR_FILES, CaptureFolder
from diagnose.capture.record.session import Session
from diagnose.capture.steps.replacing import Undo, replace_function
from diagnose.errors import DiagnoseError
from diagnose.text.progress import Progress

__all__ = [
    "RANKS",
    "SpawnedRank",
    "adopt_ranks",
    "captured_ranks",
    "destroy_process_group",
    "options_of_ranks",
    "publish_rank",
    "watch_spawned",
]

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
        report = Progress(quiet=self.options.quiet or index > 0).report
        stop, spawned = partial(stop_script, report), (index, self.num_ranks)
        session = Session(self.options, self.command, report=report, stop=stop, spawned=spawned)
        session.install()
        ended: Ended = "raised"
        try:
            self.function(index, *args)
            ended = "finished"
        except StopScript:
            ended = "stopped"
        finally:
            publish_rank(session, ended)
        if ended == "stopped":
            destroy_process_group()
            end_workers()


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


def watch_spawned(session: Session, is_first: Callable[[], bool], ended: Callable[[], None]) -> Undo:
    """Trace the processes that the script spawns, and call ``ended`` once they have ended.

    ``is_first`` is asked whether nothing was captured in the script's own process.
    """
    import torch.multiprocessing

    module = sys.modules[MODULE]

    def watched(start: Any) -> Callable[..., object]:
        def start_traced(*args: Any, **kwargs: Any) -> object:
            given = inspect.signature(start).bind(*args, **kwargs)
            given.apply_defaults()
            call = given.arguments
            if not is_first() or call["nprocs"] < 2 or call["start_method"] != "spawn":
                return start(*args, **kwargs)
            call["fn"] = SpawnedRank(call["fn"], options_of_ranks(session), session.command, call["nprocs"])
            context = start(*given.args, **given.kwargs)
            if call["join"]:
                ended()
            return context

        return start_traced

    undo = [replace_function(owner, "start_processes", watched) for owner in (module, torch.multiprocessing)]

    def end() -> None:
        for one in undo:
            one()

    return end


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
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        try:
            distributed.destroy_process_group()
        except (RuntimeError, ValueError):  # another rank has left it already
            return

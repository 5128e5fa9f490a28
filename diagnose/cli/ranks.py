"""The ranks of a run that is traced: which they are, what they send each other, and waiting for their captures."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.capture.process.rank_processes import StoreGone, StoreLink
from diagnose.errors import DiagnoseError, UsageError, is_debugging
from diagnose.model.files import printable, reason
from diagnose.model.launched import RANKS_WAIT_S, Launched
from diagnose.text.commands import command_line
from diagnose.text.plain_text import one_line
from diagnose.text.progress import Progress

if TYPE_CHECKING:
    from diagnose.pipeline.exchange import Received

STAMP = "%Y%m%d-%H%M%S"
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)


def chosen_ranks(text: str, world_size: int) -> frozenset[int]:
    """Return the ranks that a text such as "0,1,8-15" names.

    Raises:
        UsageError: it names none, or one that the job does not have.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"Invalid --ranks '{one_line(text)}': give numbers and ranges, such as 0,1,8-15.")
        last = int(found[2] or found[1])
        if last >= world_size:
            raise UsageError(f"Invalid --ranks '{one_line(text)}': the job has ranks 0 to {world_size - 1}.")
        ranks.update(range(int(found[1]), last + 1))
    return frozenset(ranks)


def named_after(stem: str, ranks: Launched) -> str:
    """Return a name for this run that no earlier run used, the same in every rank of one node.

    Ranks share their launcher, so its start is their common time; a lone process has its own. Steps of Slurm have a
    number that all their nodes share.
    """
    if ranks.world_size == 1:
        name = f"{stem}-{time.strftime(STAMP)}"
        return name if not Path(name).exists() else f"{name}-{os.getpid()}"
    step = os.environ.get("SLURM_STEP_ID", "")
    if "SLURM_STEP_NUM_TASKS" in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ and step.isdigit():
        return f"{stem}-slurm-{os.environ.get('SLURM_JOB_ID', '0')}-{step}"
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return f"{stem}-{_launched(os.getppid())}" + (f"-restart{restart}" if restart else "")


def wait_for_others(
    folder: Path, ranks: Launched, *, chosen: Collection[int], whole_world: bool, progress: Progress
) -> tuple[str, ...]:
    """Wait until the captures of the ``chosen`` ranks lie in ``folder``; return a note where some never came.

    Only a folder that the user named, or that ranks of other nodes write to, is known to be shared by all nodes; else
    the ranks of this node are waited for.
    """
    if ranks.world_size == 1:
        return ()
    here = len(chosen) * min(ranks.on_this_node, ranks.world_size) // ranks.world_size
    end = time.monotonic() + RANKS_WAIT_S

    def num_lacking() -> int:
        files = (*folder.glob("capture.rank*.json"), *folder.glob(".rank*.lock"))  # written, or reserved
        writers = {re.sub(r"^(capture)?\.|\.(json|lock)$", "", path.name) for path in files}
        is_shared = whole_world or len(writers) > here
        return len(_missing(folder, chosen)) - (0 if is_shared else len(chosen) - max(here, 1))

    if num_lacking() > 0:
        with progress.phase(f"waiting for the captures of {num_lacking()} more ranks"):
            while num_lacking() > 0 and time.monotonic() < end:
                time.sleep(0.2)
    missing = _missing(folder, chosen)
    if not missing:
        return ()
    again = command_line(["diagnose", "analyze", str(folder)])
    listed = ", ".join(map(str, missing[:8])) + ", …" * (len(missing) > 8)
    return (
        f"The capture of rank {listed} of {ranks.world_size} is missing, so skew between ranks is incomplete; use "
        f"--capture with a folder that all nodes share, or run {again} when all captures are there.",
    )


def _missing(folder: Path, chosen: Collection[int]) -> list[int]:
    return [rank for rank in sorted(chosen) if not (folder / f"capture.rank{rank}.json").exists()]


def _launched(pid: int) -> str:
    """Return when a process started; its id where the system does not show it."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        ticks = int(after_name[19])
        return time.strftime(STAMP, time.localtime(int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")))
    except (OSError, ValueError, IndexError, StopIteration):
        return str(pid)


class Exchange:
    """One rank's part in it; ``received`` is what the rank that answers has got, None elsewhere and without a store."""

    def __init__(self, rank: int, ranks: Collection[int], progress: Progress) -> None:
        self.received: Received | None = None
        self.is_cut = False  # the store went before all had come
        self._rank, self._ranks, self._progress = rank, sorted(ranks), progress

    def run(self, store: StoreLink) -> None:
        """Send this rank's summary, or collect those of all ranks. What fails here costs the exchange alone."""
        try:
            self._exchange(store)
        except Exception as error:
            if is_debugging():
                raise
            self._progress.report(
                f"The summaries of the ranks could not be exchanged ({type(error).__name__}: {error})."
            )

    def _exchange(self, store: StoreLink) -> None:
        from diagnose.pipeline.exchange import gather, own_files, take_part, write_received

        messages = _Messages(store)
        try:
            files = own_files(store.folder, self._rank)
            if self._rank != self._ranks[0]:
                take_part(files, self._rank, messages)
                return
            with self._progress.phase(f"collecting the summaries of {len(self._ranks)} ranks"):
                self.received = gather(files, self._rank, self._ranks, messages)
            if messages.is_gone:
                self.is_cut, self.received = True, replace(self.received, absent={})  # their captures may still come
            write_received(store.folder, self.received)
        except DiagnoseError as error:
            self._progress.report(str(error))
        except OSError as error:
            self._progress.report(
                f"What other ranks sent could not be kept in {printable(store.folder)}: {reason(error)}"
            )


class _Messages:
    """The ranks' store; once it is gone nothing comes any more."""

    def __init__(self, store: StoreLink) -> None:
        self._store, self.is_gone = store, False

    def put(self, key: str, data: bytes) -> None:
        """Store bytes for the other ranks."""
        if not self.is_gone:
            try:
                self._store.put(key, data)
            except StoreGone:
                self.is_gone = True

    def get(self, key: str, wait_s: float) -> bytes | None:
        """Return what a rank has stored, None where it does not come."""
        if not self.is_gone:
            try:
                return self._store.get(key, wait_s)
            except StoreGone:
                self.is_gone = True
        return None

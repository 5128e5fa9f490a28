"""The folder of one run: what it is, a row per so many steps, and the windows that were recorded.

diagnose-runs/NAME/2026-01-31T09-15-00-4711/
    run.json        what the run is, and the windows recorded in it
    rows.jsonl      a line per row, complete after each one: a killed run keeps them
    step-1200/      the capture of a window; beside it its diagnosis: step-1200.html, .json and .txt
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from diagnose.capture.process.process import rank_and_size
from diagnose.errors import UsageError
from diagnose.model.files import cannot_write, printable, replace_private
from diagnose.monitor.step_rows import Row, read_rows
from diagnose.text.masking import mask_command

RUNS = "diagnose-runs"  # in the working folder, where no other was asked for
INFO, ROWS = "run.json", "rows.jsonl"
REQUEST_FILE = "record"  # a file of this name asks for a window
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class HeldLine:
    """One line whose values outlive the next step."""

    file: str  # "" if it is not known
    line: int
    values: int  # that one step leaves
    bytes: int


@dataclass(frozen=True, slots=True)
class NamedHolder:
    """A variable or attribute that holds values of the step before."""

    name: str
    kind: str  # its type
    members: int
    keeps_graph: bool  # the graph of a member reaches an earlier step
    file: str
    lines: tuple[int, ...]  # that store into it


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What two steps show about memory that grows."""

    text: str
    lines: tuple[HeldLine, ...] = ()  # the most bytes first
    holders: tuple[NamedHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """One window that was recorded in a run."""

    step: int
    why: str
    folder: str = ""  # within the run's folder; empty where nothing came of it
    note: str = ""  # why nothing came of it
    memory: HeldMemory | None = None  # what holds memory that grows


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run is: all that its step time may depend on and that is known without asking."""

    name: str
    started_at: str
    pid: int
    rank: int = 0
    world_size: int = 1
    command: tuple[str, ...] = ()
    cwd: str = ""
    host: str = ""
    python: str = ""
    torch: str = ""
    gpus: tuple[str, ...] = ()
    commit: str = ""
    every: int = 0
    slow: float = 0.0
    steps: int = 0
    own_us: float = 0.0  # what the watch takes of a step by its own measure, its share of a row included
    ended: str = ""  # finished, or the error's type; empty while it runs and where it was killed
    windows: tuple[Recorded, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MonitoredRun:
    """A run as it is read back."""

    folder: Path
    info: RunInfo
    rows: Sequence[Row] = field(default_factory=tuple)


class RunFolder:
    """Writes one run.

    Raises:
        UsageError: the name could not be one of a folder.
        OutputError: the folder cannot be made.
    """

    def __init__(self, runs: Path, name: str, *, every: int, slow: float, command: Sequence[str]) -> None:
        check_name(name)
        rank, world_size = rank_and_size()
        now = datetime.now(timezone.utc)
        suffix = f"-rank{rank}" if world_size > 1 else ""
        self.path: Path = runs.absolute() / name / f"{now:%Y-%m-%dT%H-%M-%S}-{os.getpid()}{suffix}"
        self.info: RunInfo = RunInfo(
            name=name,
            started_at=now.isoformat(timespec="seconds"),
            pid=os.getpid(),
            rank=rank,
            world_size=world_size,
            command=mask_command(command),
            cwd=str(Path.cwd()),
            host=socket.gethostname(),
            python=platform.python_version(),
            commit=_commit(Path.cwd()),
            every=every,
            slow=slow,
        )
        try:
            self.path.mkdir(parents=True, mode=0o700)
            self._rows = (self.path / ROWS).open("ab", buffering=0)
            self._write()
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def add(self, row: Row) -> None:
        """Append a row.

        Raises:
            OSError: it cannot be written.
        """
        self._rows.write(row.to_json() + b"\n")

    def update(self, **changed: object) -> None:
        """Set fields of the description and write it.

        Raises:
            OSError: it cannot be written; the earlier one is still there.
        """
        self.info = replace(self.info, **changed)  # type: ignore[arg-type]  # names and types are RunInfo's
        self._write()

    def describe_torch(self) -> None:
        """Take down what torch knows of itself and of the GPUs in use."""
        torch = sys.modules.get("torch")
        if torch is None:
            return
        from diagnose.capture.record.gpus import describe_gpus

        self.info = replace(
            self.info,
            torch=str(torch.__version__),
            gpus=tuple(str(gpu["name"]) for gpu in describe_gpus() if gpu["in_use"]),
        )

    def take_request(self) -> bool:
        """Return whether a file asks for a window, and remove it.

        Raises:
            OSError: it cannot be removed.
        """
        request = self.path / REQUEST_FILE
        if not request.exists():
            return False
        request.unlink(missing_ok=True)
        return True

    def close(self) -> None:
        """Close the file of rows."""
        self._rows.close()

    def _write(self) -> None:
        text = json.dumps({"schema_version": 1, **asdict(self.info)}, indent=1)
        replace_private(self.path / INFO, text.encode("utf-8", "backslashreplace"))


def check_name(name: str) -> None:
    """Refuse a name that could not be a folder's, or would lead out of it.

    Raises:
        UsageError: always then.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"Invalid run name '{printable(name)}': use letters, digits and '._-', and begin with a letter or digit."
        )


def names_in(runs: Path) -> list[str]:
    """Return the names that have runs in a folder, in the order of the alphabet."""
    if not runs.is_dir():
        return []
    return sorted(path.name for path in runs.iterdir() if any(path.glob(f"*/{INFO}")))


def load_runs(runs: Path, name: str) -> list[MonitoredRun]:
    """Return all readable runs of a name, the oldest first."""
    found = []
    for path in sorted((runs / name).glob(f"*/{INFO}")):
        try:
            info = msgspec.json.decode(path.read_bytes(), type=RunInfo)
            rows = read_rows((path.parent / ROWS).read_text(encoding="utf-8", errors="replace"))
        except (OSError, UnicodeError, msgspec.DecodeError):  # another program's file, or a damaged one
            continue
        found.append(MonitoredRun(path.parent, info, rows))
    return sorted(found, key=lambda run: run.info.started_at)


def _commit(folder: Path) -> str:
    """Return the commit that the working folder's repository is at, without starting git; "" where there is none."""
    for above in [folder, *folder.parents][:20]:
        git = above / ".git"
        try:
            if git.is_file():
                git = above / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
            head = (git / "HEAD").read_text(encoding="utf-8").strip()
            if not head.startswith("ref: "):
                return head[:12]
            return (git / head.removeprefix("ref: ")).read_text(encoding="utf-8").strip()[:12]
        except (OSError, ValueError):
            continue
    return ""

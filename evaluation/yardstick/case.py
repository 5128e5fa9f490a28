"""A case: a program or a recording, and what is true of it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["STEPS", "Case", "Recording", "Script", "Truth", "digest"]

STEPS = "400"  # of a script: more than any tool looks at
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@dataclass(frozen=True)
class Truth:
    """What the author of a case fixed before any tool ran."""

    cause: str  # in plain words; empty if the case is healthy
    healthy: bool
    lines: tuple[tuple[str, int], ...] = ()  # name of the file and number, any of which is the place
    names: tuple[
        str, ...
    ] = ()  # ids of docs/rules.md that name the cause, "none" for no finding; empty: a reader judges
    helps: tuple[str, ...] = ()  # changes in plain words; the first is the repair
    changes: tuple[str, ...] = ()  # ids of docs/changes.md that make the repair; empty: a reader judges
    harms: tuple[str, ...] = ()
    saved: float | None = None  # share of the step that the repair saved, measured


@dataclass(frozen=True)
class Script:
    """A program. It runs in a copy of its folder, so that no tool finds the truth beside it."""

    file: Path
    project: Path | None = None  # the folder to copy if the file needs others
    below: str = "."  # the folder in it that the script runs in
    arguments: tuple[str, ...] = ("--steps", STEPS)
    module: str = ""  # to start with -m instead of the file
    ranks: int = 1
    prepare: str = ""  # a script of the project to run first
    leave: tuple[str, ...] = ()  # patterns of names that are not copied

    @property
    def words(self) -> tuple[str, ...]:
        """Return what follows "python" on a command line in the script's folder."""
        return (*(("-m", self.module) if self.module else (self.file.name,)), *self.arguments)

    @property
    def launcher(self) -> tuple[str, ...]:
        """Return what stands between "python" and these words if there are several ranks."""
        return (*TORCHRUN, str(self.ranks)) if self.ranks > 1 else ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that the hash of the case covers."""
        return (self.file,)

    def copied(self, folder: Path) -> Path:
        """Copy the script into a folder and return the folder it runs in."""
        if self.project is None:
            shutil.copy(self.file, folder)
            return folder
        made = folder / "project"
        shutil.copytree(self.project, made, ignore=shutil.ignore_patterns("__pycache__", *self.leave))
        if self.prepare:
            subprocess.run([sys.executable, str(made / self.prepare)], check=True)
        return made / self.below


@dataclass(frozen=True)
class Recording:
    """A trace of torch.profiler, or a folder of traces of one run."""

    path: Path | None = None
    write: Callable[[Path], None] | None = None  # writes it into a folder, if it is made on demand

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that the hash of the case covers."""
        if self.path is None:
            return ()
        return tuple(sorted(self.path.iterdir())) if self.path.is_dir() else (self.path,)

    def found(self, folder: Path) -> Path:
        """Return the recording, which is written into the folder if it is made on demand."""
        if self.write is not None:
            self.write(folder)
            return folder
        assert self.path is not None, "a recording has a path or is made"
        return self.path


@dataclass(frozen=True)
class Case:
    """One case; its truth is read only to score."""

    set: str
    name: str
    subject: Script | Recording
    truth: Callable[[], Truth]
    entry: Callable[[], Mapping[str, Any]] = dict  # what its author wrote, without anything that was added later
    missing: str = ""  # why it cannot run here

    @property
    def id(self) -> str:
        """Return its name among all sets."""
        return f"{self.set}/{self.name}"

    @property
    def is_here(self) -> bool:
        """Return whether its files are there, so that its hash can be checked."""
        return bool(self.subject.files) and all(file.is_file() for file in self.subject.files)

    @property
    def kind(self) -> str:
        """Return "script" or "recording"."""
        return "script" if isinstance(self.subject, Script) else "recording"


def digest(case: Case) -> str:
    """Return the hash of a case: of its program or recording, and of what its author wrote about it."""
    made = hashlib.sha256(json.dumps(case.entry(), sort_keys=True).encode())
    for file in case.subject.files:
        made.update(hashlib.sha256(file.read_bytes()).digest())
    return made.hexdigest()[:16]

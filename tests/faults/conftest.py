"""Scripts under ``diagnose trace`` in processes of their own, and what they leave: files, processes, sentences."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MARK = "DIAGNOSE_FAULT_FOLDER"  # in the environment of every process that a test starts
LIMIT_S = 300  # far above what a run takes, so that a hang fails
GONE_S = 300  # within which every process has left after the command has
LAUNCHER = (sys.executable, "-m", "diagnose")
SMALL = ("--skip", "2", "--steps", "4")

LOOP = """\
import os, pathlib, sys
import torch
{before}
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
{within}
{after}
"""


def loop(before: str = "", within: str = "", after: str = "", *, steps: int = 200_000) -> str:
    """Return a script that trains, with lines of its own before, within and after the loop."""
    lines = "".join(f"    {line}\n" for line in within.splitlines())
    return LOOP.format(before=before, within=lines, after=after, steps=steps)


@dataclass
class Ended:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str
    folder: Path  # where it ran
    left: list[str]  # command lines of processes that still run

    @property
    def sentences(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("diagnose: error: ")]

    @property
    def info(self) -> dict[str, Any] | None:
        path = self.folder / "capture" / "capture.json"
        return json.loads(path.read_text()) if path.is_file() else None

    @property
    def partials(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*partial*"))


class Faulty:
    """Starts commands in a folder; every process of theirs can be found again."""

    loop = staticmethod(loop)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def start(self, *args: object, launcher: tuple[str, ...] = LAUNCHER, **options: Any) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        environment = {**kept, "OMP_NUM_THREADS": "1", MARK: str(self.folder)}
        settings = {"cwd": self.folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(
            [*launcher, *map(str, args)], env=environment, text=True, start_new_session=True, **settings
        )

    def ended(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for the command and for every process that it started; end those that stay."""
        return self.all_ended(process)[0]

    def all_ended(self, *processes: subprocess.Popen[str]) -> list[Ended]:
        """Do the same for several commands that run at the same time."""
        said = [process.communicate(timeout=LIMIT_S) for process in processes]
        left = self.survivors()
        return [
            Ended(process.returncode, out or "", err or "", self.folder, left)
            for process, (out, err) in zip(processes, said, strict=True)
        ]

    def __call__(self, *args: object, **options: Any) -> Ended:
        return self.ended(self.start(*args, **options))

    def trace(self, *args: object, **options: Any) -> Ended:
        """Trace train.py into ``capture`` and print JSON."""
        where = ("--json", "--quiet", "--capture", self.folder / "capture")
        return self("trace", *where, *SMALL, *args, "train.py", **options)

    def survivors(self) -> list[str]:
        """Return the processes that do not leave by themselves, after ending them."""
        left = []
        for pid in self._pids():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if not _has_left(pid, GONE_S):
                    os.kill(pid, 9)
                    left.append(command[:200])
        return left

    def _pids(self) -> Iterator[int]:
        mark = f"{MARK}={self.folder}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    yield int(process.name)


def _has_left(pid: int, within_s: float) -> bool:
    """Wait until a process has ended, without looking at it again and again."""
    file = os.pidfd_open(pid)
    try:
        return bool(select.select([file], [], [], within_s)[0])
    finally:
        os.close(file)


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    return Faulty(tmp_path)


@pytest.fixture(scope="session")
def faulty_in() -> type[Faulty]:
    return Faulty


class OnceEach(dict[str, Any]):
    """Makes what is asked for the first time that it is asked for."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, name: str) -> Any:
        self[name] = self.make(name)
        return self[name]


@pytest.fixture(scope="session")
def once_each() -> type[OnceEach]:
    return OnceEach


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a tmpfs with these options and returns its folder."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mount{len(places)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", str(place)], check=False, capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=False)

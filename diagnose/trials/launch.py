"""Starts the process of a run under its guard (`diagnose.trials.guard`), and reads what the run has left."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import diagnose
from diagnose.capture.process.script import runs_main
from diagnose.changes import any_compiles
from diagnose.text.plain_text import clean
from diagnose.trials.guard import BOOTSTRAP as GUARD
from diagnose.trials.measuring import TrialRequest, TrialResult
from diagnose.trials.run_folder import VARIABLE

CHILD = "diagnose.trials.child"
BOOTSTRAP = runs_main(CHILD)
SETTINGS = {"PYTHONHASHSEED": "0"}  # what the user has set himself stays
TIMEOUT_FACTOR, MIN_TIMEOUT_S, COMPILING_SHARE = 6.0, 60.0, 2 / 3
MAX_RESULT_BYTES = 64 << 20  # of what a run measured: some thousand steps are below a megabyte


@dataclass(frozen=True)
class Launch:
    """Where and how the process of a run starts, and what its guard keeps it from."""

    script: Sequence[str]  # [-m] SCRIPT and its arguments
    cwd: Path
    name: Path  # in the environment of every process of the run, by which those that are left are found
    settings: Mapping[str, str] = field(default_factory=dict)  # of its environment
    launcher: Sequence[str] = ()
    writable: Sequence[str] | None = None  # None: wherever the user may write
    hosts: Path | None = None  # stands for /etc/hosts of a run without a network; None: it has one
    remove: Path | None = None  # a folder that the guard removes if this process is gone
    grace_s: float = 0.2  # between asking the run to end and ending it

    def start(self, folder: Path, order: TrialRequest) -> tuple[subprocess.Popen[bytes], int]:
        """Start the guard; return it and the end of the pipe that keeps it waiting: what closes it ends the run."""
        order.write(folder / "order.json")
        starts = [*self.launcher, "-m", CHILD] if self.launcher else [sys.executable, "-c", BOOTSTRAP]
        waiting, pipe = os.pipe()
        guarded = {
            "pipe": waiting,
            "grace_s": self.grace_s,
            "command": [*starts, str(folder / "order.json"), *self.script],
            "environment": {"PYTHONUNBUFFERED": "1", **self.settings, VARIABLE: str(self.name)},
            "remove": str(self.remove or ""),
            "writable": None if self.writable is None else list(self.writable),
            "hosts": None if self.hosts is None else str(self.hosts),
        }
        root = str(Path(diagnose.__file__).parents[1])
        try:
            (folder / "guard.json").write_text(json.dumps(guarded), encoding="utf-8")
            with (folder / "output.log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", GUARD, root, str(folder / "guard.json")],
                    cwd=self.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**SETTINGS, **os.environ},
                    pass_fds=(waiting,),
                )
        except BaseException:
            os.close(pipe)
            raise
        finally:
            os.close(waiting)
        return process, pipe


def patience_s(ids: Sequence[str], longest_s: float, left_s: float) -> float:
    """Return how long a process with some changes may take: compiling takes long, hanging takes for ever.

    Args:
        ids: The changes.
        longest_s: What those without a change took, 0 for the first one.
        left_s: What is left of the budget. The first process that compiles starts with an empty cache.
    """
    share = 1.0 if not longest_s else COMPILING_SHARE if any_compiles(ids) else 0.0
    return max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * longest_s, share * left_s)


def tail(log: Path, num_bytes: int) -> bytes:
    """Return the end of a file."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - num_bytes))
        return file.read()


def last_line(folder: Path) -> str:
    """Return the last line that a run has printed as a part of a sentence, "" where there is none."""
    lines = tail(folder / "output.log", 20_000).decode("utf-8", "replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" (its last line: {clean(last)[:160]})" if last else ""


def read_result(folder: Path, code: int | None, timeout_s: float, last: str) -> TrialResult:
    """Return what the run left; what cannot be read, whatever the script did to it, is a failed run."""
    if code is None:
        return TrialResult(failure=f"It had not ended after {timeout_s:.0f} s and was killed{last}.")
    path = folder / "result.json"
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_size > MAX_RESULT_BYTES:
            raise ValueError(f"it has {found.st_size / 1e6:.0f} MB")
        return TrialResult.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        why = f"It ended with exit code {code} before anything was measured{last}."
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = f"It ended with exit code {code} and left a result that cannot be used: {clean(str(error))[:160]}{last}."
    return TrialResult(failure=why)

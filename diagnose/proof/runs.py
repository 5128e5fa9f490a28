"""Runs the script in fresh processes, one after the other, and reads what each measured."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from diagnose.masking import mask_command
from diagnose.proof.patches import any_compiles
from diagnose.proof.reaping import VARIABLE, end_all
from diagnose.proof.scratch import mirror
from diagnose.proof.spec import Order, Run

__all__ = ["Command", "Runner"]

BOOTSTRAP = "import sys; sys.path.pop(0); from diagnose.proof.child import main; main()"
SETTINGS = {"PYTHONHASHSEED": "0"}  # what the user has set himself stays
CACHE = "TORCHINDUCTOR_CACHE_DIR"
GRACE_S = 5.0  # between asking a process to end and ending it
LAST_BYTES = 20_000  # of the output that are looked through for its last line
LOG_MB = 1.0  # of a run's output that is kept: its end


@dataclass(frozen=True)
class Command:
    """The script as the user starts it."""

    script: tuple[str, ...]  # path (or -m and a module) and its arguments
    cwd: Path
    launcher: tuple[str, ...] = ()  # such as torchrun --standalone --nproc-per-node 2

    @property
    def text(self) -> str:
        """Return the command as one would type it, credentials masked."""
        return " ".join(mask_command([*(self.launcher or ("python",)), *self.script]))


@dataclass
class Runner:
    """Starts one process at a time; every file of a run lies in a folder of its own under ``folder``."""

    command: Command
    folder: Path
    cwd_mode: Literal["copy", "same"] = "copy"
    step_on: str = "auto"
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warm_up: int = 10
    timed: int = 30
    num_runs: int = 0
    last_log: Path | None = None  # what the latest run printed

    def time(self, ids: Sequence[str], *, timeout_s: float) -> Run:
        """Run the script with patches and return what was measured; a failure is a result too."""
        return self._run(self._order(ids), timeout_s)

    def trace(self, ids: Sequence[str], capture: Path, *, timeout_s: float) -> Run:
        """Trace the script with patches into a folder."""
        return self._run(replace(self._order(ids), capture=str(capture)), timeout_s)

    def _order(self, ids: Sequence[str]) -> Order:
        mine = {name: self.arguments[name] for name in ids if name in self.arguments}
        return Order(
            result="", ids=tuple(ids), arguments=mine, warm_up=self.warm_up, timed=self.timed, step_on=self.step_on
        )

    def _run(self, order: Order, timeout_s: float) -> Run:
        self.num_runs += 1
        folder = self.folder / f"run-{self.num_runs:03d}-{'+'.join(order.ids) or 'unchanged'}"[:120]
        folder.mkdir(parents=True)
        order = replace(order, result=str(folder / "result.json"))
        order.write(folder / "order.json")
        cwd = self._working_folder(folder)
        began = time.monotonic()
        with (folder / "output.log").open("wb") as log:
            process = self._start(folder, cwd, log, self._settings(order.ids))
            self.last_log = folder / "output.log"
            code, last = _wait(process, timeout_s, str(folder), self.last_log)
        _shorten(self.last_log)
        if cwd != self.command.cwd:
            shutil.rmtree(cwd, ignore_errors=True)
        return replace(_read(folder, order, code, timeout_s, last), wall_s=time.monotonic() - began)

    def _working_folder(self, folder: Path) -> Path:
        if self.cwd_mode == "same":
            return self.command.cwd
        mirror(self.command.cwd, folder / "cwd")
        return folder / "cwd"

    def _settings(self, ids: Sequence[str]) -> dict[str, str]:
        """Return what a run must find in its environment: for one that compiles, a cache that all such runs share."""
        cache = {CACHE: str(self.folder.absolute() / "compiled")} if any_compiles(ids) else {}
        return {"PYTHONUNBUFFERED": "1", **cache}

    def _start(
        self,
        folder: Path,
        cwd: Path,
        log: Any,  # noqa: ANN401  # an open file
        settings: Mapping[str, str],
    ) -> subprocess.Popen[bytes]:
        order, script = folder / "order.json", _absolute(self.command)
        if self.command.launcher:
            command = [*self.command.launcher, "-m", "diagnose.proof.child", str(order), *script]
        else:
            command = [sys.executable, "-c", BOOTSTRAP, str(order), *script]
        return subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**SETTINGS, **os.environ, **settings, VARIABLE: str(folder)},
        )


def _absolute(command: Command) -> list[str]:
    """Return the script's words with its path made absolute: a run may have another working folder."""
    first = command.script[0]
    if first == "-m":
        return list(command.script)
    return [str((command.cwd / first).absolute()), *command.script[1:]]


def _wait(process: subprocess.Popen[bytes], timeout_s: float, name: str, log: Path) -> tuple[int | None, str]:
    """Wait for the end; return the exit code, None where the time was over, and the last line printed by itself.

    Whatever the run has started ends with it.
    """
    code: int | None = None
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = None
    except BaseException:
        end_all(process.pid, name, signal.SIGKILL)
        raise
    last = _last(log)  # before it says anything of being ended
    end_all(process.pid, name, signal.SIGTERM)
    if code is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    end_all(process.pid, name, signal.SIGKILL)
    process.wait()
    return code, last


def _shorten(log: Path) -> None:
    """Keep the end of a long log."""
    keep = int(LOG_MB * 1e6)
    if log.stat().st_size <= keep:
        return
    with log.open("rb") as file:
        file.seek(-keep, os.SEEK_END)
        tail = file.read()
    log.write_bytes(b"[the beginning was cut off]\n" + tail)


def _read(folder: Path, order: Order, code: int | None, timeout_s: float, last: str) -> Run:
    if code is None:
        return Run(ids=order.ids, failure=f"It had not ended after {timeout_s:.0f} s and was killed{last}.")
    try:
        return Run.from_json((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        why = f"It ended with exit code {code} before anything was measured{last}."
        return Run(ids=order.ids, exit_code=code, failure=why)


def _last(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f" (its last line: {lines[-1][:160]})" if lines else ""

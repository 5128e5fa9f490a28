"""Runs the script in fresh processes, one after the other, and reads what each measured."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import diagnose
from diagnose.capture.process.process import kill_marked
from diagnose.capture.process.script import NO_FOLDER_IN_FRONT
from diagnose.changes import any_compiles
from diagnose.errors import OriginalsChangedError
from diagnose.text.masking import MASK, mask_command
from diagnose.text.plain_text import clean
from diagnose.trials.copy_plan import CopyPlan, plan_copy
from diagnose.trials.guard import BOOTSTRAP as GUARD
from diagnose.trials.isolation import hosts_text
from diagnose.trials.limits import Limits, limits_of
from diagnose.trials.original_names import name_originals
from diagnose.trials.refusals import why_refused
from diagnose.trials.run_folder import VARIABLE
from diagnose.trials.run_results import last_line, read_result, shorten
from diagnose.trials.spec import TrialRequest, TrialResult
from diagnose.trials.trackers import offline_settings
from diagnose.trials.workplace import ROOT, Workplace

__all__ = ["Command", "Runner"]

BOOTSTRAP = f"{NO_FOLDER_IN_FRONT}; from diagnose.trials.child import main; main()"
SETTINGS = {"PYTHONHASHSEED": "0"}  # what the user has set himself stays
CACHE = "TORCHINDUCTOR_CACHE_DIR"
INTERFACES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}  # of an isolated run
GRACE_S = 5.0  # between asking a process to end and ending it


@dataclass(frozen=True)
class Command:
    """The script as the user starts it."""

    script: tuple[str, ...]  # path (or -m and a module) and its arguments
    cwd: Path
    launcher: tuple[str, ...] = ()  # such as torchrun --standalone --nproc-per-node 2

    @property
    def text(self) -> str:
        """Return the command as one would type it: on one line, credentials masked, nothing that steers a terminal."""
        words = shlex.join(mask_command([*(self.launcher or ("python",)), *self.script])).replace(
            shlex.quote(MASK), MASK
        )
        return clean(words.replace("\n", " ").replace("\r", " "))


@dataclass
class Runner:
    """Starts one process at a time; every file of a run lies in a folder of its own under ``folder``.

    With ``cwd_mode`` "copy" all runs share one copy of the working folder, which is put back before each and sees what
    lies around the original. ``limits`` are what a run may write to and reach, everything that protects unless given.
    ``changed`` names those of the user's files that changed all the same: then no further run starts.
    """

    command: Command
    folder: Path
    cwd_mode: Literal["copy", "same"] = "copy"
    step_on: str = "auto"
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warm_up: int = 10
    timed: int = 30
    num_runs: int = 0
    last_log: Path | None = None  # what the latest run printed
    private: Path | None = None  # where the copy goes; removed by the guard should this process be killed
    plan: CopyPlan | None = None
    report: Callable[[str], None] = lambda _text: None
    changed: str = ""
    edits: bool = True  # whether changes can be made in the script's text
    limits: Limits | None = None
    _workplace: Workplace | None = None

    def time(self, ids: Sequence[str], *, timeout_s: float) -> TrialResult:
        """Run the script with patches and return what was measured; a failure is a result too.

        Raises:
            OriginalsChangedError: the user's files changed during an earlier run.
        """
        return self._run(self._order(ids), timeout_s)

    def trace(
        self, ids: Sequence[str], capture: Path, *, timeout_s: float, recording_s: float | None = None
    ) -> TrialResult:
        """Trace the script with patches into a folder, for some seconds from its first step on; raises as `time`."""
        run = self._run(replace(self._order(ids), capture=str(capture), capture_s=recording_s), timeout_s)
        if self.cwd_mode == "copy":
            name_originals(capture, self._root)
        return run

    def close(self) -> None:
        """Remove the copy of the working folder, and the backup of files that have not changed."""
        if self._workplace is not None:
            self._keep_changes(self._workplace.remove())
            self._workplace = None

    @property
    def _private(self) -> Path:
        return self.private or self.folder.absolute()

    @property
    def _root(self) -> Path:
        """Return what stands for the root of the file system: an original below it is copied or linked."""
        return self._private / ROOT

    def _order(self, ids: Sequence[str]) -> TrialRequest:
        mine = {name: self.arguments[name] for name in ids if name in self.arguments}
        return TrialRequest(
            result="", ids=tuple(ids), arguments=mine, warm_up=self.warm_up, timed=self.timed, step_on=self.step_on
        )

    def _run(self, order: TrialRequest, timeout_s: float) -> TrialResult:
        if self.changed:
            raise OriginalsChangedError(self.changed)
        self.num_runs += 1
        name = f"run-{self.num_runs:03d}-{'+'.join(order.ids) or 'unchanged'}"[:120]
        folder = self.folder.absolute() / name
        folder.mkdir(parents=True)
        order = replace(order, result=str(folder / "result.json"))
        order.write(folder / "order.json")
        cwd = self._working_folder()
        began = time.monotonic()
        self.last_log = folder / "output.log"
        with self.last_log.open("wb") as log:
            code, last = self._wait(folder, cwd, log, self._settings(order.ids), timeout_s)
        shorten(self.last_log)
        if self.cwd_mode == "copy":
            name_originals(folder, self._root)
        if self._workplace is not None:
            self._keep_changes(self._workplace.verify())
        last = last.replace(str(self._root), "")
        run = read_result(folder, order, code, timeout_s, last)
        why = why_refused(run.failure, self.enforced)
        return replace(run, failure=f"{run.failure}{why}", wall_s=time.monotonic() - began)

    @property
    def enforced(self) -> Limits:
        """Return what a run may write to and reach."""
        if self.limits is None:
            self.limits = limits_of(self._private, self.folder.absolute(), restricted=self.cwd_mode == "copy")
        return self.limits

    def _keep_changes(self, sentence: str) -> None:
        if sentence:
            self.changed = sentence
            self.report(sentence)

    def _working_folder(self) -> Path:
        self._private.mkdir(parents=True, exist_ok=True)
        if self.cwd_mode == "same":
            return self.command.cwd
        if self._workplace is None:
            results = self.folder.absolute()
            plan = self.plan or plan_copy(self.command.cwd, without=(self._private, results), target=self._private)
            folder = _script_folder(self.command)
            self._workplace = Workplace(plan, self._private, results, folder, self.enforced, self.report)
        return self._workplace.restore()

    def _settings(self, ids: Sequence[str]) -> dict[str, str]:
        """Return what a run must find in its environment: in a copy the caches that all runs share.

        In the working folder itself, one that compiles has a cache apart: a run that is killed leaves half a file.
        """
        found = {"PYTHONUNBUFFERED": "1"}
        if self.enforced.is_offline:
            trackers = self._private / "trackers"
            trackers.mkdir(exist_ok=True)
            found |= offline_settings(trackers)
        if self.enforced.is_isolated:
            found |= INTERFACES
        if self._workplace is not None:
            found |= self._workplace.settings()
        elif any_compiles(ids):
            found[CACHE] = str(self.folder.absolute() / "compiled")
        return found

    def _wait(
        self, folder: Path, cwd: Path, log: IO[bytes], settings: Mapping[str, str], timeout_s: float
    ) -> tuple[int | None, str]:
        """Wait for the end; return the exit code, None where the time was over, and the last line printed by itself.

        Whatever the run has started ends with it, and with this process, see `diagnose.trials.guard`.
        """
        name = self._private / folder.name
        process, pipe = self._start(folder, cwd, log, {**settings, VARIABLE: str(name)})
        try:
            try:
                code: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            last = last_line(folder / "output.log")  # before anything is printed about being ended
            if code is None:
                process.terminate()
                process.wait(2 * GRACE_S + 5.0)
        except subprocess.TimeoutExpired:  # the guard hangs
            pass
        finally:
            os.close(pipe)
            if process.poll() is None:
                _end(process)
            kill_marked(VARIABLE, name)
        return code, last

    def _script(self) -> list[str]:
        """Return the words that start the script: of a file in the working folder its copy is run."""
        words = _absolute(self.command)
        if self._workplace is None:
            return words
        return [_in_copy(word, self.command.cwd, self._workplace.path) for word in words]

    def _hosts(self) -> str | None:
        """Write the file of host names that an isolated run has; return its path."""
        if not self.enforced.is_isolated:
            return None
        path = self._private / "hosts"
        path.write_text(hosts_text(), encoding="utf-8")
        path.chmod(0o644)
        return str(path)

    def _start(
        self, folder: Path, cwd: Path, log: IO[bytes], settings: Mapping[str, str]
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Start the guard of a run; return it and the end of the pipe that keeps it waiting."""
        order, script = folder / "order.json", self._script()
        if self.command.launcher:
            command = [*self.command.launcher, "-m", "diagnose.trials.child", str(order), *script]
        else:
            command = [sys.executable, "-c", BOOTSTRAP, str(order), *script]
        waiting, pipe = os.pipe()
        guarded = {
            "pipe": waiting,
            "grace_s": GRACE_S,
            "command": command,
            "environment": settings,
            "remove": str(self.private or ""),
            "writable": None if self.enforced.writable is None else list(self.enforced.writable),
            "hosts": self._hosts(),
        }
        (folder / "guard.json").write_text(json.dumps(guarded), encoding="utf-8")
        root = str(Path(diagnose.__file__).parents[1])
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", GUARD, root, str(folder / "guard.json")],
                cwd=cwd,
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


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the guard end its run, now that its pipe is closed; kill it where it does not."""
    try:
        process.wait(2 * GRACE_S + 5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _script_folder(command: Command) -> Path:
    if command.script[0] == "-m":
        return command.cwd.resolve()
    return Path(command.cwd, command.script[0]).resolve().parent


def _absolute(command: Command) -> list[str]:
    """Return the script's words with its path made absolute: a run may have another working folder."""
    first = command.script[0]
    if first == "-m":
        return list(command.script)
    return [str((command.cwd / first).absolute()), *command.script[1:]]


def _in_copy(word: str, cwd: Path, copy: Path) -> str:
    """Return a word of the command with a path of the working folder turned into that of its copy."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(os.path.normpath(value))  # a relative one is inside of nothing that is absolute
    return f"{option}{equals}{copy / path.relative_to(cwd)}" if path.is_relative_to(cwd) else word

"""Runs the script in fresh processes, one after the other, and reads what each measured."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import diagnose
from diagnose.capture.process.process_cleanup import kill_marked
from diagnose.capture.process.script import NO_FOLDER_IN_FRONT
from diagnose.changes import any_compiles
from diagnose.errors import OriginalsChangedError
from diagnose.text.masking import MASK, mask_command
from diagnose.text.plain_text import clean
from diagnose.trials.copy_plan import CopyPlan, plan_copy
from diagnose.trials.guard import BOOTSTRAP as GUARD
from diagnose.trials.original_names import name_originals
from diagnose.trials.originals import Originals
from diagnose.trials.protection import can_restrict, writable_places
from diagnose.trials.run_folder import VARIABLE
from diagnose.trials.run_results import last_line, read_result, shorten
from diagnose.trials.spec import TrialRequest, TrialResult
from diagnose.trials.surroundings import below, plan_surroundings
from diagnose.trials.working_copy import WorkingCopy

__all__ = ["Command", "Runner"]

BOOTSTRAP = f"{NO_FOLDER_IN_FRONT}; from diagnose.trials.child import main; main()"
SETTINGS = {"PYTHONHASHSEED": "0"}  # what the user has set himself stays
# In a copy: bytecode of modules is not written beside the user's sources, and asking git for its state is only reading
PROTECTED = {"PYTHONDONTWRITEBYTECODE": "1", "GIT_OPTIONAL_LOCKS": "0"}
CACHE = "TORCHINDUCTOR_CACHE_DIR"
COPY = "cwd"  # below the run's own folder: stands for the root of the file system
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
    lies around the original. Where the system can restrict a process, a run can write to nothing of the user's;
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
    _copy: WorkingCopy | None = None
    _surroundings: WorkingCopy | None = None
    _originals: Originals | None = None
    _writable: list[str] | None = None  # None: a run may write wherever the user may

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
        """Remove the copy of the working folder."""
        if self._surroundings is not None:
            self._surroundings.remove()

    @property
    def _private(self) -> Path:
        return self.private or self.folder.absolute()

    @property
    def _root(self) -> Path:
        """Return what stands for the root of the file system: an original below it is copied or linked."""
        return self._private / COPY

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
        self._verify()
        last = last.replace(str(self._root), "")
        return replace(read_result(folder, order, code, timeout_s, last), wall_s=time.monotonic() - began)

    def _working_folder(self) -> Path:
        if self.cwd_mode == "same":
            return self.command.cwd
        if self._copy is None or self._surroundings is None:
            self._prepare()
        assert self._copy is not None
        assert self._surroundings is not None
        self._surroundings.restore()
        self._copy.restore()
        return self._copy.path

    def _prepare(self) -> None:
        """Plan the copy unless that was done, and remember what the user's files look like."""
        private = self._private
        private.mkdir(parents=True, exist_ok=True)
        without = (private, self.folder.absolute())
        self.plan = self.plan or plan_copy(self.command.cwd, without=without, target=private)
        if self.plan.is_large:
            self.report(f"copying the working folder, {self.plan.size_text}, to {private}")
        if self.plan.unreadable:
            num, first = len(self.plan.unreadable), clean(self.plan.unreadable[0])
            self.report(f"{first}{f' and {num - 1} more' if num > 1 else ''} cannot be read and is not in the copy")
        around = plan_surroundings(self.command.cwd, without=without)
        for folder in around.unreadable:
            self.report(f"{clean(folder)} cannot be listed or holds too many names, so runs do not see what lies in it")
        self._surroundings = WorkingCopy(around, self._root)
        self._copy = WorkingCopy(self.plan, below(self._root, around.source))
        if can_restrict():
            self._writable = writable_places(self.command.cwd, without)
        linked = [*self.plan.linked, *_outside(self.command), *([] if self._writable else _project(around.source))]
        self._originals = Originals([self.command.cwd], linked, (*without, self.command.cwd))
        if self._originals.unverified:
            names = ", ".join(map(clean, self._originals.unverified))
            self.report(f"{names} holds too many files to see whether the script writes there")

    def _verify(self) -> None:
        if self._originals is None:
            return
        changes = self._originals.look()
        if changes.new:
            more = f" and {len(changes.new) - 1} more" if len(changes.new) > 1 else ""
            self.report(f"{clean(changes.new[0])}{more} appeared while the trials ran; nothing of it was removed")
        if changes.found:
            self.changed = _sentence(changes.text, self._saved(changes.found))
            self.report(self.changed)

    def _saved(self, changed: Iterable[str]) -> Path | None:
        try:
            return self._copy.saved(changed) if self._copy is not None else None
        except OSError:  # no room: what has happened is reported all the same
            return None

    def _settings(self, ids: Sequence[str]) -> dict[str, str]:
        """Return what a run must find in its environment: for one that compiles, a cache that all such runs share.

        A temporary folder that holds the project is one that a restricted run may not write to: it has its own.
        """
        found = {"PYTHONUNBUFFERED": "1"}
        if self._copy is not None:
            found |= {**PROTECTED, "PWD": str(self._copy.path)}
        if any_compiles(ids):
            found[CACHE] = str(self.folder.absolute() / "compiled")
        if self._writable is not None and os.path.realpath(tempfile.gettempdir()) not in self._writable:
            temporary = self._private / "tmp"
            temporary.mkdir(exist_ok=True)
            found["TMPDIR"] = str(temporary)
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
        words, copy = _absolute(self.command), self._copy
        return words if copy is None else [_in_copy(word, self.command.cwd, copy.path) for word in words]

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
            "writable": self._writable,
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


def _outside(command: Command) -> list[Path]:
    """Return the script's folder where it is not below the working folder."""
    if command.script[0] == "-m":
        return []
    folder = Path(command.cwd, command.script[0]).resolve().parent
    return [] if folder.is_relative_to(command.cwd.resolve()) else [folder]


def _sentence(changes: str, saved: Path | None) -> str:
    before = f" What was there before is in {saved}." if saved is not None else ""
    return (
        f"{clean(changes)} while the trials ran, so no further one was started.{before} If the script writes "
        "there, let it write below its working folder, or allow it with --cwd-mode same; if not, prove again."
    )


def _project(cwd: Path) -> list[Path]:
    """Return the repository that the working folder is a part of, which a run that nothing restricts could change."""
    return next(([folder] for folder in cwd.parents if (folder / ".git").exists()), [])


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

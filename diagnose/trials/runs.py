"""Runs the script in fresh processes, one after the other, and reads what each measured or recorded."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

from diagnose.capture.process.process import kill_marked
from diagnose.changes import any_compiles
from diagnose.changes.edits.source_edits import Edits, edited_files, module_file
from diagnose.errors import CaptureError, DiagnoseError, InputError, OriginalsChangedError, UsageError
from diagnose.model.capture import MAX_INFO_BYTES, CaptureInfo
from diagnose.text.masking import MASK, mask_command
from diagnose.text.plain_text import clean, middle, one_line
from diagnose.text.progress import Progress
from diagnose.trials.by_turns import LiveRuns
from diagnose.trials.copying import CopyPlan, in_copy, plan_copy
from diagnose.trials.guard import hosts_text
from diagnose.trials.in_sequence import Schedule
from diagnose.trials.launch import VARIABLE, Launch, last_line, read_result, tail
from diagnose.trials.limits import Limits, limits_of, offline_settings, why_refused
from diagnose.trials.measuring import TrialRequest, TrialResult
from diagnose.trials.turn_process import TurnProcess
from diagnose.trials.workplace import ROOT, Place, Workplace, name_originals

INTERFACES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}  # of an isolated run
MAX_LOG_BYTES = 1_000_000  # of a run's output that is kept: its end
MAX_COMMAND = 32_000  # characters: what is to be agreed to must be readable
MAX_STARTED_RANKS = 1_024  # started on this machine
IN_COPY = (
    " It ran in a copy of the working folder; if it works in the original folder, run it there with --cwd-mode same, "
    "which protects no file."
)
TOO_SHORT = " If that is too short for a recording, give --budget more."
AT_INPUT = " In these runs its standard input is empty: pass its answers as arguments."


@dataclass(frozen=True)
class Command:
    """The script as the user starts it."""

    script: tuple[str, ...]  # path (or -m and a module) and its arguments
    cwd: Path
    launcher: tuple[str, ...] = ()  # such as torchrun --standalone --nproc-per-node 2

    @property
    def text(self) -> str:
        """Return the command as one would type it: on one line, credentials masked, nothing that steers a terminal."""
        words = shlex.join(mask_command([*(self.launcher or ("python",)), *self.script]))
        return one_line(words.replace(shlex.quote(MASK), MASK))

    @property
    def file(self) -> Path:
        """Return the script's file; of a module that lies elsewhere the working folder."""
        if self.script[0] == "-m":
            return module_file(self.script[1], self.cwd) or self.cwd
        return self.cwd / self.script[0]

    def words(self, copy: Path | None) -> list[str]:
        """Return the words that start the script by its absolute path; of a file in the working folder its copy."""
        first, *others = self.script
        words = [first if first == "-m" else str(self.file.absolute()), *others]
        return words if copy is None else [in_copy(word, self.cwd, copy) for word in words]


@dataclass
class Runner:
    """Starts processes, one at a time or several that take turns; what each writes lies in a folder of its own.

    With ``cwd_mode`` "copy" runs work in copies of the working folder, which are put back before each and see what lies
    around the original: all in one, or in one each if they are alive at once. ``limits`` are what a run may write to
    and reach, everything that protects unless given. ``changed`` names those of the user's files that changed all the
    same: then no further run starts.
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
    diffs: Mapping[str, str] = field(default_factory=dict)  # by which changes are made in it, by id
    own: Path | None = None  # the script as its author has edited it
    limits: Limits | None = None
    schedule: Schedule = field(default_factory=Schedule)
    grace_s: float = 5.0  # between asking a process to end and ending it
    _workplace: Workplace | None = None

    def time(self, ids: Sequence[str], *, timeout_s: float) -> TrialResult:
        """Run the script with patches and return what was measured; a failure is a result too.

        Raises:
            OriginalsChangedError: the user's files changed during an earlier run.
        """
        return self._run(ids, timeout_s)

    def trace(
        self, ids: Sequence[str], capture: Path, *, timeout_s: float, recording_s: float | None = None
    ) -> TrialResult:
        """Trace the script with patches into a folder, for some seconds from its first step on; raises as `time`."""
        run = self._run(ids, timeout_s, capture=str(capture), capture_s=recording_s)
        if self.cwd_mode == "copy":
            name_originals(capture, self._root)
        return run

    @property
    def turns(self) -> LiveRuns:
        """Return what lets forms of the script be alive at once."""
        return self

    @property
    def why_no_turns(self) -> str:
        """Return why no two processes of the script can be alive at once, "" if they can."""
        whys = {
            "only Linux shows what it takes": sys.platform != "linux",
            "those in one working folder would write over each other": self.cwd_mode == "same",
            "ranks of a launcher cannot wait for each other yet": bool(self.command.launcher),
        }
        return next(
            (f"Runs follow one another instead of taking turns: {why}." for why, is_so in whys.items() if is_so), ""
        )

    def live(self, number: int, ids: Sequence[str], *, timeout_s: float) -> TurnProcess:
        """Prepare a process that takes turns, in the copy of this number, which no live process may use.

        Raises:
            OriginalsChangedError: the user's files changed during an earlier run.
        """
        folder = self._new_folder(ids)
        place = self._restored(number)
        return TurnProcess(
            self._launch(folder, place, ids),
            folder,
            self._order(folder, ids, place),
            self._private / f"s{self.num_runs}",
            lambda run: self._finished(run, folder, place),
            timeout_s,
        )

    def num_copies(self) -> float:
        """Return for how many copies of the working folder the disk has room, with as much again left free."""
        size = self._workplace.plan.num_bytes if self._workplace is not None else 0
        return shutil.disk_usage(self._private).free / (2 * size) if size else inf

    def close(self) -> None:
        """Remove the copies of the working folder, and the backup of files that have not changed."""
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

    @property
    def enforced(self) -> Limits:
        """Return what a run may write to and reach."""
        if self.limits is None:
            self.limits = limits_of(self._private, self.folder.absolute(), restricted=self.cwd_mode == "copy")
        return self.limits

    def _run(self, ids: Sequence[str], timeout_s: float, **capture: Any) -> TrialResult:  # fields of the request
        folder = self._new_folder(ids)
        place = self._restored(0)
        order = self._order(folder, ids, place, **capture)
        began = time.monotonic()
        self.last_log = folder / "output.log"
        code, last = self._wait(self._launch(folder, place, ids), folder, order, timeout_s)
        run = read_result(folder, code, timeout_s, last)
        return replace(self._finished(run, folder, place), wall_s=time.monotonic() - began)

    def _new_folder(self, ids: Sequence[str]) -> Path:
        if self.changed:
            raise OriginalsChangedError(self.changed)
        self.num_runs += 1
        folder = self.folder.absolute() / f"run-{self.num_runs:03d}-{'+'.join(ids) or 'unchanged'}"[:120]
        folder.mkdir(parents=True)
        return folder

    def _order(
        self,
        folder: Path,
        ids: Sequence[str],
        place: Place | None,
        **more: Any,  # fields of the request
    ) -> TrialRequest:
        made: Mapping[str, str] = {}
        try:
            edits = Edits(self.command.file, self.command.cwd, self.diffs, self.own, self.arguments)
            files, made = edited_files(edits, ids)
            more["sources"] = {str(path): text for path, text in files.items()}
            if place is not None:  # what lies outside of the copy stays there, and is read otherwise
                more["sources"] = {path: t for path, t in more["sources"].items() if not place.copy.edit(path, t)}
            more["made"] = tuple(made.values())
        except DiagnoseError as error:
            more["cannot"] = str(error)
        patched = [name for name in ids if name not in made]
        return TrialRequest(
            result=str(folder / "result.json"),
            ids=tuple(patched),
            arguments={name: self.arguments[name] for name in patched if name in self.arguments},
            warm_up=self.warm_up,
            timed=self.timed,
            step_on=self.step_on,
            **more,
        )

    def _finished(self, run: TrialResult, folder: Path, place: Place | None) -> TrialResult:
        """Name originals in what a run has left, look whether it changed one, and say what its limits have refused."""
        log = folder / "output.log"
        if log.stat().st_size > MAX_LOG_BYTES:
            log.write_bytes(b"[the beginning was cut off]\n" + tail(log, MAX_LOG_BYTES))
        failure = run.failure
        if self._workplace is not None and place is not None:
            self._workplace.name_originals(folder, place)
            self._keep_changes(self._workplace.verify())
            failure = failure.replace(str(place.root), "").replace(str(self._root), "")
        return replace(run, failure=f"{failure}{why_refused(failure, self.enforced)}")

    def _keep_changes(self, sentence: str) -> None:
        if sentence:
            self.changed = sentence
            self.report(sentence)

    def _restored(self, number: int) -> Place | None:
        """Return one of the copies as it is to be before a run, None where runs work in the folder itself."""
        self._private.mkdir(parents=True, exist_ok=True)
        if self.cwd_mode == "same":
            return None
        if self._workplace is None:
            results = self.folder.absolute()
            plan = self.plan or plan_copy(self.command.cwd, without=(self._private, results), target=self._private)
            file = self.command.file.resolve()
            folder = file.parent if file.is_file() else file
            self._workplace = Workplace(plan, self._private, results, folder, self.enforced, self.report)
        return self._workplace.restore(number)

    def _settings(self, ids: Sequence[str], place: Place | None) -> dict[str, str]:
        """Return what a run must find in its environment.

        In the working folder itself, one that compiles has a cache apart: a run that is killed leaves half a file.
        """
        found: dict[str, str] = {}
        if self.enforced.is_offline:
            trackers = self._private / "trackers"
            trackers.mkdir(exist_ok=True)
            found |= offline_settings(trackers)
        if self.enforced.is_isolated:
            found |= INTERFACES
        if self._workplace is not None and place is not None:
            found |= self._workplace.settings(place)
        elif any_compiles(ids):
            found["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder.absolute() / "compiled")
        return found

    def _wait(self, launch: Launch, folder: Path, order: TrialRequest, timeout_s: float) -> tuple[int | None, str]:
        """Wait for the end; return the exit code, None where the time was over, and the last line printed by itself.

        Whatever the run has started ends with it, and with this process, see `diagnose.trials.guard`.
        """
        patience_s = 2 * self.grace_s + 5.0
        process, pipe = launch.start(folder, order)
        try:
            try:
                code: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            last = last_line(folder)  # before anything is printed about being ended
            if code is None:
                process.terminate()
                process.wait(patience_s)
        except subprocess.TimeoutExpired:  # the guard hangs
            pass
        finally:
            os.close(pipe)
            if process.poll() is None:  # the guard ends its run now that the pipe is closed
                try:
                    process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            kill_marked(VARIABLE, launch.name)
        return code, last

    def _launch(self, folder: Path, place: Place | None, ids: Sequence[str]) -> Launch:
        hosts = self._private / "hosts" if self.enforced.is_isolated else None
        if hosts is not None and not hosts.exists():
            hosts.write_text(hosts_text(), encoding="utf-8")
            hosts.chmod(0o644)
        return Launch(
            script=self.command.words(None if place is None else place.copy.path),
            cwd=self.command.cwd if place is None else place.copy.path,
            name=self._private / folder.name,
            settings=self._settings(ids, place),
            launcher=self.command.launcher,
            writable=None if self.enforced.writable is None else list(self.enforced.writable),
            hosts=hosts,
            remove=self.private,
            grace_s=self.grace_s,
        )


def in_the_copy(runner: Runner) -> str:
    """Return the remedy for an unchanged script that failed in the copy of its working folder, "" elsewhere.

    How it failed does not matter: what it misses there, one script raises for and another prints and exits.
    """
    return IN_COPY if runner.cwd_mode == "copy" else ""


def record(runner: Runner, ids: Sequence[str], capture: Path, budget_s: float, progress: Progress) -> None:
    """Trace the script with patches into a folder; a third of the time is for the steps, which then are those there.

    Raises:
        CaptureError: it could not be traced; without patches, the end of what it printed stands on standard error.
    """
    why = f"with {' and '.join(ids)}, to see what binds it then" if ids else "to find what holds it back"
    timeout_s = min(600.0, max(budget_s, Schedule.last_s))
    with progress.phase(f"tracing {runner.command.text} {why}"):
        run = runner.trace(ids, capture, timeout_s=timeout_s, recording_s=timeout_s / 3)
    if not run.failure:
        return
    if not ids and runner.last_log is not None:  # the traceback
        lines = runner.last_log.read_text(encoding="utf-8", errors="replace").splitlines()
        sys.stderr.write("".join(f"{middle(one_line(line), 300)}\n" for line in lines[-20:]))
    remedy = f"{AT_INPUT if 'EOFError' in run.failure else ''}{'' if ids else in_the_copy(runner)}"
    raise CaptureError(f"{run.failure}{TOO_SHORT if run.wall_s >= timeout_s else remedy}")


def recorded_command(capture: Path, launcher: tuple[str, ...]) -> Command:
    """Return what a capture was recorded with, to run it again; anybody may have written the file: all is checked.

    Raises:
        UsageError: the folder is no capture, or what it has recorded cannot be run here.
    """
    path = min(capture.glob("capture*.json"), default=None)
    if path is None:
        raise UsageError(
            f"Invalid capture {capture}: it holds no command; use a capture of diagnose trace, or name the script."
        )
    info = _info(path)
    words, cwd, world = info.command, info.cwd or ".", info.world_size
    whys = {
        "it holds no command": not words or not all(map(_is_word, words)),
        "it was not captured from a script": words[:1] in (("",), ("<notebook>",)) or words == ("-m",),
        f"its command is longer than {MAX_COMMAND:,} characters": sum(map(len, words)) > MAX_COMMAND,
    }
    for why in (why for why, is_so in whys.items() if is_so):
        raise _cannot(path, why)
    if any(MASK in word for word in words):
        first = clean(" ".join(words[: 1 + (words[0] == "-m")]))
        raise UsageError(
            f"{path} holds the command with its credentials masked, so it cannot be run again from there; name the "
            f"script with its arguments: diagnose prove {first} …"
        )
    if not _is_word(cwd) or not Path(cwd).is_dir():
        raise _cannot(path, "the folder that it ran in does not exist here")
    if world > MAX_STARTED_RANKS:
        raise _cannot(path, f"its world_size is not a number of ranks from 1 to {MAX_STARTED_RANKS:,}")
    command = Command(words, Path(cwd).absolute(), launcher)
    if words[0] != "-m" and not command.file.is_file() and not Path(command.file, "__main__.py").is_file():
        raise _cannot(path, "its script does not exist here")
    if world > 1 and not launcher:
        started = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}")
        return replace(command, launcher=started)
    return command


def _info(path: Path) -> CaptureInfo:
    """Read the description as it is: what is masked for display could not be run."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_INFO_BYTES:
            raise _cannot(path, "it is not a description of a capture")
        return CaptureInfo.from_json(path.read_bytes(), source=str(path))
    except OSError as error:
        raise _cannot(path, "it cannot be read") from error
    except InputError as error:
        raise UsageError(f"{error} Or name the script instead.") from None


def _is_word(word: str) -> bool:
    """Return whether the operating system would take it as an argument, and it is what was recorded, all in UTF-8."""
    try:
        return "\ufffd" not in word and b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _cannot(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} does not show a command that can be run again: {why}; name the script instead.")

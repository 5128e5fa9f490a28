"""Runs the script in fresh processes, one after the other, and reads what each measured."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import diagnose
from diagnose.capture.process.process import kill_marked
from diagnose.capture.process.script import NO_FOLDER_IN_FRONT
from diagnose.changes import any_compiles
from diagnose.errors import CaptureError, InputError, OriginalsChangedError, OutputError, UsageError
from diagnose.model.capture import MAX_INFO_BYTES, CaptureInfo
from diagnose.text.plain_text import MASK, clean, mask_command, middle, one_line
from diagnose.text.progress import Progress
from diagnose.trials.copying import remove_tree
from diagnose.trials.guard import BOOTSTRAP as GUARD
from diagnose.trials.isolation import hosts_text
from diagnose.trials.limits import Limits, limits_of
from diagnose.trials.refusals import why_refused
from diagnose.trials.spec import TrialRequest, TrialResult
from diagnose.trials.trackers import offline_settings
from diagnose.trials.working_copy import CopyPlan, name_originals, plan_copy
from diagnose.trials.workplace import ROOT, Workplace

__all__ = [
    "PREFIX",
    "VARIABLE",
    "Command",
    "Runner",
    "in_the_copy",
    "last_line",
    "read_result",
    "record",
    "recorded_command",
    "remove_leftovers",
    "run_folder",
    "shorten",
]

# What a run has left: its result, which the script may have damaged, and the end of what it printed.

LAST_BYTES = 20_000  # of the output that are looked through for its last line
LOG_MB = 1.0  # of a run's output that is kept: its end
MAX_RESULT_BYTES = 64 << 20  # of what a run measured: some thousand steps are below a megabyte


def shorten(log: Path) -> None:
    """Keep the end of a long log."""
    keep = int(LOG_MB * 1e6)
    if log.stat().st_size <= keep:
        return
    with log.open("rb") as file:
        file.seek(-keep, os.SEEK_END)
        tail = file.read()
    log.write_bytes(b"[the beginning was cut off]\n" + tail)


def read_result(folder: Path, order: TrialRequest, code: int | None, timeout_s: float, last: str) -> TrialResult:
    """Return what the run left; what cannot be read, whatever the script did to it, is a failed run."""
    if code is None:
        return TrialResult(ids=order.ids, failure=f"It had not ended after {timeout_s:.0f} s and was killed{last}.")
    try:
        return replace(TrialResult.from_json(_text_of(folder / "result.json")), ids=order.ids)
    except FileNotFoundError:
        why = f"It ended with exit code {code} before anything was measured{last}."
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = f"It ended with exit code {code} and left a result that cannot be used: {clean(str(error))[:160]}{last}."
    return TrialResult(ids=order.ids, exit_code=code, failure=why)


def _text_of(path: Path) -> str:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a regular file")
    if found.st_size > MAX_RESULT_BYTES:
        raise ValueError(f"it has {found.st_size / 1e6:.0f} MB")
    return path.read_text(encoding="utf-8")


def last_line(log: Path) -> str:
    """Return the last line of a log as a part of a sentence, "" where there is none."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f" (its last line: {clean(lines[-1])[:160]})" if lines else ""


# The temporary folder of one ``diagnose prove``, and what is left of those that were killed.
#
# A live ``prove`` holds a lock on a file in its folder. The kernel releases it however the process ends, so a folder
# with our marker whose lock can be had belongs to nobody: it is removed at the next start, and its processes are
# ended.

PREFIX = "diagnose-prove-"
VARIABLE = "DIAGNOSE_TRIAL"  # in the environment of every process of a run: the run's folder
LOCK, MARKER = "prove.lock", b"diagnose prove holds a lock on this file while it runs\n"


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make a temporary folder that is gone after the block, with every process that was started for it.

    Raises:
        OutputError: there is no place for temporary files.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        lock = _locked(folder)
    except OSError as error:
        raise OutputError(
            f"No temporary folder can be made: {error.strerror}. Free some space or set TMPDIR to another disk."
        ) from error
    try:
        yield folder
    finally:
        kill_marked(VARIABLE, folder)
        remove_tree(folder)
        os.close(lock)


def remove_leftovers() -> int:
    """Remove the folders of runs that are gone, end their processes, and return how many there were."""
    num_removed = 0
    for folder in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*"):
        lock = _lock_of_the_dead(folder)
        if lock is not None:
            kill_marked(VARIABLE, folder)
            remove_tree(folder)
            os.close(lock)
            num_removed += 1
    return num_removed


def _locked(folder: Path) -> int:
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: then the marker is not written, and nobody
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # takes the folder for a leftover
        os.write(descriptor, MARKER)
    return descriptor


def _lock_of_the_dead(folder: Path) -> int | None:
    """Return the lock, now ours, of a folder that is our user's, carries the marker and has no owner any more."""
    descriptor = -1
    with contextlib.suppress(OSError):
        if not _is_own(folder.lstat(), stat.S_IFDIR):
            return None
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if _is_own(os.fstat(descriptor), stat.S_IFREG):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.pread(descriptor, len(MARKER) + 1, 0) == MARKER:
                return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None


def _is_own(found: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.getuid()


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


# The command that a capture was recorded with: data from a file that anybody may have written, so checked in full.

MAX_COMMAND = 32_000  # characters: what is to be agreed to must be readable
LOST_CHARACTER = "\ufffd"  # stands for what was no UTF-8
MAX_STARTED_RANKS = 1_024  # started on this machine


def recorded_command(capture: Path, launcher: tuple[str, ...]) -> Command:
    """Return what to run again.

    Raises:
        UsageError: the folder is no capture, or what it has recorded cannot be run here.
    """
    described = sorted(capture.glob("capture*.json"))
    if not described:
        raise UsageError(
            f"Invalid capture {capture}: it holds no command; use a capture of diagnose trace, or name the script."
        )
    info = _info(described[0])
    script, cwd, world = _script(info, described[0]), _cwd(info, described[0]), _world_size(info, described[0])
    if script[0] != "-m" and not Path(cwd, script[0]).is_file() and not Path(cwd, script[0], "__main__.py").is_file():
        raise _cannot(described[0], "its script does not exist here")
    if world > 1 and not launcher:
        launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}")
    return Command(script, cwd, launcher)


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


def _script(info: CaptureInfo, path: Path) -> tuple[str, ...]:
    words = info.command
    if not words or not all(map(_is_word, words)):
        raise _cannot(path, "it holds no command")
    if words[0] in ("", "<notebook>") or words == ("-m",):
        raise _cannot(path, "it was not captured from a script")
    if sum(map(len, words)) > MAX_COMMAND:
        raise _cannot(path, f"its command is longer than {MAX_COMMAND:,} characters")
    if any(MASK in word for word in words):
        first = clean(" ".join(words[: 1 + (words[0] == "-m")]))
        raise UsageError(
            f"{path} holds the command with its credentials masked, so it cannot be run again from there; name the "
            f"script with its arguments: diagnose prove {first} …"
        )
    return words


def _cwd(info: CaptureInfo, path: Path) -> Path:
    cwd = info.cwd or "."
    if not _is_word(cwd) or not Path(cwd).is_dir():
        raise _cannot(path, "the folder that it ran in does not exist here")
    return Path(cwd).absolute()


def _world_size(info: CaptureInfo, path: Path) -> int:
    if info.world_size > MAX_STARTED_RANKS:
        raise _cannot(path, f"its world_size is not a number of ranks from 1 to {MAX_STARTED_RANKS:,}")
    return info.world_size


def _is_word(word: str) -> bool:
    """Return whether the operating system would take it as an argument, and it is what was recorded."""
    try:
        return LOST_CHARACTER not in word and b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _cannot(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} does not show a command that can be run again: {why}; name the script instead.")


# Traces the script in a process of its own, before the trials and after them; where that fails, states why.

TIMEOUT_S, LAST_S = 600.0, 1.0
RECORDING_SHARE = 1 / 3  # of the time that is left: a recording ends itself by then, with the steps that it has
SHOWN_LINES, SHOWN_WIDTH = 20, 300  # of what a script printed that could not be traced: its traceback
IN_COPY = (
    " It ran in a copy of the working folder; if it works where it stands, run it there with --cwd-mode same, which "
    "protects no file."
)
TOO_SHORT = " If that is too short for a recording, give --budget more."
AT_INPUT = " In these runs its standard input is empty: let it take from its arguments what it asks for."


def in_the_copy(runner: Runner) -> str:
    """Return the remedy for an unchanged script that failed in the copy of its working folder, "" elsewhere.

    How it failed does not matter: what it misses there, one script raises for and another prints and exits.
    """
    return IN_COPY if runner.cwd_mode == "copy" else ""


def record(runner: Runner, ids: Sequence[str], capture: Path, budget_s: float, progress: Progress) -> None:
    """Trace the script with patches into a folder.

    Raises:
        CaptureError: it could not be traced; without patches, the end of what it printed stands on standard error.
    """
    why = f"with {' and '.join(ids)}, to see what binds it then" if ids else "to find what holds it back"
    timeout_s = min(TIMEOUT_S, max(budget_s, LAST_S))
    with progress.phase(f"tracing {runner.command.text} {why}"):
        run = runner.trace(ids, capture, timeout_s=timeout_s, recording_s=RECORDING_SHARE * timeout_s)
    if run.failure:
        if not ids and runner.last_log is not None:
            sys.stderr.write(_end_of(runner.last_log))
        remedy = TOO_SHORT if run.wall_s >= timeout_s else _remedy(run.failure, runner, changed=bool(ids))
        raise CaptureError(f"{run.failure}{remedy}")


def _remedy(failure: str, runner: Runner, *, changed: bool) -> str:
    return f"{AT_INPUT if 'EOFError' in failure else ''}{'' if changed else in_the_copy(runner)}"


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "".join(f"{middle(one_line(line), SHOWN_WIDTH)}\n" for line in lines[-SHOWN_LINES:])

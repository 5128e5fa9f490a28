"""A form of a script as a process that waits for its turn: started, asked for blocks, stopped and ended from here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import IO, Any

import diagnose
from diagnose.capture.process.process import kill_marked
from diagnose.capture.process.script import runs_main
from diagnose.errors import CaptureError
from diagnose.trials.guard import BOOTSTRAP as GUARD
from diagnose.trials.guard import descendants
from diagnose.trials.measuring import TrialRequest, TrialResult
from diagnose.trials.run_folder import VARIABLE
from diagnose.trials.turn import MAX_MESSAGE_BYTES

__all__ = ["TurnProcess", "start_all"]

BOOTSTRAP = runs_main("diagnose.trials.child")
POLL_S = 0.5  # a process that was killed leaves the socket open in its workers: so often it is looked for
BLOCKS_PER_SEARCH = 20  # for processes outside of the group, which takes some milliseconds
END_S = 20.0  # to write what was measured, before it is killed


@dataclass
class TurnProcess:
    """One process of one form; ``folder`` is its own, and short: the path of a socket has 108 bytes.

    It runs under the guard of every trial (`diagnose.trials.guard`), so nothing of it outlives this process.
    """

    script: Sequence[str]  # [-m] SCRIPT and its arguments
    folder: Path
    ids: Sequence[str] = ()
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cwd: Path = field(default_factory=Path.cwd)
    step_on: str = "auto"
    warm_up: int = 10
    timeout_s: float = 300.0  # until it is ready, and for each block: compiling takes long, hanging takes for ever
    imported_s: float = 0.0  # until torch was imported
    ready_s: float = 0.0  # from then until the warm-up was over
    wall_ns_per_step: list[float] = field(default_factory=list)  # of whole blocks, with what is dropped and drained
    num_steps: list[int] = field(default_factory=list)  # timed, of each block
    _guard: subprocess.Popen[bytes] | None = None
    _pipe: int = -1
    _listening: socket.socket | None = None
    _socket: socket.socket | None = None
    _received: bytes = b""
    _pid: int = 0
    _others: set[int] = field(default_factory=set)  # below it, in groups of their own
    _began: float = 0.0

    def start(self) -> None:
        """Start the process, which imports torch and waits."""
        self._began = time.monotonic()
        self.folder.mkdir(parents=True)
        path = str(self.folder / "s")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(path)
        self._listening.listen(1)
        TrialRequest(
            result=str(self.folder / "result.json"),
            ids=tuple(self.ids),
            arguments=self.arguments,
            warm_up=self.warm_up,
            step_on=self.step_on,
            turns=path,
        ).write(self.folder / "order.json")
        with (self.folder / "output.log").open("wb") as log:
            self._guard, self._pipe = self._start_guard(log)

    def wait_for_import(self) -> None:
        """Wait until torch is imported.

        Raises:
            CaptureError: it never was.
        """
        assert self._listening is not None, "it was started"
        self._listening.settimeout(POLL_S)
        while self._socket is None:
            with contextlib.suppress(TimeoutError):
                self._socket = self._listening.accept()[0]
            if self._socket is None:
                self._check(self._began + self.timeout_s)
        self._receive()
        self._pid = self._peer()
        self.imported_s = time.monotonic() - self._began

    def get_ready(self) -> None:
        """Let the process warm up, and stop it then.

        Raises:
            CaptureError: it ended before.
        """
        began = time.monotonic()
        self._send("begin")
        self._receive()
        self.ready_s = time.monotonic() - began
        self._search()
        self._signal(signal.SIGSTOP)

    def block(self, seconds: float) -> list[float]:
        """Run for about some seconds; return the steps; see `diagnose.trials.turns.Form`."""
        self._signal(signal.SIGCONT)
        self._send(f"go {seconds:.6f}")
        message = self._receive()
        if len(self.num_steps) % BLOCKS_PER_SEARCH == 0:
            self._search()
        self._signal(signal.SIGSTOP)
        steps = [float(ns) for ns in message["steps"]]
        if not steps or not all(0 < ns < inf for ns in steps):
            raise CaptureError("It reported steps that cannot be.")
        self.num_steps.append(len(steps))
        self.wall_ns_per_step.append(float(message["wall_ns"]) / (len(steps) + int(message["dropped"])))
        return steps

    def end(self) -> TrialResult:
        """End the script as a trial ends; return what it measured. What is left of it is killed."""
        try:
            self._signal(signal.SIGCONT)
            self._send("stop")
            if self._guard is not None:
                self._guard.wait(END_S)
            return TrialResult.from_json((self.folder / "result.json").read_text(encoding="utf-8"))
        except (CaptureError, subprocess.TimeoutExpired, OSError, ValueError, TypeError) as error:
            return TrialResult(failure=f"It left no result: {error}")
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill whatever is left of it; may be called at any time, and twice."""
        if self._guard is None:
            return
        self._signal(signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.close(self._pipe)  # the guard ends what it finds below itself
        try:
            self._guard.wait(END_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        kill_marked(VARIABLE, self.folder)
        self._guard, self._pid = None, 0
        for each in (self._socket, self._listening):
            if each is not None:
                each.close()

    def _peer(self) -> int:
        """Return who has connected, which the kernel knows: what gets signals is never what a script says."""
        assert self._socket is not None, "it has connected"
        assert self._guard is not None, "it was started"
        size = struct.calcsize("3i")
        pid: int = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
        if pid not in descendants(self._guard.pid) or os.getpgid(pid) != pid:
            raise CaptureError("Another process than the one that was started has connected.")
        return pid

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, its group, and what it has started outside of that."""
        if not self._pid:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)
        for pid in self._others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _search(self) -> None:
        self._others = set()
        for pid in descendants(self._pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) != self._pid:
                    self._others.add(pid)

    def _send(self, line: str) -> None:
        assert self._socket is not None, "it was waited for"
        with contextlib.suppress(OSError):  # it has ended: the next answer says so
            self._socket.sendall(f"{line}\n".encode())

    def _receive(self) -> dict[str, Any]:
        assert self._socket is not None, "it was waited for"
        self._socket.settimeout(POLL_S)
        until = time.monotonic() + self.timeout_s
        while b"\n" not in self._received:
            data = None
            with contextlib.suppress(TimeoutError, ConnectionError):
                data = self._socket.recv(1 << 16)
            if data == b"" or len(self._received) > MAX_MESSAGE_BYTES:
                raise CaptureError(self._why_ended())
            self._received += data or b""
            if data is None:
                self._check(until)
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise CaptureError("It sent what cannot be read.")
        return message

    def _check(self, until: float) -> None:
        assert self._guard is not None, "it was started"
        if self._guard.poll() is not None:
            raise CaptureError(self._why_ended())
        if time.monotonic() > until:
            raise CaptureError(f"It did not answer within {self.timeout_s:.0f} s.")

    def _why_ended(self) -> str:
        """Return the sentence for a script that has ended by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert self._guard is not None, "it was started"
            self._guard.wait(END_S)
        with contextlib.suppress(OSError, ValueError, TypeError):
            result = TrialResult.from_json((self.folder / "result.json").read_text(encoding="utf-8"))
            if result.failure:
                return result.failure
        lines = (self.folder / "output.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = f" Its last line: {lines[-1].strip()[:160]}" if lines else ""
        return f"It ended before the measurement was over.{last}"

    def _start_guard(self, log: IO[bytes]) -> tuple[subprocess.Popen[bytes], int]:
        waiting, pipe = os.pipe()
        guarded = {
            "pipe": waiting,
            "grace_s": 0.2,
            "command": [sys.executable, "-c", BOOTSTRAP, str(self.folder / "order.json"), *self.script],
            "environment": {"PYTHONUNBUFFERED": "1", VARIABLE: str(self.folder)},
            "remove": "",
            "writable": None,
            "hosts": None,
        }
        (self.folder / "guard.json").write_text(json.dumps(guarded), encoding="utf-8")
        root = str(Path(diagnose.__file__).parents[1])
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", GUARD, root, str(self.folder / "guard.json")],
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={"PYTHONHASHSEED": "0", **os.environ, "PYTHONPATH": _python_path(root)},
                pass_fds=(waiting,),
            )
        except BaseException:
            os.close(pipe)
            raise
        finally:
            os.close(waiting)
        return process, pipe


def _python_path(root: str) -> str:
    return os.pathsep.join(dict.fromkeys([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def start_all(processes: Mapping[int, TurnProcess]) -> dict[int, str]:
    """Start processes: they import at once and warm up one after the other; return why, of those that failed.

    Autotuning chooses by time, and would choose otherwise beside others.
    """
    failed: dict[int, str] = {}
    for each in processes.values():
        each.start()
    for wait in (TurnProcess.wait_for_import, TurnProcess.get_ready):
        for number, each in processes.items():
            if number not in failed:
                try:
                    wait(each)
                except CaptureError as error:
                    failed[number] = str(error)
                    each.kill()
    return failed

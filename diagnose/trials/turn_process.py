"""A form of a script as a process that waits for its turn: its room, its start, its blocks and its end."""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from diagnose.capture.process.process import kill_marked
from diagnose.errors import CaptureError
from diagnose.trials.child import MAX_MESSAGE_BYTES
from diagnose.trials.guard import descendants
from diagnose.trials.launch import VARIABLE, Launch, last_line, read_result
from diagnose.trials.measuring import TrialRequest, TrialResult
from diagnose.trials.trials import CUT_OFF
from diagnose.trials.turns import Block, LiveForm, ScriptEndedError

USED_AT_MOST = 0.9  # of what is free: a change may take more than the script without it
CGROUP = Path("/sys/fs/cgroup")


def room_for(ready: Sequence[LiveForm], available: int | None) -> int:
    """Return how many further processes have room beside those that are ready, of which there are two or more.

    Args:
        ready: In the order in which they became ready: on a device each has less free memory than the one before.
        available: Bytes of the host that are free now, None if unknown.
    """
    most = sys.maxsize
    host = max(each.host_bytes() for each in ready)
    if available is not None and host > 0:
        most = int(USED_AT_MOST * available / host)
    free = [each.device_free for each in ready if each.device_free is not None]
    if len(free) >= 2 and free[-2] > free[-1]:
        most = min(most, int(USED_AT_MOST * free[-1] / (free[-2] - free[-1])))
    return max(most, 0)


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int | None:
    """Return how much memory the host, or the container, has free; None where the system does not show it."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = meminfo.read_text(encoding="ascii").splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        found.append(limit - int((cgroup / "memory.current").read_text(encoding="ascii")))
    return min(found, default=None)


POLL_S = 0.5  # a process that was killed leaves the socket open in its workers: so often it is looked for
END_S = 20.0  # to write what was measured, before it is killed


@dataclass
class TurnProcess:
    """One process of one form; ``folder``, which is its own, takes what it writes.

    It runs under the guard of every trial (`diagnose.trials.guard`), so nothing of it outlives this process.
    """

    launch: Launch
    folder: Path
    order: TrialRequest  # but for the path of its socket
    socket_path: Path  # 108 bytes at most
    finish: Callable[[TrialResult], TrialResult] = lambda run: run  # once it has ended
    timeout_s: float = 300.0  # until it is ready, and for each block: compiling takes long, hanging takes for ever
    ends: float = inf  # of the budget, by the monotonic clock: no answer is waited for any longer
    imported_s: float = 0.0  # until torch was imported
    ready_s: float = 0.0  # from then until the warm-up was over
    device_free: int | None = None  # bytes when it was ready, None without a device
    wall_ns_per_step: list[float] = field(default_factory=list)  # of whole blocks, with what is dropped and drained
    num_steps: list[int] = field(default_factory=list)  # timed, of each block
    _guard: subprocess.Popen[bytes] | None = None
    _pipe: int = -1
    _listening: socket.socket | None = None
    _socket: socket.socket | None = None
    _received: bytes = b""
    _pid: int = 0
    _others: set[int] = field(default_factory=set)  # below it, in groups of their own
    _has_processes: bool = False  # below it
    _began: float = 0.0

    def start(self) -> None:
        """Start the process, which imports torch and waits.

        Raises:
            CaptureError: there is no socket of this name.
        """
        self._began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listening.bind(str(self.socket_path))
        except OSError as error:  # the path is too long
            raise CaptureError(f"No socket could be made in {self.socket_path.parent}: {error}.") from error
        self._listening.listen(1)
        order = replace(self.order, turns=str(self.socket_path))
        self._guard, self._pipe = self.launch.start(self.folder, order)

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
        free = self._receive().get("device_free")
        self.device_free = free if isinstance(free, int) else None
        self.ready_s = time.monotonic() - began
        self._search()
        self._signal(signal.SIGSTOP)

    def block(self, seconds: float) -> Block:
        """Run for about some seconds; see `diagnose.trials.turns.Form`."""
        self._signal(signal.SIGCONT)
        self._send(f"go {seconds:.6f}")
        message = self._receive()
        if len(self.num_steps) % 20 == 0:  # for processes outside of the group, which takes some milliseconds
            self._search()
        self._signal(signal.SIGSTOP)
        steps, queued = ([float(ns) for ns in message[name]] for name in ("steps", "queued"))
        if not steps or not all(0 < ns < inf for ns in steps) or not all(0 <= ns < inf for ns in queued):
            raise CaptureError("It reported steps that cannot be.")
        self.num_steps.append(len(steps))
        self.wall_ns_per_step.append(float(message["wall_ns"]) / (len(steps) + int(message["dropped"])))
        return Block(steps, queued, 1.0 if self._has_processes else float(message["apart"]))

    def host_bytes(self) -> int:
        """Return the largest memory that it and what it has started had to themselves, as far as the system shows."""
        return sum(_own_peak(pid) for pid in (self._pid, *descendants(self._pid))) if self._pid else 0

    def stop(self) -> None:
        """Ask the script to end as a trial ends."""
        self._signal(signal.SIGCONT)
        if self._socket is not None:
            self._send("stop")

    def end(self) -> TrialResult:
        """Stop the script, and return what it measured; what is left of it is killed."""
        self.stop()
        return self._ended(self._wait_for_end())

    def failed(self, why: str) -> TrialResult:
        """Kill what is left of it after a failure; return the sentence about that as a result."""
        return self._ended(TrialResult(failure=why))

    def _ended(self, run: TrialResult) -> TrialResult:
        started = self._guard is not None
        self.kill()
        return self.finish(run) if started else run

    def _wait_for_end(self) -> TrialResult:
        code = None
        if self._guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._guard.wait(END_S)
        return read_result(self.folder, code, END_S, last_line(self.folder))

    def kill(self) -> None:
        """Kill whatever is left of it; may be called at any time, and twice."""
        if self._guard is None:
            return
        self._signal(signal.SIGKILL)
        self._guard.terminate()  # it ends what it finds below itself
        try:
            self._guard.wait(END_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        os.close(self._pipe)  # not before: to the guard it means that this process is gone
        kill_marked(VARIABLE, self.launch.name)
        self._guard, self._pid = None, 0
        for each in (self._socket, self._listening):
            if each is not None:
                each.close()
        self.socket_path.unlink(missing_ok=True)

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
        self._others, below = set(), descendants(self._pid)
        self._has_processes = bool(below)
        for pid in below:
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
                raise self._end_of_script()
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
            raise self._end_of_script()
        if time.monotonic() > self.ends:
            raise CaptureError(CUT_OFF)
        if time.monotonic() > until:
            raise CaptureError(f"It did not answer within {self.timeout_s:.0f} s.")

    def _end_of_script(self) -> CaptureError:
        """Return the sentence for a script that has ended by itself: a failure unless it has trained to its end."""
        run = self._wait_for_end()
        return CaptureError(run.failure) if run.failure else ScriptEndedError("The script came to its end.")


def _own_peak(pid: int) -> int:
    """Return the peak of a process's memory without files, which processes share."""
    sizes = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in ("VmHWM", "RssFile"):
                sizes[name] = int(value.split()[0]) * 1024
    return max(sizes.get("VmHWM", 0) - sizes.get("RssFile", 0), 0)


def start_all(processes: Mapping[int, LiveForm]) -> dict[int, str]:
    """Start processes: they import at once and warm up one after the other; return why, of those that failed.

    Autotuning chooses by time, and would choose otherwise beside others.
    """
    failed: dict[int, str] = {}
    for part in ("start", "wait_for_import", "get_ready"):
        for number, each in processes.items():
            if number not in failed:
                try:
                    getattr(each, part)()
                except CaptureError as error:
                    failed[number] = each.failed(str(error)).failure
    return failed

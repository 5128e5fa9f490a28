"""The process between ``diagnose prove`` and a trial: whatever ends, nothing that the trial has started outlives it.

It starts the command and waits. It ends everything below it when the command has ended, when it is asked to (SIGTERM),
and when the pipe from ``prove`` closes, which the kernel does however ``prove`` ends, SIGKILL included. On Linux it is
the subreaper of the trial: a process whose parent has ended becomes the guard's own child and cannot get lost. The
command itself is killed by the kernel should the guard be. Elsewhere the process group and the pipe have to do.

It stays light, with the standard library only: it starts before every run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

__all__ = ["BOOTSTRAP", "GUARD_EXIT", "main"]

BOOTSTRAP = "import sys; sys.path.append(sys.argv.pop(1)); from diagnose.trials.guard import main; main()"
GUARD_EXIT = 70  # the command could not be started
HANDLED = (signal.SIGTERM, signal.SIGCHLD)
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main() -> NoReturn:
    """Run the command that the file ``sys.argv[1]`` describes and leave as it has left."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    os.set_inheritable(order["pipe"], False)
    guard = _Guard(order["pipe"], order["grace_s"])
    ended = guard.run(order["command"], order["environment"], order["writable"], order["hosts"])
    if ended is None and order["remove"] and select.select([order["pipe"]], [], [], 0)[0]:
        from diagnose.trials.copying import remove_tree

        remove_tree(Path(order["remove"]))  # the temporary folder of a prove that has ended without doing so
    _leave(ended)


class _Guard:
    def __init__(self, pipe: int, grace_s: float) -> None:
        self._pipe, self._grace_s = pipe, grace_s
        self._pid = 0
        self._status: int | None = None
        self._asked = False
        _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, self._on_signal)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._asked = self._asked or number == signal.SIGTERM

    def run(
        self, command: list[str], environment: Mapping[str, str], writable: list[str] | None, hosts: str | None
    ) -> int | None:
        """Return the status of the command, None where it was ended.

        It may write to ``writable`` only, if given, and has no network if there is a file ``hosts`` for its names.
        """
        self._pid = _start(command, environment, writable, hosts)
        while self._status is None and not self._asked and not self._parent_is_gone():
            self._reap()
        ended = self._status
        if ended is None:
            self._signal(signal.SIGTERM)
            limit = time.monotonic() + self._grace_s
            while self._status is None and time.monotonic() < limit:
                time.sleep(0.02)
                self._reap()
        for _ in range(50):  # rounds, of killing what starts new processes meanwhile
            if not self._signal(signal.SIGKILL):
                break
            time.sleep(0.005)
            self._reap()
        return ended

    def _parent_is_gone(self) -> bool:
        ready, _, _ = select.select([self._pipe, self._woken], [], [])
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        return self._pipe in ready

    def _reap(self) -> None:
        """Collect what has ended: the command, and orphans."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._pid:
                    self._status = status

    def _signal(self, number: signal.Signals) -> bool:
        """Send a signal to the command's process group and to every process below; return whether there was one."""
        self._reap()
        below = _descendants(os.getpid())
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return bool(below)


def _start(command: list[str], environment: Mapping[str, str], writable: list[str] | None, hosts: str | None) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != guard:  # it ended before the line above
            os._exit(GUARD_EXIT)
        signal.set_wakeup_fd(-1)
        for number in (*HANDLED, *IGNORED):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(environment)
        if hosts is not None or writable is not None:
            from diagnose.trials import isolation

            if hosts is not None:
                isolation.isolate(hosts)
            if writable is not None:
                isolation.restrict(writable)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} could not be started: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(GUARD_EXIT)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _descendants(root: int) -> list[int]:
    """Return the processes below ``root`` that run; none where there is no /proc."""
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
                    state, parent = text.rpartition(")")[2].split()[:2]
                    if state not in "ZX":
                        parents[int(name)] = int(parent)
    return [pid for pid in parents if pid != root and root in _ancestors(pid, parents)]


def _ancestors(pid: int, parents: Mapping[int, int]) -> set[int]:
    found: set[int] = set()
    while pid in parents and pid not in found:
        found.add(pid)
        pid = parents[pid]
    return found | {pid}


def _leave(ended: int | None) -> NoReturn:
    """End with the exit code of the command, or by the signal that ended it."""
    if ended is None:
        os._exit(GUARD_EXIT)
    if os.WIFSIGNALED(ended):
        number = os.WTERMSIG(ended)
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL cannot be set, and needs not
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(ended) & 0xFF)

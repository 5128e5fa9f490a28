"""The process between ``diagnose prove`` and a trial: nothing of the trial outlives it, or gets beyond its limits.

It starts the command and waits. It ends everything below it when the command has ended, when it is asked to (SIGTERM),
and when the pipe from ``prove`` closes, which the kernel does however ``prove`` ends, SIGKILL included. On Linux it is
the subreaper of the trial: a process whose parent has ended becomes the guard's own child and cannot get lost. The
command itself is killed by the kernel should the guard be. Elsewhere the process group and the pipe have to do.

Namespaces of Linux take the network from the run: it has a loopback interface and no other one, so torchrun, gloo and
workers reach each other and nothing reaches a server, one on the host's loopback included. It also has shared memory of
its own, and its host's name stands for 127.0.0.1. Landlock keeps it from opening files for writing, from creating,
removing and renaming them outside a list of places; it does not restrict modes, owners, times and extended attributes:
`diagnose.trials.limits` notices those.

It stays light, with the standard library only: it starts before every run.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

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
        _prctl(Linux.CHILD_SUBREAPER, 1)
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
        below = descendants(os.getpid())
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
        _prctl(Linux.PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it ended before the line above
            os._exit(GUARD_EXIT)
        signal.set_wakeup_fd(-1)
        for number in (*HANDLED, *IGNORED):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(environment)
        if hosts is not None:
            isolate(hosts)
        if writable is not None:
            restrict(writable)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} could not be started: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(GUARD_EXIT)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            _call("prctl", option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Return the processes below ``root`` that run; none where there is no /proc."""
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
                state, parent = text.rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(name)] = int(parent)
    below, num = {root}, 0
    while num < len(below):
        num = len(below)
        below |= {pid for pid, parent in parents.items() if parent in below}
    return list(below - {root})


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


SHARED_MEMORY, HOSTS = "/dev/shm", "/etc/hosts"
PROBE = """
import sys
sys.path.append(sys.argv[1])
from diagnose.trials.guard import isolate
try:
    isolate()
except OSError as error:
    sys.exit(error.strerror)
"""


class Linux(IntEnum):
    """Numbers of linux/sched.h, mount.h, sockios.h, if.h and prctl.h."""

    NEWNS, NEWUSER, NEWNET = 0x00020000, 0x10000000, 0x40000000
    MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
    SIOCSIFFLAGS, IFF_UP = 0x8914, 1
    PDEATHSIG, CHILD_SUBREAPER, NO_NEW_PRIVS = 1, 36, 38


class Landlock(IntEnum):
    """Numbers of linux/landlock.h; those of the calls are the same on every architecture that torch runs on."""

    CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
    VERSION, PATH_BENEATH = 1, 1
    WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
    IN_FOLDERS = sum(1 << bit for bit in range(4, 14))  # remove, make, and move between folders
    MIN_ABI = 2  # of Linux 5.19; the first one forbids to move a file from one folder to another
    ABI_WITH_TRUNCATE = 3


@functools.cache
def why_not_isolated() -> str:
    """Return why this system cannot isolate a run, "" if it can: a process tries it."""
    if sys.platform != "linux":
        return f"{sys.platform} has no network namespaces"
    command = [sys.executable, "-I", "-S", "-c", PROBE, str(Path(__file__).parents[2])]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20.0)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""


@functools.cache  # a name server may have to be asked
def hosts_text() -> str:
    """Return this machine's /etc/hosts with its own name standing for the loopback."""
    known = ("127.0.0.1 localhost", "::1 localhost", "::ffff:127.0.0.1 loopback")  # no server would be there to ask
    names = dict.fromkeys((socket.gethostname(), socket.getfqdn()))
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path(HOSTS).read_text(encoding="utf-8", errors="replace").splitlines()
    others = [line for line in lines if not names.keys() & set(line.partition("#")[0].split()[1:])]
    return "\n".join((f"127.0.0.1 {' '.join(names)}", *others, *known, ""))


def isolate(hosts: str | None = None) -> None:
    """Take the network from this process and from all that it will start, this machine's loopback apart.

    Args:
        hosts: A file that stands for /etc/hosts.

    Raises:
        OSError: the system refuses.
    """
    is_root = os.geteuid() == 0
    user, group = os.geteuid(), os.getegid()
    size = 0
    with contextlib.suppress(OSError):
        shared = os.statvfs(SHARED_MEMORY)
        size = shared.f_blocks * shared.f_frsize
    _call("unshare", Linux.NEWNET | Linux.NEWNS | (0 if is_root else Linux.NEWUSER))
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", None, b"/", None, Linux.MS_REC | Linux.MS_PRIVATE, None)
    if size:
        _call("mount", b"tmpfs", SHARED_MEMORY.encode(), b"tmpfs", 0, b"mode=1777,size=%d" % size)
    if hosts is not None and Path(HOSTS).exists():
        _call("mount", os.fsencode(hosts), HOSTS.encode(), None, Linux.MS_BIND, None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as interface:
        fcntl.ioctl(interface, Linux.SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", Linux.IFF_UP))


def can_restrict() -> bool:
    """Return whether this system can restrict a run."""
    return _abi() >= Landlock.MIN_ABI


def restrict(places: Iterable[str]) -> None:
    """Take the right to write anywhere else from this process and from all that it will start.

    Raises:
        OSError: the system refuses.
    """
    everything = Landlock.WRITE_FILE | Landlock.IN_FOLDERS
    if _abi() >= Landlock.ABI_WITH_TRUNCATE:
        everything |= Landlock.TRUNCATE
    attributes = struct.pack("=Q", everything)
    ruleset = _call("syscall", Landlock.CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for place in places:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
                try:
                    is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
                    rights = everything if is_folder else everything & ~Landlock.IN_FOLDERS
                    rule = struct.pack("=Qi", rights, descriptor)
                    _call("syscall", Landlock.ADD_RULE, ruleset, Landlock.PATH_BENEATH, rule, 0)
                finally:
                    os.close(descriptor)
        _call("prctl", Linux.NO_NEW_PRIVS, 1, 0, 0, 0)
        _call("syscall", Landlock.RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _abi() -> int:
    """Return the version of Landlock here, 0 where there is none."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return _call("syscall", Landlock.CREATE_RULESET, None, 0, Landlock.VERSION)
    return 0


def _call(name: str, *arguments: object) -> int:
    """Call a function of the C library; whole numbers are passed as those of 64 bits.

    Raises:
        OSError: the system refuses.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    result = getattr(libc, name)(*(ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{'Landlock' if name == 'syscall' else name}: {os.strerror(number)}")
    return int(result)

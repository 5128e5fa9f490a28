"""What the Linux kernel takes from a run: the network beyond this machine's loopback, and writing outside a list.

Namespaces give the run a loopback interface and no other one, so torchrun, gloo and workers reach each other and
nothing reaches a server, one on the host's loopback included. It also has shared memory of its own, and its host's name
stands for 127.0.0.1.

Landlock restricts opening for writing, creating, removing and renaming. It does not restrict modes, owners, times and
extended attributes of files: `diagnose.trials.originals` notices those.

It stays light, with the standard library only: the guard of every run does the isolating.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

__all__ = ["SHARED_MEMORY", "can_restrict", "hosts_text", "isolate", "restrict", "why_not_isolated"]

SHARED_MEMORY, HOSTS = "/dev/shm", "/etc/hosts"
PROBE = """
import sys
sys.path.append(sys.argv[1])
from diagnose.trials.isolation import isolate
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
    NO_NEW_PRIVS = 38


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

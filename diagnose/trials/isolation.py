"""Gives a run a network that ends at this machine's loopback, by namespaces of Linux.

The run has a loopback interface and no other one, so torchrun, gloo and workers reach each other and nothing reaches
a server, one on the host's loopback included. It also has shared memory of its own, and its host's name stands for
127.0.0.1.

It imports the standard library only, since the guard of every run does the isolating.
"""

from __future__ import annotations

import fcntl
import functools
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

__all__ = ["SHARED_MEMORY", "hosts_text", "isolate", "why_not_isolated"]

NEWNS, NEWUSER, NEWNET = 0x00020000, 0x10000000, 0x40000000  # of linux/sched.h
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18  # of linux/mount.h
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # of linux/sockios.h and linux/if.h
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
PROBE_S = 20.0


@functools.cache
def why_not_isolated() -> str:
    """Return why this system cannot isolate a run, "" if it can: a process tries it."""
    if sys.platform != "linux":
        return f"{sys.platform} has no network namespaces"
    command = [sys.executable, "-I", "-S", "-c", PROBE, str(Path(__file__).parents[2])]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""


@functools.cache  # a name server may have to be asked
def hosts_text() -> str:
    """Return this machine's /etc/hosts with its own name standing for the loopback."""
    known = ("127.0.0.1 localhost", "::1 localhost", "::ffff:127.0.0.1 loopback")  # no server would be there to ask
    names = dict.fromkeys((socket.gethostname(), socket.getfqdn()))
    try:
        lines = Path(HOSTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
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
    size = _size_of_shared_memory()
    _call("unshare", NEWNET | NEWNS | (0 if is_root else NEWUSER))
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    if size:
        _call("mount", b"tmpfs", SHARED_MEMORY.encode(), b"tmpfs", 0, b"mode=1777,size=%d" % size)
    if hosts is not None and Path(HOSTS).exists():
        _call("mount", os.fsencode(hosts), HOSTS.encode(), None, MS_BIND, None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as interface:
        fcntl.ioctl(interface, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def _size_of_shared_memory() -> int:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def _call(name: str, *arguments: object) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    converted = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if getattr(libc, name)(*converted) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")

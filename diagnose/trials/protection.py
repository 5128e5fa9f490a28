"""Lets a run write to a list of places only, by Landlock of Linux: other files can be read and nothing more.

Landlock restricts opening for writing, creating, removing and renaming. It does not restrict modes, owners, times and
extended attributes of files: `diagnose.trials.originals` notices those.

It imports the standard library only, since the guard of every run does the restricting.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
from collections.abc import Iterable, Iterator

__all__ = ["can_restrict", "restrict"]

MIN_ABI = 2  # of Linux 5.19; the first one forbids to move a file from one folder to another

# of linux/landlock.h; the numbers of the calls are the same on every architecture that torch runs on
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, PATH_BENEATH = 1, 1
PR_SET_NO_NEW_PRIVS = 38
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
IN_FOLDERS = sum(1 << bit for bit in (4, 5, 6, 7, 8, 9, 10, 11, 12, 13))  # remove, make, and move between folders
ABI_WITH_TRUNCATE = 3


def can_restrict() -> bool:
    """Return whether this system can restrict a run."""
    return _abi() >= MIN_ABI


def restrict(places: Iterable[str]) -> None:
    """Take the right to write anywhere else from this process and from all that it will start.

    Raises:
        OSError: the system refuses.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    everything = WRITE_FILE | IN_FOLDERS | (TRUNCATE if _abi() >= ABI_WITH_TRUNCATE else 0)
    attributes = struct.pack("=Q", everything)
    ruleset = _checked(libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), ctypes.get_errno)
    try:
        for place in places:
            with contextlib.suppress(FileNotFoundError, PermissionError), _opened(place) as (descriptor, is_folder):
                rights = everything if is_folder else everything & ~IN_FOLDERS
                rule = struct.pack("=Qi", rights, descriptor)
                _checked(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, rule, 0), ctypes.get_errno)
        _checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), ctypes.get_errno)
        _checked(libc.syscall(RESTRICT_SELF, ruleset, 0), ctypes.get_errno)
    finally:
        os.close(ruleset)


def _abi() -> int:
    """Return the version of Landlock here, 0 or less where there is none."""
    if sys.platform != "linux":
        return 0
    import ctypes

    return int(ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION))


def _checked(result: int, errno: object) -> int:
    if result < 0:
        number = errno() if callable(errno) else 0
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result


@contextlib.contextmanager
def _opened(place: str) -> Iterator[tuple[int, bool]]:
    descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        yield descriptor, stat.S_ISDIR(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)

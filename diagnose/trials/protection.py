"""Lets a run write to its own folders only, by Landlock of Linux: the user's files can be read and nothing more.

What a run may write to: the copy of the working folder and the folder of its results, temporary folders, devices, and
the caches of tools (hidden folders of the home, and those that the environment names). Landlock takes back no right on
a folder below one that has it, so a folder that may be written and holds the project is given entry by entry.

It imports the standard library only, since the guard of every run does the restricting.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

__all__ = ["can_restrict", "restrict", "writable_places"]

MIN_ABI = 2  # of Linux 5.19; the first one forbids to move a file from one folder to another
SHARED = ("/tmp", "/var/tmp", "/dev", "/proc", "/run")
CACHES = (
    "CUDA_CACHE_PATH",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PIPE_DIRECTORY",
    "HF_DATASETS_CACHE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME",
    "TRANSFORMERS_CACHE",
    "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)  # variables of the environment that name folders

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


def writable_places(cwd: Path, own: Iterable[Path]) -> list[str]:
    """Return the files and folders that a run may write to: nothing in the working folder, nothing beside it.

    ``own`` are the folders of the run itself, which may lie anywhere.
    """
    here = cwd.resolve()
    named = [Path(path) for path in (*SHARED, tempfile.gettempdir(), *_caches())]
    roots = dict.fromkeys(path.resolve() for path in named if path.exists())
    places = [place for root in roots for place in _outside(root, here)]
    return [*dict.fromkeys(str(place) for place in (*(path.resolve() for path in own), *places))]


def restrict(places: Sequence[str]) -> None:
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


def _caches() -> list[str]:
    found = [os.environ[name] for name in CACHES if os.environ.get(name)]
    with contextlib.suppress(OSError, RuntimeError), os.scandir(Path.home()) as entries:
        found += [entry.path for entry in entries if entry.name.startswith(".") and entry.is_dir()]
    return found


def _outside(root: Path, here: Path) -> list[Path]:
    """Return the root, or of one that holds the working folder what does not lie beside that."""
    if root.is_relative_to(here):
        return []
    if not here.is_relative_to(root):
        return [root]
    found = []
    while root != here.parent:
        below = root / here.relative_to(root).parts[0]
        with contextlib.suppress(OSError), os.scandir(root) as entries:
            found += [Path(entry.path) for entry in entries if entry.path != str(below) and not entry.is_symlink()]
        root = below
    return found

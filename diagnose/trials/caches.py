"""The caches that a run fills instead of the user's: made from what those hold, and removed at the end.

A cache that is data (downloaded weights) is shown with links, and small files, which tools lock and rewrite, are
copies. A cache that can be built again (compiled kernels) is shown as a whole or starts empty.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import tempfile
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from diagnose.trials.copying import children_of, copy_file

__all__ = ["Cache", "seed", "user_caches"]

MAX_SEEDED = 5_000  # names of one cache: below a second, some seconds on a network file system
MAX_COPIED_BYTES = 64 << 10  # locks, indices and tables of contents are smaller
CACHE = ".cache"
IN_HOME = (CACHE, ".triton", ".nv", ".cupy")  # folders of the home that a run has to itself
DATA = (
    "HF_DATASETS_CACHE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_MODULES_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "MPLCONFIGDIR",
    "TORCH_HOME",
    "TRANSFORMERS_CACHE",
    "XDG_CACHE_HOME",
)  # variables that name caches of downloads
BUILT = (
    "CUDA_CACHE_PATH",
    "CUPY_CACHE_DIR",
    "NUMBA_CACHE_DIR",
    "PYTORCH_KERNEL_CACHE_PATH",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
)  # of compilers
FILLED = frozenset({"diagnose", "huggingface", "matplotlib", "torch", "torch_extensions", "triton"})  # of ~/.cache

Kind = Literal["folder", "file", "link"]


@dataclass(frozen=True)
class Cache:
    """A cache of the user: its folder, there or not, and the variables of the environment that name it or a part."""

    path: Path
    data: bool
    filled: frozenset[str] | None = None  # the only inner folders that a run adds to, None: all
    variables: Mapping[str, Path] = field(default_factory=dict)


def user_caches(home: Path | None) -> list[Cache]:
    """Return the caches in the user's home and those that the environment names; none lies in another one."""
    variables = _named()
    found = {} if home is None else {home / name: name == CACHE for name in IN_HOME}
    for name, path in variables.items():
        found[path] = found.get(path, False) or name in DATA
    outer = [path for path in found if not any(path != other and path.is_relative_to(other) for other in found)]
    whole = {variables.get("XDG_CACHE_HOME"), home and home / CACHE}
    return [_cache(path, variables, data=found[path], is_whole=path not in whole) for path in outer]


def _cache(path: Path, variables: Mapping[str, Path], *, data: bool, is_whole: bool) -> Cache:
    mine = {name: inner for name, inner in variables.items() if inner.is_relative_to(path)}
    named = {inner.relative_to(path).parts[0] for inner in mine.values() if inner != path}
    return Cache(path, data, None if is_whole else FILLED | named, mine)


def _named() -> dict[str, Path]:
    named = {name: os.environ[name] for name in (*DATA, *BUILT) if os.environ.get(name)}
    if os.environ.get("TRITON_HOME"):
        named.setdefault("TRITON_CACHE_DIR", str(Path(os.environ["TRITON_HOME"], ".triton", "cache")))
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())  # as torch calls the folder
        named.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir(), f"torchinductor_{user}")))
    paths = {name: Path(path).expanduser().resolve() for name, path in named.items()}
    return {name: path for name, path in paths.items() if path.parent != path}


def seed(cache: Cache, target: Path) -> None:
    """Show in the folder ``target``, made if missing, what the cache holds; nothing written there reaches the user's.

    Of a cache of data, inner folders beyond `MAX_SEEDED` names are links, which a run can read only; one that can be
    built again then starts empty.
    """
    target.mkdir(parents=True, exist_ok=True)
    entries, is_whole = _planned(str(cache.path), cache.filled)
    for name, (kind, path) in entries.items() if cache.data or is_whole else ():
        with contextlib.suppress(OSError):  # gone meanwhile, or unreadable: a cache can lack it
            match kind:
                case "folder":
                    (target / name).mkdir()
                case "file":
                    copy_file(path, target / name)
                case "link":
                    (target / name).symlink_to(path)


def _planned(top: str, filled: frozenset[str] | None) -> tuple[dict[str, tuple[Kind, str]], bool]:
    """Return what stands for each name below ``top``, a folder before what it holds, and whether all had room."""
    entries: dict[str, tuple[Kind, str]] = {}
    waiting, left, is_whole = deque([""]), MAX_SEEDED, True
    while waiting:
        folder = waiting.popleft()
        children = children_of(f"{top}/{folder}")
        if len(children) > left:
            is_whole = False
            entries |= {folder: ("link", f"{top}/{folder}")} if folder else {}
            continue
        left -= len(children)
        for child in children:
            name = f"{folder}/{child.name}" if folder else child.name
            is_linked = filled is not None and not folder and child.name not in filled
            entries[name] = ("link", child.path) if is_linked else _stands_for(child, top)
            waiting += [name] if entries[name][0] == "folder" else []
    return entries, is_whole


def _stands_for(child: os.DirEntry[str], top: str) -> tuple[Kind, str]:
    if child.is_dir(follow_symlinks=False):
        return "folder", child.path
    if child.is_symlink():
        text, real = Path(child.path).readlink(), Path(os.path.realpath(child.path))
        return "link", str(text if not text.is_absolute() and real.is_relative_to(top) else real)
    with contextlib.suppress(OSError):
        if child.is_file() and child.stat().st_size <= MAX_COPIED_BYTES:
            return "file", child.path
    return "link", child.path

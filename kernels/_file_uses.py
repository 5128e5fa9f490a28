"""Waits before this process uses a file that a thread still writes, or starts a program that may.

Python reports to audit hooks (PEP 578) what it opens, lists, moves and removes, and which programs and connections it
starts. It does not report `os.stat`, `os.lstat` and `os.access`: they are replaced by functions that do.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakMethod

__all__ = ["before_use", "never_waits"]

Wait: TypeAlias = "Callable[[str | None], object]"  # is given a path, or None before a program starts
_ASKS = ("stat", "lstat", "access")
_USES = {
    *(f"os.{name}" for name in (*_ASKS, "chmod", "chown", "link", "listdir", "remove", "rename", "scandir", "symlink")),
    "open", "os.truncate", "os.utime", "shutil.rmtree",
}  # fmt: skip
_STARTS = {"os.exec", "os.posix_spawn", "os.spawn", "os.system", "socket.connect", "socket.sendto", "subprocess.Popen"}
_SEEN = _USES | _STARTS
_waits: list[WeakMethod[Wait]] = []
_thread = threading.local()


def before_use(wait: Wait) -> None:
    """Call the method before each use, until its object is gone."""
    if not _waits:
        sys.addaudithook(_hook)
        for name in _ASKS:
            setattr(os, name, _reported(getattr(os, name), f"os.{name}"))
    _waits.append(WeakMethod(wait))


def never_waits() -> None:
    """Let this thread use files at once: it writes them."""
    _thread.is_free = True


def _reported(function: Callable[..., Any], event: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def reported(path: Any, *args: Any, **options: Any) -> Any:
        _hook(event, (path,))
        return function(path, *args, **options)

    for able in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        if function in able:
            able.add(reported)
    return reported


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in _SEEN or getattr(_thread, "is_free", False):
        return
    _thread.is_free = True  # what follows uses files too
    try:
        paths = [
            os.fsdecode(arg or ".") for arg in args[:2] if arg is None or isinstance(arg, str | bytes | os.PathLike)
        ]
        for wait in filter(None, (reference() for reference in tuple(_waits))):
            for path in [None] if event in _STARTS else paths:
                wait(path)
    finally:
        _thread.is_free = False

"""Patch of the C library's allocator: freed memory stays the process's own."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo

__all__ = ["MMAP_THRESHOLD", "TRIM_THRESHOLD", "keep_heap"]

# Parameters of glibc's mallopt, from malloc.h, and what they are set to: 32 MB is the most that it takes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
MMAP_THRESHOLD, TRIM_THRESHOLD = 32 << 20, (1 << 31) - 1
_USUAL = 128 << 10  # of both, where nothing was set


def keep_heap(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let glibc keep freed blocks of up to 32 MB in its heap, and the heap's free end."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function, or a system that loads no library without a name
        log.left("the process: its C library has no mallopt")
        return lambda: None
    done = [mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD), mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD)]
    if not all(done):
        log.left("the process: its C library takes no such setting")
    else:
        log.did(f"malloc: blocks of up to {MMAP_THRESHOLD >> 20} MB come from the heap, which keeps what is freed")

    def undo() -> None:
        mallopt(_M_MMAP_THRESHOLD, _USUAL)
        mallopt(_M_TRIM_THRESHOLD, _USUAL)

    return undo

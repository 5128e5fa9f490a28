"""Python's collector of cyclic garbage, held back where nothing forms a cycle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collector"]


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's collector from walking many objects of which none forms a cycle, such as a trace's events."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

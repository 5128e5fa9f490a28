"""A fault of one rule, or of a part that only a report shows, costs that part alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diagnose.errors import is_debugging
from diagnose.model.events import Note

__all__ = ["noting"]


@contextmanager
def noting(rule: str, notes: list[Note]) -> Iterator[None]:
    """Turn a fault of one rule, or of a part that only a report shows, into a note; DIAGNOSE_DEBUG raises it."""
    try:
        yield
    except Exception as error:
        if is_debugging():
            raise
        note = Note(f"The rule {rule} failed on this trace ({type(error).__name__}: {error}).", rule)
        if note not in notes:
            notes.append(note)

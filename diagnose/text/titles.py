"""Titles within sentences."""

from __future__ import annotations

__all__ = ["lower_first"]

NAMES = frozenset({"Python", "Adam", "Adagrad", "Adadelta", "Adamax", "Muon", "Rprop", "Adafactor"})


def lower_first(title: str) -> str:
    """Return a title as it goes on within a sentence; names keep their capital."""
    first = title.split(" ", 1)[0].removesuffix("'s")
    return title if first in NAMES or first != first.capitalize() else title[0].lower() + title[1:]

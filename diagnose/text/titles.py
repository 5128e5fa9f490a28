"""Titles within sentences, and what a headline calls the finding."""

from __future__ import annotations

__all__ = ["LARGEST_AVOIDABLE", "lower_first"]

LARGEST_AVOIDABLE = "the largest avoidable cost"  # more of the step is work that no finding is about
NAMES = frozenset({"Python", "Adam", "Adagrad", "Adadelta", "Adamax", "Muon", "Rprop", "Adafactor"})


def lower_first(title: str) -> str:
    """Return a title as it goes on within a sentence; names keep their capital."""
    first = title.split(" ", 1)[0].removesuffix("'s")
    return title if first in NAMES or first != first.capitalize() else title[0].lower() + title[1:]

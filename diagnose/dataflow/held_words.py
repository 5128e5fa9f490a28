"""The sentence on values of each step that are still there after the next one."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.dataflow.growth import PiledUp
from diagnose.model.dataflow import line_words
from diagnose.text.numbers import enumeration, plural, size_words

__all__ = ["held_words"]

MAX_NAMED = 3


def held_words(lines: Sequence[PiledUp]) -> str:
    """Return what each recorded step leaves, and the lines that make most of it; there is at least one line."""
    num = plural(sum(one.num_values for one in lines), "value")
    size = size_words(sum(one.num_bytes for one in lines))
    named = enumeration([f"{line_words(one.line)} ({size_words(one.num_bytes)})" for one in lines[:MAX_NAMED]])
    return f"Each step leaves {num} ({size}) still held after the next one, made at {named}."

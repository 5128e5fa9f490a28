"""Values of each step that are still there after the next one."""

from __future__ import annotations

from diagnose.analyzers.common.avoidable import at
from diagnose.tables import Tables
from diagnose.tables.flow import flow_of
from diagnose.text.numbers import enumeration, plural, size_words

__all__ = ["held_values"]

MAX_NAMED = 3


def held_values(t: Tables) -> tuple[str, ...]:
    """Return one sentence on what each recorded step leaves and the lines that make most; none if nothing is known."""
    flow = flow_of(t)
    lines = flow.found.piled_up if flow is not None else ()
    if not lines:
        return ()
    num = plural(sum(one.num_values for one in lines), "value")
    size = size_words(sum(one.num_bytes for one in lines))
    named = enumeration([f"{at(one.line)} ({size_words(one.num_bytes)})" for one in lines[:MAX_NAMED]])
    return (f"Each step leaves {num} ({size}) still held after the next one, made at {named}.",)

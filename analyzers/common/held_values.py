"""Values of each step that are still there after the next one."""

from __future__ import annotations

from diagnose.dataflow.held_words import held_words
from diagnose.tables import Tables

__all__ = ["held_values"]


def held_values(t: Tables) -> tuple[str, ...]:
    """Return one sentence on what each recorded step leaves and the lines that make most; none if nothing is known."""
    flow = t.flow
    lines = flow.found.piled_up if flow is not None else ()
    return (held_words(lines),) if lines else ()

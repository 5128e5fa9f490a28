"""Values of each step that are still there after the next one."""

from __future__ import annotations

from diagnose.tables import Tables

__all__ = ["held_values"]


def held_values(t: Tables) -> tuple[str, ...]:
    """Return one sentence on what each recorded step leaves and the lines that make most; none if nothing is known."""
    flow = t.flow
    if flow is None or not flow.found.piled_up:
        return ()
    from diagnose.dataflow.growth import held_words  # only a recorded data flow needs it

    return (held_words(flow.found.piled_up),)

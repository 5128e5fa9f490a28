"""Of what a cost is stated: of each step, where steps were found, else of the recording."""

from __future__ import annotations

from diagnose.tables import Tables

__all__ = ["of_whole"]


def of_whole(t: Tables) -> str:
    """Return the words that follow a time per step."""
    return "of each step" if t.steps.marked else "of the recording"

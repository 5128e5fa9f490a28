"""Of what a cost is stated: of each step, where steps were found, else of the recording."""

from __future__ import annotations

from diagnose.tables import Tables
from diagnose.text.patterns import lazy_pattern

__all__ = ["of_recording", "of_whole"]

_EACH = lazy_pattern(r"(?<! of) a step\b")


def of_whole(t: Tables) -> str:
    """Return the words that follow a time per step."""
    return "of each step" if t.steps.marked else "of the recording"


def of_recording(evidence: tuple[str, ...]) -> tuple[str, ...]:
    """Return evidence of a recording without steps: what it counts is of the whole."""
    return tuple(_EACH.sub(" in all", text) for text in evidence)

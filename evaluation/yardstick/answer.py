"""What every tool's answer is turned into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Answer", "NoAnswerError", "Part"]

Part = Literal["cause", "line", "change", "saving", "silence"]


class NoAnswerError(Exception):
    """A tool cannot answer about a case; the message is the reason."""


@dataclass(frozen=True)
class Answer:
    """What a tool puts first. Without a cause it is silent: it states that nothing is worth changing."""

    cause: str = ""  # in the tool's words
    names: tuple[str, ...] = ()  # ids of docs/rules.md that these words cover; several: a family of causes
    places: tuple[tuple[str, int, int], ...] = ()  # file, first and last line: of the cause, and of the change
    change: str = ""  # in the tool's words
    change_id: str = ""  # of docs/changes.md, if the change is one of them
    saving: float | None = None  # share of the step

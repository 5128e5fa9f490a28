"""What rules can judge of an answer; the rest is open until a reader has judged it (``sheet``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from yardstick.answer import Answer
from yardstick.case import Case, Truth
from yardstick.led import SILENCE
from yardstick.tools import Tool

__all__ = ["Mark", "judge", "wilson"]

Cause = Literal["right", "fair", "wrong", "missed", "allowed", "false", "open", "no answer", ""]
Line = Literal["right", "other", "none", ""]
Change = Literal["right", "fair", "wrong", "harmful", "none", "open", ""]
Z_95 = 1.959964  # of the normal distribution, both sides


@dataclass(frozen=True)
class Mark:
    """One answer, judged. An empty string: the tool's answers have no such part, or the case has no truth about it."""

    tool: str
    case: Case
    truth: Truth
    answer: Answer
    seconds: float
    failed: str = ""
    cause: Cause = ""
    line: Line = ""
    change: Change = ""
    is_led: bool = False  # its case led to the rule that answers, or to one that is right for it

    @property
    def error(self) -> float | None:
        """Return the stated saving less the measured one, if the cause is right and both are known."""
        stated, measured = self.answer.saving, self.truth.saved
        return stated - measured if self.cause == "right" and stated is not None and measured is not None else None


def judge(tool: Tool, case: Case, answer: Answer, seconds: float, failed: str = "") -> Mark:
    """Judge an answer by the rules."""
    truth = case.truth()
    deciding = (*truth.names, *(answer.names or (SILENCE,)))
    mark = Mark(tool.name, case, truth, answer, seconds, failed, is_led=tool.led.holds(case.id, deciding))
    if failed:
        lost = not truth.healthy
        return replace(
            mark,
            cause="no answer",
            line="none" if lost and truth.lines and "line" in tool.answers else "",
            change="none" if lost and truth.helps and "change" in tool.answers else "",
        )
    return replace(
        mark,
        cause=_cause(tool, truth, answer),
        line=_line(truth, answer) if "line" in tool.answers else "",
        change=_change(truth, answer) if "change" in tool.answers else "",
    )


def _cause(tool: Tool, truth: Truth, answer: Answer) -> Cause:
    if "cause" not in tool.answers:
        return ""
    if truth.healthy:
        return _alarm(tool, truth, answer)
    right = set(truth.names)
    if not answer.cause:
        return "right" if "none" in right else "missed"
    if not right or not answer.names:
        return "open"
    if right.issuperset(answer.names):
        return "right"
    return "fair" if right.intersection(answer.names) else "wrong"


def _alarm(tool: Tool, truth: Truth, answer: Answer) -> Cause:
    """Judge what is answered about a healthy case: nothing, or what its author lets pass."""
    if "silence" not in tool.answers:
        return ""
    passes = not answer.cause or not set(truth.names).isdisjoint(answer.names)
    return "allowed" if passes else "false"


def _line(truth: Truth, answer: Answer) -> Line:
    if not truth.lines:
        return ""
    if not answer.places:
        return "none"
    hit = any(
        file == place and first <= line <= last for place, first, last in answer.places for file, line in truth.lines
    )
    return "right" if hit else "other"


def _change(truth: Truth, answer: Answer) -> Change:
    if truth.healthy or not (truth.helps or truth.changes):
        return ""
    if not answer.change:
        return "right" if "none" in truth.changes else "none"
    if answer.change_id and answer.change_id in truth.changes:
        return "right"
    return "open"


def wilson(hits: int, num: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a share, by Wilson's score (1927)."""
    if num == 0:
        return 0.0, 1.0
    share, square = hits / num, Z_95 * Z_95
    middle = (share + square / (2 * num)) / (1 + square / num)
    half = Z_95 * math.sqrt(share * (1 - share) / num + square / (4 * num * num)) / (1 + square / num)
    return max(0.0, middle - half), min(1.0, middle + half)

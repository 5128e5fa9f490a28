"""The findings of a report in their order, each with the change that it offers and what else is possible."""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.answer.cards import SAME, Prediction, offered, why_more
from diagnose.answer.tried import took_longer
from diagnose.model.diagnosis import Diagnosis, Finding, Prescription
from diagnose.model.frozen import dataclass
from diagnose.model.words import Words
from diagnose.text.numbers import duration

__all__ = ["FindingRow", "finding_rows"]


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One finding of the list."""

    number: int  # from 1
    finding: Finding
    fix: Prescription | None  # the change that a card shows for it, or that comes first
    alternative: Prescription | None  # the other way that saves most by itself
    refuted: tuple[Prescription, ...]  # changes that made the step longer when they were tried
    also: tuple[str, ...]  # ids of further changes
    without: Words | None  # what a step without it saves, if that differs from what it costs


def finding_rows(d: Diagnosis, each: Mapping[str, Prediction]) -> tuple[FindingRow, ...]:
    """Return a row for each finding, in the order of the findings."""
    longer = took_longer(d)
    on_cards = {p.rule: p for p in reversed(offered(d, each))}
    rows = []
    for number, finding in enumerate(d.findings, 1):
        mine = [p for p in d.prescriptions if p.rule == finding.rule]
        also = [p for p in d.also_possible if p.rule == finding.rule]
        kept = [p for p in mine if p.id not in longer]
        fix = on_cards.get(finding.rule) or next(iter(kept), None)
        others = [p for p in kept if p is not fix and p.id in each and not each[p.id].behind]
        rows.append(
            FindingRow(
                number,
                finding,
                fix,
                alternative=max(others, key=lambda p: each[p.id].saves_ns, default=None),
                refuted=tuple(p for p in (*mine, *also) if p.id in longer),
                also=tuple(p.id for p in also if p.id not in longer),
                without=_without(finding, d),
            )
        )
    return tuple(rows)


def _without(finding: Finding, d: Diagnosis) -> Words | None:
    """Return what a step without the cause saves, if that differs from what it costs."""
    relief, step_ns = finding.relief_ns, d.step_ns
    if not finding.lost_ns and (relief is None or step_ns <= 0 or relief < SAME * step_ns):
        return Words("costs no time by itself")
    if relief is None or abs(relief - finding.lost_ns) < SAME * step_ns:
        return None
    shorter = {"time": duration(relief)}
    if not finding.lost_ns:
        return Words("runs under the device's own work; without it the step is {time} shorter", shorter)
    if relief < SAME * step_ns:
        return Words("; without it other work takes as long")
    if (more := why_more(finding, relief, d)) is not None:
        return Words("; without it the step is {time} shorter, {more}", {**shorter, "more": more})
    return Words("; without it the step is {time} shorter, as other work takes the rest", shorter)

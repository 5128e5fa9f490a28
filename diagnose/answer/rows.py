"""The findings of a report in their order, each with the change that it offers and what else is possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnose.answer.cards import Prediction, offered
from diagnose.answer.gates import record_again
from diagnose.answer.ranking import worth_share
from diagnose.answer.tried import took_longer
from diagnose.model.diagnosis import Diagnosis, Finding, Prescription
from diagnose.model.words import Words
from diagnose.text.numbers import duration, percent

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
    saves: Words | None  # what the step saves without it, None where the recording cannot show it
    share: float  # the same of the step, or of the run


def finding_rows(d: Diagnosis, each: Mapping[str, Prediction]) -> tuple[FindingRow, ...]:
    """Return a row for each finding, in the order of the findings.

    A recording that cannot carry an answer has neither savings nor changes.
    """
    again = record_again(d) is not None
    longer = took_longer(d)
    on_cards = {} if again else {p.rule: p for p in reversed(offered(d, each))}
    rows = []
    for number, finding in enumerate(d.findings, 1):
        mine = [p for p in d.prescriptions if p.rule == finding.rule and not again]
        also = [p for p in d.also_possible if p.rule == finding.rule and not again]
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
                share=0.0 if again else worth_share(finding, d.step_ns),
                saves=None if again else _saves(finding, d),
            )
        )
    return tuple(rows)


def _saves(finding: Finding, d: Diagnosis) -> Words:
    """Return what the step saves without the cause, ns and share: the number that findings are ordered by."""
    if not finding.worth_ns:
        return Words("no saving known")
    time = duration(finding.worth_ns)
    if d.step_ns <= 0:
        return Words("{time}", {"time": time})
    share = percent(worth_share(finding, d.step_ns))
    if finding.share is not None:
        return Words("{time} per step ({share} of the run)", {"time": time, "share": share})
    words = "{time} ({share} of the step)" if d.source.found_steps_by != "none" else "{time} ({share} of the recording)"
    return Words(words, {"time": time, "share": share})

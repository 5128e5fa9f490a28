"""Operators that a step could do without, as an analysis of its data flow found them: the finding and the claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, with_idle
from diagnose.analyzers.common.locate import source_line
from diagnose.dataflow.graph import Work
from diagnose.model.dataflow import Frame
from diagnose.model.dataflow import line_words as at
from diagnose.model.diagnosis import Confidence, Facts, Finding, Where
from diagnose.model.intervals import EMPTY, Intervals, intersect, total, union
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow

__all__ = ["Avoidable", "AvoidableRule", "at", "avoidable_time", "calling_share", "issuer", "last_parts"]

MIN_OPERATOR_SHARE = 0.02  # of the data flow's operator time: the share of the step that the smallest finding has
MAX_NAMED = 3
MAX_PLACES = 5


class Avoidable(NamedTuple):
    """One part of a finding: operators that a step could do without."""

    title: str
    text: str  # a sentence that names the value and its use
    work: Work
    lines: tuple[Frame | None, ...]  # to edit, the first one first
    facts: Facts
    avoidable: float = 1.0  # share of the operators' time
    confidence: Confidence = "high"
    joined: tuple[int, ...] = ()  # operators that the change joins to the work, and whose time stays


def calling_share(work: Work, overhead_share: float) -> float:
    """Return what share of some operators' time goes into calling them; ``overhead_share`` is that of the step."""
    return min(overhead_share / max(work.share, 1e-9), 1.0)


def issuer(line: Frame, work: Work, reads: int = 0) -> Facts:
    """Return the line that issues operators as the changes of loops read it."""
    return {"file": line.file, "line": line.line, "num": len(work.operators), "reads": reads, "share": 1.0}


def avoidable_time(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return what goes with some operators: also the time between two that follow each other, if both go as a whole."""
    return last_parts(t, flow, one) if one.avoidable < 1 else flow.span_of(t, one.work.operators)


def last_parts(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return of each operator the last part, which is avoidable."""
    return _tail(flow.time_of(t, one.work.operators), one.avoidable)


class AvoidableRule(NamedTuple):
    """A rule on an analysis: what it found of one, the largest part first. The finding has the title of that one."""

    meta: RuleMeta
    detect: Callable[[Flow], Sequence[Avoidable]]
    min_share: float = 0.03  # of the step, or of the busy time: what a step's length varies by from run to run
    time_of: Callable[[Tables, Flow, Avoidable], Intervals] = avoidable_time  # of a part: what the host can avoid
    shortens_gaps: bool = True  # False where less work only makes kernels shorter, and no gap ends earlier

    def claim(self, t: Tables, left: Intervals) -> Intervals:
        """Claim idle time while the host issues what can be avoided, if that shortens gaps."""
        if not self.shortens_gaps:
            return EMPTY
        return intersect(self.claim_host(t, left), t.gaps.host_part())

    def claim_host(self, t: Tables, left: Intervals) -> Intervals:
        """Claim the host's time for what can be avoided."""
        flow = t.flow
        if flow is None:
            return EMPTY
        lost = union(EMPTY, *[self.time_of(t, flow, one) for one in self._parts(flow)])
        return worth_claiming(t, left, lost, self.min_share)

    def find(self, t: Tables) -> list[Finding]:
        """Name what can be avoided, with the lines that make it and use it."""
        flow = t.flow
        parts = [one for one in self._parts(flow) if total(self.time_of(t, flow, one))] if flow is not None else []
        if flow is None or not parts:
            return []
        former = {kind: {"sub_kind": rule} for kind, rule in self.meta.former}
        first = parts[0]._replace(facts={**parts[0].facts, **former.get(str(parts[0].facts.get("kind")), {})})
        texts = [one.text for one in parts[:MAX_NAMED]]
        rule = IdleRule(
            self.meta.id,
            first.title,
            probe="middle",
            confidence=first.confidence,
            evidence=lambda _t, _o: texts,
            facts=first.facts,
        )
        found = idle_finding(t, rule)
        if t.device_id >= 0:
            found = self._with_kernels(t, found, flow, [first, *parts[1:]], texts)
        where, operators = _where(t, parts), first.work.operators
        return [replace(each, where=where or each.where, operators=operators) for each in found]

    def _parts(self, flow: Flow) -> list[Avoidable]:
        return [one for one in self.detect(flow) if one.work.share * one.avoidable >= MIN_OPERATOR_SHARE]

    def _with_kernels(
        self, t: Tables, idle: list[Finding], flow: Flow, parts: Sequence[Avoidable], texts: Sequence[str]
    ) -> list[Finding]:
        """Return the finding of idle time with the kernels' time, or the one of the two that there is."""
        share = np.zeros(len(t.tasks.row))
        for one in parts:
            issued = t.launched_in(flow.time_of(t, one.work.operators))
            share[issued] = np.maximum(share[issued], one.avoidable)
        tasks, first = np.flatnonzero(share), parts[0]
        kept = float(((t.tasks.end - t.tasks.start)[tasks] * (1 - share[tasks])).sum())
        rule = KernelRule(self.meta.id, first.title, self.min_share, kept, texts, first.confidence, first.facts)
        return with_idle(idle, kernel_finding(t, rule, tasks), tasks)


def _tail(work: Intervals, share: float) -> Intervals:
    """Return the last part of each interval."""
    start, end = work
    return Intervals(end - ((end - start) * share).astype(np.int64), end)


def _where(t: Tables, parts: Sequence[Avoidable]) -> tuple[Where, ...]:
    lines = dict.fromkeys(line for one in parts for line in one.lines if line is not None)
    return tuple(
        Where(line.file, line.line, line.function, code=source_line(t, line.file, line.line))
        for line in list(lines)[:MAX_PLACES]
    )

"""Operators that a step could do without, as an analysis of its data flow found them: the finding and the claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.analyzers.common.locate import line_at
from diagnose.analyzers.common.rewrite import Edits, joined
from diagnose.analyzers.common.unread import Chain, time_in
from diagnose.model.arrays import Floats
from diagnose.model.dataflow import Frame
from diagnose.model.dataflow import line_words as at
from diagnose.model.diagnosis import Confidence, Facts, Finding, Removal
from diagnose.model.events import Kind
from diagnose.model.intervals import (
    EMPTY,
    Intervals,
    among,
    contains,
    distinct,
    intersect,
    quantiles,
    subtract,
    total,
    union,
)
from diagnose.model.limits import MAJORITY
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.dispatch import overhead
from diagnose.tables.flow import Flow
from diagnose.tables.host import outermost
from diagnose.tables.issuers import issued_in_loop
from diagnose.tables.syncs import waits_for_host_copies
from diagnose.text.numbers import duration, percent

if TYPE_CHECKING:
    from diagnose.dataflow.graph import Work
    from diagnose.dataflow.loops import Loop

__all__ = [
    "IN_LONG_STEP",
    "Avoidable",
    "AvoidableRule",
    "at",
    "avoidable_time",
    "calling_share",
    "calling_time",
    "held_values",
    "issuer",
    "last_parts",
    "loop_rule",
    "python_calls",
]

IN_LONG_STEP = "in_long_step"  # the fact of a finding in a step that is long now and then
MIN_WORK_SHARE = 0.02  # of the data flow's operator time, or the device's: what the smallest finding has of the step


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
    edits: Edits = ()  # that make the change
    with_inner: bool = False  # of what the operators themselves launch that share goes, of what they call all
    chains: tuple[Chain, ...] = ()  # calls that go with all that Python does in them
    doubt: str = ""  # what is uncertain where the confidence is low, a clause


def avoidable_time(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return what goes with some operators: also the time between two that follow each other, if both go as a whole."""
    if one.chains:
        return shortened(time_in(t, flow, one.chains), one.avoidable)
    return last_parts(t, flow, one) if one.avoidable < 1 else flow.span_of(t, one.work.operators)


def last_parts(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return of each operator the last part, which is avoidable."""
    return shortened(flow.time_of(t, one.work.operators), one.avoidable)


def shortened(time: Intervals, share: float) -> Intervals:
    """Return the last part of each interval."""
    return Intervals(time.end - ((time.end - time.start) * share).astype(np.int64), time.end)


class AvoidableRule(NamedTuple):
    """A rule on an analysis: what it found of one, the largest part first. The finding has the title of that one."""

    meta: RuleMeta
    detect: Callable[[Flow], Iterable[Avoidable]]
    min_share: float = 0.03  # of the step, or of the busy time: what a step's length varies by from run to run
    time_of: Callable[[Tables, Flow, Avoidable], Intervals] = avoidable_time  # of a part: what the host can avoid
    min_work: float = MIN_WORK_SHARE  # of a part
    keeps_work: bool = False  # True where fewer kernels do what these do: each spares what the shortest one takes
    shortens_gaps: bool = True  # False where less work only makes kernels shorter, and no gap ends earlier
    frees_host: bool = True  # False where as many operators are called as before
    by_time: bool = False  # whether the largest part is the one that takes most of the window, with the Python around

    def claim(self, t: Tables, left: Intervals) -> Intervals:
        """Claim idle time while the host issues what can be avoided, if that shortens gaps."""
        return intersect(self.claim_host(t, left), t.gaps.host_part()) if self.shortens_gaps else EMPTY

    def claim_host(self, t: Tables, left: Intervals) -> Intervals:
        """Claim the host's time for what can be avoided."""
        flow = t.flow
        time = self._host_time(t, flow, self._parts(t, flow)) if flow is not None else EMPTY
        return worth_claiming(t, left, time, self.min_share)

    def find(self, t: Tables) -> list[Finding]:
        """Name what can be avoided, with the lines that make it and use it: in each step, and in one of many."""
        return [*self.find_in_each(t), *self._in_long_step(t)]

    def find_in_each(self, t: Tables) -> list[Finding]:
        """Name what can be avoided in each step."""
        flow = t.flow
        parts = [one for one in self._parts(t, flow) if total(self.time_of(t, flow, one))] if flow is not None else []
        if flow is None or not parts:
            return []
        if self.by_time:
            parts.sort(key=lambda one: -total(self.time_of(t, flow, one)))
        first, texts = parts[0], [one.text for one in parts[:3]]
        facts = dict(first.facts)
        if first.edits:
            facts["edits"] = joined([one.edits for one in parts[:3]])
        rule = IdleRule(self.meta.id, first.title, "middle", first.confidence, texts, facts, doubt=first.doubt)
        found = idle_finding(t, rule)
        if t.device_id >= 0:
            found = self._with_kernels(t, found, flow, parts, rule)
        lines = dict.fromkeys(line for one in parts for line in one.lines if line is not None)
        where = tuple(line_at(t, line.file, line.line, line.function) for line in list(lines)[:5])
        without = self._removal(t, flow, parts) if t.device_id >= 0 and self.shortens_gaps else None
        return [
            replace(each, where=where or each.where, operators=first.work.operators, without=without) for each in found
        ]

    def _in_long_step(self, t: Tables) -> list[Finding]:
        """Name what can be avoided in a step that is long now and then; what usual steps have as well is no part."""
        found = t.flow.long_step if t.flow is not None else None
        if found is None:
            return []
        graph, own = found.flow.found.graph, found.own
        parts, work = list[Avoidable](), dict[int, float]()
        for one in self.detect(found.flow):
            mine = graph.work(own.intersection(one.work.operators))
            if mine.share * one.avoidable >= self.min_work and mine.share >= MAJORITY * one.work.share:
                parts.append(one._replace(work=mine))
                work = {i: max(work.get(i, 0.0), one.avoidable) for i in mine.operators} | work
        saved_ns = found.spared_ns(work)
        share = min(saved_ns / found.mean_ns, 1.0)
        if not parts or share < self.min_share:
            return []
        parts.sort(key=lambda one: -one.work.share * one.avoidable)
        first, lines = parts[0], dict.fromkeys(line for one in parts for line in one.lines if line is not None)
        facts = dict(first.facts) | ({"edits": joined([one.edits for one in parts[:3]])} if first.edits else {})
        return [
            Finding(
                rule=self.meta.id,
                title=f"{first.title}, in 1 step of {found.every}",
                lost_ns=saved_ns,
                share=share,
                evidence=(
                    f"1 step in {found.every} is much longer. Without these operators the mean step is "
                    f"{duration(saved_ns)} shorter, {percent(share, 0)} of the run's time.",
                    *(one.text for one in parts[:3]),
                ),
                where=tuple(line_at(t, line.file, line.line, line.function) for line in list(lines)[:5]),
                confidence=first.confidence,
                facts=facts | {IN_LONG_STEP: True},
                doubt=first.doubt,
            )
        ]

    def _host_time(self, t: Tables, flow: Flow, parts: Iterable[Avoidable]) -> Intervals:
        return union(EMPTY, *(self.time_of(t, flow, one) for one in parts))

    def _parts(self, t: Tables, flow: Flow) -> list[Avoidable]:
        time = t.tasks.end - t.tasks.start
        busy = max(int(time.sum()), 1)

        def share(one: Avoidable) -> float:
            if one.chains:
                return total(self.time_of(t, flow, one)) / (t.steps.window[1] - t.steps.window[0])
            issued = t.launched_in(flow.time_of(t, one.work.operators)) if t.device_id >= 0 else ()
            return one.avoidable * max(one.work.share, float(time[issued].sum()) / busy if len(issued) else 0.0)

        return [one for one in self.detect(flow) if share(one) >= self.min_work]

    def _with_kernels(
        self, t: Tables, idle: list[Finding], flow: Flow, parts: Sequence[Avoidable], rule: IdleRule
    ) -> list[Finding]:
        """Return the finding of idle time with the kernels' time, or the one of the two that there is."""
        spared = self._spared(t, flow, parts)
        tasks = np.flatnonzero(spared)
        kept = float(((t.tasks.end - t.tasks.start) - spared)[tasks].sum())
        texts = [one.text for one in parts[:3]]
        kernels = KernelRule(
            rule.rule, rule.title, self.min_share, kept, texts, rule.confidence, rule.facts, rule.doubt
        )
        busy = kernel_finding(t, kernels, tasks)
        if not idle or not busy:
            return [*idle, *busy]
        return [
            replace(
                idle[0],
                lost_ns=idle[0].lost_ns + busy[0].lost_ns,
                total_ns=idle[0].total_ns + busy[0].total_ns,
                evidence=tuple(dict.fromkeys((*idle[0].evidence, *busy[0].evidence))),
                tasks=tasks,
            )
        ]

    def _spared(self, t: Tables, flow: Flow, parts: Sequence[Avoidable]) -> Floats:
        """Return what each device task takes less without the parts, ns."""
        length, share = (t.tasks.end - t.tasks.start).astype(np.float64), np.zeros(len(t.tasks.row))
        most = np.minimum(length, shortest_kernel(t)) if self.keeps_work else length
        for one in parts:
            issued = t.launched_in(flow.time_of(t, one.work.operators))
            rows = np.concatenate([np.empty(0, np.intp), *(flow.rows[i] for i in one.work.operators)])
            whole = issued & ~among(t.operators, rows) if one.with_inner else np.zeros(len(issued), bool)
            share[issued] = np.maximum(share[issued], np.where(whole[issued], 1.0, one.avoidable))
        spared: Floats = most * share
        return spared

    def _removal(self, t: Tables, flow: Flow, parts: Sequence[Avoidable]) -> Removal:
        """Return what goes with the parts: of blocking calls those that wait for copies from the host."""
        host = self._host_time(t, flow, parts) if self.frees_host else EMPTY
        calls = t.blocking_calls[contains(host, t.trace.events.start[t.blocking_calls])]
        spared = self._spared(t, flow, parts)
        tasks = np.flatnonzero(spared)
        return Removal(host, np.sort(calls[waits_for_host_copies(t, calls)]), tasks, spared[tasks])


def shortest_kernel(t: Tables) -> float:
    """Return what a kernel takes that has next to nothing to do, ns: a tenth of them take less."""
    length = (t.tasks.end - t.tasks.start)[~(t.tasks.is_copy | t.tasks.is_collective)]
    return float(quantiles(length, 0.1)[0]) if len(length) else 0.0


def held_values(t: Tables) -> tuple[str, ...]:
    """Return one sentence on what each recorded step leaves and the lines that make most; none if nothing is known."""
    if t.flow is None or not t.flow.found.piled_up:
        return ()
    from diagnose.dataflow.growth import held_words  # only a recorded data flow needs it

    return (held_words(t.flow.found.piled_up),)


def calling_share(work: Work, overhead_share: float) -> float:
    """Return what share of some operators' time goes into calling them; ``overhead_share`` is that of the step."""
    return min(overhead_share / max(work.share, 1e-9), 1.0)


def issuer(line: Frame, work: Work, reads: int = 0) -> Facts:
    """Return the line that issues operators as the changes of loops read it."""
    return {"file": line.file, "line": line.line, "num": len(work.operators), "reads": reads, "share": 1.0}


def loop_rule(meta: RuleMeta, titles: Mapping[str, str], words: Callable[[Loop], str]) -> AvoidableRule:
    """Return the rule of the script's loops of some kinds; ``words`` say how their calls depend on each other."""

    def detect(flow: Flow) -> Iterable[Avoidable]:
        again = (each.work.operators for each in flow.found.computed_again if each.is_parametrized)
        parametrized = {i for each in again for i in each}
        for one in flow.found.loops:
            # Weights that each turn computes again come first: a layer of torch would have no parametrization.
            if one.kind in titles and parametrized.isdisjoint(one.work.operators):
                # The innermost call in a statement that loops, of those that make all of it. A loop whose turns are
                # chains is the outermost: those further in may go along the chain.
                lines = one.called[::-1] if one.longest_chain == 1 else ()
                heads = flow.source.loops
                within = (each for each in lines if any(a < each.line <= b for a, b in heads.get(each.file, ())))
                line = next(within, one.line)
                text = f"The loop at {at(line)} makes {one.num_calls} calls a step{words(one)}"
                facts: dict[str, object] = {"kind": one.kind, "num_calls": one.num_calls}
                facts |= {"issuer": issuer(line, one.work)} | {
                    "of_model": one.of_model,
                    "with_gradients": one.with_gradients,
                    "form": one.form,
                    "moves": one.moves,
                }
                share = calling_share(one.work, one.overhead_share)
                yield Avoidable(titles[one.kind], text, one.work, (line, *one.work.lines), facts, share)

    # Fewer operators take a part of the time themselves. What calling them takes is seen in the timing window: most of
    # it is not in them.
    keeps_work = "independent" in titles
    return AvoidableRule(meta, detect, 0.05, calling_time, min_work=0.0, keeps_work=keeps_work, by_time=True)


def calling_time(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return what calling a loop's operators takes: the Python between them, and of each the last part.

    Without a device what would be launch-bound of it is its own.
    Nothing of what one operator of torch calls, as a recurrent layer does on a CPU: the script has no such loop. Nor of
    what an optimizer does in its step: that has other implementations.
    """
    num = one.facts.get("num_calls")
    if isinstance(num, int) and python_calls(t, flow, one.work.operators) < num:
        return EMPTY
    span, work = subtract(flow.span_of(t, one.work.operators), t.updates), flow.time_of(t, one.work.operators)
    if t.device_id >= 0:
        turns = num if isinstance(num, int) else 1
        return Intervals(span.end - ((span.end - span.start) * (1 - 1 / turns)).astype(np.int64), span.end)
    return intersect(span, union(last_parts(t, flow, one), overhead(t), issued_in_loop(t), subtract(span, work)))


def python_calls(t: Tables, flow: Flow, work: Iterable[int]) -> float:
    """Return how many operators the forward pass calls of some in a step, those left out that others call."""
    operators = t.capture.dataflow.operators if t.capture.dataflow is not None else ()
    forward = [flow.rows[i] for i in work if operators[i].phase != "backward"]
    rows = np.sort(np.concatenate([np.empty(0, np.intp), *forward]))
    mine = rows[t.trace.events.thread[rows] == t.main]
    every = t.host_rows(Kind.OP)
    every = outermost(t.trace, every[t.trace.events.thread[every] == t.main])
    at_row = np.searchsorted(t.trace.events.start[every], t.trace.events.start[mine], side="right") - 1
    return len(distinct(at_row)) / t.steps.num

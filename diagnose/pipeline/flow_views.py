"""Which part of a step's data flow is drawn for a finding: the operators that it names, and those next to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diagnose.analyzers.common.locate import source_line
from diagnose.model.arrays import Floats
from diagnose.model.charts import FlowNode, FlowPicture, KeptByLine, LeftByLine, Mark, MemoryByLine
from diagnose.model.dataflow import Frame
from diagnose.model.diagnosis import Finding
from diagnose.model.locations import Where
from diagnose.tables import Tables
from diagnose.tables.flow import Flow, shows_values

if TYPE_CHECKING:
    from diagnose.dataflow.graph import Graph

# What the operators of a data flow take in the timing window, on the host and on the device.


def operator_times(t: Tables, flow: Flow) -> tuple[Floats, Floats]:
    """Return the time of each operator on the host, and that of the tasks that it launches."""
    events, num = t.trace.events, len(flow.rows)
    rows = np.concatenate(flow.rows)
    operator = np.repeat(np.arange(num), [len(each) for each in flow.rows])
    host = np.bincount(operator, (events.end - events.start)[rows].astype(np.float64), num)
    order = np.argsort(events.start[rows], kind="stable")
    rows, operator = rows[order], operator[order]
    launched = np.flatnonzero(t.tasks.launch >= 0)
    launch = events.start[t.tasks.launch[launched]]
    at = np.searchsorted(events.start[rows], launch, side="right") - 1
    inside = (at >= 0) & (launch <= events.end[rows[at]])
    length = (t.tasks.end - t.tasks.start)[launched[inside]].astype(np.float64)
    device = np.bincount(operator[at[inside]], length, num)
    return host.astype(np.float64), device.astype(np.float64)


MAX_NAMED_OPERATORS = 24  # operators: with what is next to them about two screens
MAX_DRAWN_OPERATORS = 36


def flow_pictures(t: Tables, findings: Sequence[Finding]) -> tuple[FlowPicture, ...]:
    """Return a picture for each finding that names operators of the data flow."""
    if t.analyses is None:
        return ()
    graph, lines = t.analyses.graph, t.capture.lines
    return tuple(flow_picture(graph, f.rule, f.operators, lines) for f in findings if f.operators)


def flow_picture(
    graph: Graph, rule: str, operators: Sequence[int], lines: Mapping[tuple[str, int], str]
) -> FlowPicture:
    """Return a picture of operators of one step; ``lines`` are the texts of source lines."""
    from diagnose.dataflow.graph import plain_name  # only a recorded data flow needs it

    step = _Step(graph, graph.operators[operators[0]].step, frozenset(operators))
    rows = [i for i in graph.of_step(step.number) if step.has(i)]
    result, use = step.passed_on()
    drawn = step.chosen(result)
    number = {row: i for i, row in enumerate(drawn)}
    before = [0]  # how many operators are left out before each drawn one, and after the last
    for row in rows:
        if row in number:
            before.append(0)
        else:
            before[-1] += 1
    nodes = tuple(
        FlowNode(
            operator=plain_name(graph.operators[row].name),
            where=Where(op=graph.operators[row].name)
            if (place := graph.operators[row].place) is None
            else Where(*place, code=lines.get(place[:2])),
            phase=graph.operators[row].phase,
            shape=writes[0].shape if (writes := graph.operators[row].writes) else (),
            dtype=writes[0].dtype if writes else "",
            reads=tuple(sorted(number[each] for each in step.makers(row) if each in number)),
            inputs=tuple(step.inputs(row))[:2],
            share=graph.share((row,)),
            is_named=row in step.named,
            mark=step.mark(row, result, use),
            num_before=before[number[row]],
        )
        for row in drawn
    )
    return FlowPicture(
        rule,
        nodes,
        num_operators=len(rows),
        num_named=len(step.named.intersection(rows)),
        share=graph.share(operators),
        num_after=before[-1],
    )


class _Step(NamedTuple):
    """The operators of one step, without views: an operator that reads a view reads what made the value."""

    graph: Graph
    number: int
    named: frozenset[int]  # by the finding

    def has(self, operator: int) -> bool:
        """Return whether an operator is one of the step that can be drawn."""
        one = self.graph.operators[operator]
        return one.step == self.number and not one.is_view

    def makers(self, operator: int) -> list[int]:
        """Return which operators made what one reads."""
        made_by = (self.graph.values[value].producer for value in self.graph.needs[operator])
        return [each for each in dict.fromkeys(made_by) if each >= 0 and self.has(each)]

    def readers(self, operator: int) -> list[int]:
        """Return which operators read what one makes."""
        values = (use.value for use in self.graph.operators[operator].writes)
        return [each for each in dict.fromkeys(r for v in values for r in self.graph.readers[v]) if self.has(each)]

    def inputs(self, operator: int) -> Iterator[str]:
        """Yield the names of what an operator reads and no operator of the step made."""
        for value in self.graph.needs[operator]:
            known = self.graph.values[value]
            is_made_here = known.producer >= 0 and self.graph.operators[known.producer].step == self.number
            if not is_made_here and (name := known.name or known.role):
                yield name

    def mark(self, row: int, result: int, use: int) -> Mark:
        """Return what an operator is, beside the result and its use."""
        if row in (result, use) and use >= 0:
            return "use" if row == use else "result"
        made = [one.value for one in self.graph.operators[row].writes]
        is_read = not made or any(self.graph.readers[value] for value in made)
        return "unused" if row in self.named and not is_read else ""

    def passed_on(self) -> tuple[int, int]:
        """Return the last named operator that one which is not named reads, and that one; -1 where none does."""
        for row in sorted(filter(self.has, self.named), reverse=True):
            for reader in self.readers(row):
                if reader not in self.named:
                    return row, reader
        return max(filter(self.has, self.named), default=-1), -1

    def chosen(self, first: int) -> list[int]:
        """Return what is drawn, in order: named operators from ``first`` on, then those next to them."""
        inside = list(dict.fromkeys([*self._reached(first), *sorted(filter(self.has, self.named))]))[
            :MAX_NAMED_OPERATORS
        ]
        next_to = dict.fromkeys(
            each for row in inside for each in (*self.readers(row), *self.makers(row)) if each not in self.named
        )
        return sorted([*inside, *list(next_to)[: MAX_DRAWN_OPERATORS - len(inside)]])

    def _reached(self, first: int) -> Iterator[int]:
        """Yield the named operators that hand values to each other, those nearest to ``first`` first."""
        seen, queue = {first}, deque([first] if first >= 0 else [])
        while queue:
            row = queue.popleft()
            yield row
            for each in (*self.makers(row), *self.readers(row)):
                if each in self.named and each not in seen:
                    seen.add(each)
                    queue.append(each)


# What a step keeps for its backward pass and leaves to later steps, by line.

MIN_KEPT = 0.1  # of the peak, of all lines: to compute less than that again frees too little to be worth a table
MIN_KEPT_LINE = 0.01  # of the peak, of a line
MIN_LEFT_LINE = 0.001  # of the peak: a thousand such steps double it


def memory_by_line(t: Tables) -> MemoryByLine | None:
    """Return the lines; None if there is no data flow, or if neither kind of them is worth a table."""
    flow = t.flow
    if flow is None:
        return None
    from diagnose.dataflow.kept import kept_by_line  # only a recorded data flow needs it

    memory = kept_by_line(flow.found.graph)
    lines = memory.lines if memory.num_bytes >= MIN_KEPT * memory.peak_bytes else ()
    times = operator_times(t, flow) if shows_values(t) else ()

    def longest(operators: Sequence[int]) -> float | None:
        """Return what operators take per step, on the host or the device; None if it is not known."""
        return max((float(each[list(operators)].sum()) / t.steps.num for each in times), default=0.0) or None

    kept = tuple(
        KeptByLine(_where_of(t, one.line), one.num_bytes, longest(one.operators))
        for one in lines
        if one.num_bytes >= MIN_KEPT_LINE * memory.peak_bytes
    )
    left = tuple(
        LeftByLine(_where_of(t, one.line), one.num_values, one.num_bytes)
        for one in flow.found.piled_up
        if one.num_bytes >= MIN_LEFT_LINE * memory.peak_bytes
    )
    if not kept and not left:
        return None
    return MemoryByLine(memory.device, memory.peak_bytes, memory.num_bytes, kept[:20], left[:20])


def _where_of(t: Tables, line: Frame | None) -> Where:
    if line is None:
        return Where()
    return Where(line.file, line.line, line.function, code=source_line(t, line.file, line.line))

"""What a step keeps for its backward pass and leaves to later steps, by line."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyzers.common.locate import source_line
from diagnose.dataflow.kept import kept_by_line
from diagnose.model.arrays import Floats
from diagnose.model.dataflow import Frame
from diagnose.model.locations import Where
from diagnose.model.step_memory import KeptByLine, LeftByLine, MemoryByLine
from diagnose.pipeline.operator_times import operator_times
from diagnose.tables import Tables
from diagnose.tables.flow import shows_values

__all__ = ["memory_by_line"]

MIN_KEPT = 0.1  # of the peak, of all lines: to compute less than that again frees too little to be worth a table
MIN_KEPT_LINE = 0.01  # of the peak, of a line
MIN_LEFT_LINE = 0.001  # of the peak: a thousand such steps double it
MAX_LINES = 20


def memory_by_line(t: Tables) -> MemoryByLine | None:
    """Return the lines; None if there is no data flow, or if neither kind of them is worth a table."""
    flow = t.flow
    if flow is None:
        return None
    memory = kept_by_line(flow.found.graph)
    lines = memory.lines if memory.num_bytes >= MIN_KEPT * memory.peak_bytes else ()
    times = operator_times(t, flow) if shows_values(t) else ()
    kept = tuple(
        KeptByLine(_where(t, one.line), one.num_bytes, _longest(times, one.operators, t.steps.num))
        for one in lines
        if one.num_bytes >= MIN_KEPT_LINE * memory.peak_bytes
    )
    left = tuple(
        LeftByLine(_where(t, one.line), one.num_values, one.num_bytes)
        for one in flow.found.piled_up
        if one.num_bytes >= MIN_LEFT_LINE * memory.peak_bytes
    )
    if not kept and not left:
        return None
    return MemoryByLine(memory.device, memory.peak_bytes, memory.num_bytes, kept[:MAX_LINES], left[:MAX_LINES])


def _longest(times: Sequence[Floats], operators: Sequence[int], num_steps: int) -> float | None:
    """Return what operators take per step, where they take longest; None if it is not known."""
    return max((float(each[list(operators)].sum()) / num_steps for each in times), default=0.0) or None


def _where(t: Tables, line: Frame | None) -> Where:
    if line is None:
        return Where()
    return Where(line.file, line.line, line.function, code=source_line(t, line.file, line.line))

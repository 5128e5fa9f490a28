"""Equal rows: work by row on rows that a gather, expand or repeat made equal. Before it, there are fewer rows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from diagnose.dataflow.graph import Graph, Work, num_bytes
from diagnose.dataflow.names import is_pointwise, is_product
from diagnose.model.dataflow import Frame, Operator, Value

__all__ = ["EqualRows", "equal_rows"]

MIN_REPEATED = 0.5  # of the rows: with fewer, the work moved before the gather also does rows that it leaves out


@dataclass(frozen=True, slots=True)
class EqualRows:
    """Operators of one line that compute rows which equal others."""

    work: Work
    value_line: Frame | None  # that made the rows equal
    repeated: float  # share of the rows
    avoidable: float  # share of the work's time


def equal_rows(graph: Graph) -> tuple[EqualRows, ...]:
    """Return the last step's work on equal rows, the longest first."""
    groups: dict[tuple[Frame | None, Frame | None], list[int]] = defaultdict(list)
    source: dict[int, Frame | None] = {}
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if not one.writes or one.phase == "optimizer" or not (is_product(one) or is_pointwise(one)):
            continue
        value = one.writes[0].value
        rows = _by_row(graph, one)
        if rows < 0 or not (_repeats(graph.values[rows]) and _repeats(graph.values[value])):
            continue
        source[value] = source[rows] if rows in source else graph.made_at(rows)
        groups[one.place, source[value]].append(i)
    records = (_record(graph, rows, line) for (_, line), rows in groups.items())
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _repeats(value: Value) -> bool:
    return value.repeated_rows >= MIN_REPEATED and value.kind != "constant" and value.zeros < 1 and len(value.shape) > 1


def _by_row(graph: Graph, one: Operator) -> int:
    """Return the value whose rows become the rows of the result, -1 if there is none."""
    result = one.writes[0]
    reads = [use for use in one.reads if len(use.shape) > 1 and use.shape[0] == result.shape[0]]
    if is_product(one):
        reads = [use for use in reads if graph.values[use.value].role != "parameter"]
    return max(reads, key=num_bytes).value if reads and result.shape[:1] else -1


def _record(graph: Graph, rows: list[int], line: Frame | None) -> EqualRows:
    written = [graph.values[graph.operators[i].writes[0].value] for i in rows]
    saved = sum(graph.operators[i].host_ns * value.repeated_rows for i, value in zip(rows, written, strict=True))
    return EqualRows(
        graph.work(rows), line, max(value.repeated_rows for value in written), saved / max(graph.time(rows), 1)
    )

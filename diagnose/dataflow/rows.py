"""Equal rows: work by row on rows that a gather, expand or repeat made equal. Before it, there are fewer rows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from diagnose.dataflow.graph import Graph, Work, num_bytes, plain_name
from diagnose.dataflow.names import is_pointwise, is_product
from diagnose.model.dataflow import Frame, Operator, Use, Value

__all__ = ["EqualRows", "equal_rows"]

MIN_REPEATED = 0.5  # of the rows: with fewer, the work moved before the gather also does rows that it leaves out
_GATHERS = frozenset(
    {"index_select", "index", "gather", "embedding", "repeat", "repeat_interleave", "_to_copy", "clone"}
)


@dataclass(frozen=True, slots=True)
class EqualRows:
    """Operators of one line that compute rows which equal others."""

    work: Work
    value_line: Frame | None  # that made the rows equal
    num_rows: int  # of what it repeats
    repeated: float  # share of the rows
    avoidable: float  # share of the work's time

    @property
    def avoidable_share(self) -> float:
        """Return the share of the step's operator time that can be avoided."""
        return self.work.share * self.avoidable


def equal_rows(graph: Graph) -> tuple[EqualRows, ...]:
    """Return the last step's work on rows that were repeated, the longest first."""
    groups: dict[tuple[Frame | None, int], list[int]] = defaultdict(list)
    gathered: dict[int, int] = {}  # by value, the operator that repeated its rows
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if not one.writes or one.phase == "optimizer":
            continue
        result = one.writes[0]
        if not _repeats(graph.values[result.value]):
            continue
        if _gathers(one):
            gathered[result.value] = i
            continue
        source = _by_row(graph, one)
        if source in gathered and (is_product(one) or is_pointwise(one)):
            gathered[result.value] = gathered[source]
            groups[one.place, gathered[source]].append(i)
    records = (_record(graph, rows, gather) for (_, gather), rows in groups.items())
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _repeats(value: Value) -> bool:
    return value.repeated_rows >= MIN_REPEATED and value.kind != "constant" and value.zeros < 1 and len(value.shape) > 1


def _num_rows(use: Use) -> int:
    return num_bytes(use) // max(num_bytes(replace(use, shape=use.shape[-1:])), 1)


def _source_rows(one: Operator) -> int:
    """Return how many rows an operator takes from, those that a view repeats counted once."""
    first = one.reads[0]
    shape = tuple(size for size, step in zip(first.shape, first.stride, strict=True) if step or size == 1)
    return _num_rows(replace(first, shape=shape))


def _gathers(one: Operator) -> bool:
    """Return whether an operator makes more rows of fewer."""
    is_gather = plain_name(one.name) in _GATHERS and bool(one.reads)
    return is_gather and _source_rows(one) <= (1 - MIN_REPEATED) * _num_rows(one.writes[0])


def _by_row(graph: Graph, one: Operator) -> int:
    """Return the value whose rows become the rows of the result, -1 if there is none."""
    result = one.writes[0]
    reads = [use for use in one.reads if len(use.shape) > 1 and use.shape[0] == result.shape[0]]
    if is_product(one):
        reads = [use for use in reads if graph.values[use.value].role != "parameter"]
    return max(reads, key=num_bytes).value if reads and result.shape[:1] else -1


def _record(graph: Graph, rows: list[int], gather: int) -> EqualRows:
    written = [graph.values[graph.operators[i].writes[0].value] for i in rows]
    made = graph.operators[gather]
    num, needed = _source_rows(made), _source_rows(made) / _num_rows(made.writes[0])
    saved = sum(
        graph.operators[i].host_ns * min(value.repeated_rows, 1 - needed)
        for i, value in zip(rows, written, strict=True)
    )
    repeated = max(value.repeated_rows for value in written)
    return EqualRows(graph.work(rows), made.place, num, repeated, saved / max(graph.time(rows), 1))

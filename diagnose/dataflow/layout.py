"""Layout: copies into another order whose users would take the strides of the original."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.dataflow.graph import Graph, Work
from diagnose.dataflow.names import is_copy, is_pointwise, is_product, is_reduction
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["LayoutCopy", "layout_copies"]


@dataclass(frozen=True, slots=True)
class LayoutCopy:
    """Copies of one line that only change the order of elements."""

    work: Work
    use_line: Frame | None  # the first user, which takes strides
    num_bytes: int


def layout_copies(graph: Graph) -> tuple[LayoutCopy, ...]:
    """Return the last step's copies that can be left out, the longest first."""
    groups: dict[tuple[Frame | None, Frame | None], list[int]] = {}
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if _only_reorders(graph, one) and (users := _users(graph, one)):
            groups.setdefault((one.place, graph.operators[users[0]].place), []).append(i)
    records = (
        LayoutCopy(graph.work(rows), use, sum(graph.values[graph.operators[i].writes[0].value].num_bytes for i in rows))
        for (_, use), rows in groups.items()
    )
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _only_reorders(graph: Graph, one: Operator) -> bool:
    if not is_copy(one) or len(one.reads) != 1 or len(one.writes) != 1:
        return False
    read, made = one.reads[0], one.writes[0]
    same = (read.shape, read.dtype) == (made.shape, made.dtype)
    same_device = graph.values[read.value].device == graph.values[made.value].device
    return same and same_device and _is_dense(read) and read.stride != made.stride


def _is_dense(use: Use) -> bool:
    """Return whether a view has each element of its memory once: expanded and sliced ones are left alone."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(use.shape, use.stride, strict=True))
    return 0 not in use.stride and span == num_elements(use.shape)


def _users(graph: Graph, one: Operator) -> list[int]:
    """Return the operators that read a copy, if all of them see its shape and take strides, and nothing changes it."""
    made, read = one.writes[0], one.reads[0]
    readers = list(graph.readers[made.value])
    is_changed = graph.later[made.value] >= 0 or graph.later[read.value] >= 0
    takes = all(
        _takes_strides(graph.operators[i], use, read)
        for i in readers
        for use in graph.operators[i].reads
        if use.value == made.value
    )
    return readers if takes and not is_changed and not graph.lives_on[made.value] else []


def _takes_strides(user: Operator, use: Use, original: Use) -> bool:
    if use.shape != original.shape:
        return False
    return is_pointwise(user) or is_reduction(user) or (is_product(user) and 1 in original.stride[-2:])

"""Operators on the CPU that take longer for subnormal numbers, and by how much.

The capture names the tensors that hold them. What is computed of these has an input of the same last sides, as a batch
of masks has. What such an operator takes for a number, or a product for an operation, is compared with the others of
the recording, so that memory, threads and a busy machine count on both sides.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Floats, Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import Intervals, union
from diagnose.model.limits import MIN_NUMBERS
from diagnose.model.records import SubnormalRecord
from diagnose.model.shapes import Shape, num_elements
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import host_rows
from diagnose.tables.matching_operators import carried_over
from diagnose.tables.shapes import shapes_of_each
from diagnose.text.patterns import lazy_pattern

__all__ = ["SubnormalNumbers", "subnormal_numbers"]

MIN_RATIO = 2.0  # of what an operator takes and what others do: half as fast for its layout or its size is usual
MIN_OPERATIONS = 1e6  # of a product: shorter ones take their time to be called
MIN_OTHERS = 3  # operators that are compared with
# Two numbers read and one written at 4 GB/s, pages that are touched for the first time included: the least that an
# operator without a like is taken to need for a number.
NS_PER_NUMBER = 3.0
_BY_NUMBER = lazy_pattern(r"^aten::(mul|div|add|sub|rsub|addcmul|addcdiv|lerp|sqrt|rsqrt|sum|mean|pow)_?$")
_PRODUCT = lazy_pattern(r"^aten::(mm|bmm|addmm|baddbmm)(_out)?$")


class SubnormalNumbers(NamedTuple):
    """What subnormal numbers cost; figures are for a step."""

    tensors: tuple[SubnormalRecord, ...]  # that operators have as an input
    rows: Rows  # operators of the attribution window
    host: Intervals  # what operators take longer than others, at their ends
    ratio: float  # of what they take and what others do, the median


@shared_table
def subnormal_numbers(t: Tables) -> SubnormalNumbers | None:
    """Return what operators take longer for subnormal numbers, None where no tensor holds any or none takes longer."""
    info, named = t.capture.info, t.named
    if info is None or not info.subnormals or t.device_id >= 0:
        return None
    rows, ratios, touched = _slow(named, info.subnormals)
    if not len(rows):
        return None
    start, end = named.trace.events.start[rows], named.trace.events.end[rows]
    longer = ((end - start) * (1 - 1 / ratios)).astype(np.int64)
    host = carried_over(t, union((end - longer, end)))
    if not len(host.start):
        return None
    return SubnormalNumbers(touched, rows, host, float(np.median(ratios)))


def _slow(t: Tables, tensors: tuple[SubnormalRecord, ...]) -> tuple[Rows, Floats, tuple[SubnormalRecord, ...]]:
    """Return the operators on such tensors that are slow, how many times as slow, and the tensors."""
    rows, ratios, touched = [], [], set[int]()
    for pattern, work_of, most_ns in ((_BY_NUMBER, _numbers, NS_PER_NUMBER), (_PRODUCT, _operations, 0.0)):
        each = [(row, work_of(shapes), _of(shapes, tensors)) for row, shapes in _operators(t, pattern)]
        each = [(row, work, of) for row, work, of in each if work]
        length = {row: int(t.trace.events.end[row] - t.trace.events.start[row]) for row, _, _ in each}
        others = [length[row] / work for row, work, of in each if of < 0]
        if len(others) < MIN_OTHERS and not most_ns:
            continue
        usual = max(float(np.median(others)) if len(others) >= MIN_OTHERS else 0.0, most_ns)
        for row, work, of in each:
            ratio = length[row] / (work * usual)
            if of >= 0 and ratio >= MIN_RATIO:
                rows.append(row)
                ratios.append(ratio)
                touched.add(of)
    order = np.argsort(np.array(rows, np.intp), kind="stable")
    named = tuple(tensors[i] for i in sorted(touched))
    return np.array(rows, np.intp)[order], np.array(ratios, np.float64)[order], named


def _operators(t: Tables, pattern: re.Pattern[str]) -> list[tuple[int, tuple[Shape, ...]]]:
    wanted = np.array([pattern.match(name) is not None for name in t.trace.names], bool)
    rows = t.in_window(host_rows(t.trace, t.main, Kind.OP))
    rows = rows[wanted[t.trace.events.name[rows]]]
    return list(zip(rows.tolist(), shapes_of_each(t.trace, rows), strict=True))


def _of(shapes: tuple[Shape, ...], tensors: tuple[SubnormalRecord, ...]) -> int:
    """Return which tensor's last two sides an input has, and a whole number of it; -1 for none."""
    for i, tensor in enumerate(tensors):
        size, sides = num_elements(tensor.shape), tensor.shape[-2:]
        for shape in shapes:
            if shape[-2:] == sides and len(shape) > 1 and num_elements(shape) % size == 0:
                return i
    return -1


def _numbers(shapes: tuple[Shape, ...]) -> float:
    num = max((num_elements(shape) for shape in shapes if shape), default=0)
    return float(num) if num >= MIN_NUMBERS else 0.0


def _operations(shapes: tuple[Shape, ...]) -> float:
    """Return the operations of a product of the last two matrices among the inputs."""
    given = [shape for shape in shapes if len(shape) >= 2][-2:]
    if len(given) < 2 or given[0][-1] != given[1][-2]:
        return 0.0
    num = 2.0 * num_elements(given[0]) * given[1][-1]
    return num if num >= MIN_OPERATIONS else 0.0

"""Equal rows: work by row on rows that a gather, expand or repeat made equal. Before it, there are fewer rows.

How many rows differ at most follows from the rows that they are taken from; their contents need not be looked at.
Products of rows that are joined or added up of such parts are those of `enlarged`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, Work, base_name, is_pointwise, plain_name
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["BY_ROW", "MIN_REPEATED", "EqualRows", "equal_rows"]

MIN_REPEATED = 0.5  # of the rows: with fewer, the work moved before the gather also does rows that it leaves out
_GATHERS = frozenset({"index_select", "index", "embedding", "repeat", "repeat_interleave", "_to_copy", "clone"})
BY_ROW = {"mm": 0, "linear": 0, "addmm": 1, "_addmm": 1}  # products, and which argument has the rows


class EqualRows(NamedTuple):
    """Operators of one line that compute rows which equal others."""

    work: Work
    value_line: Frame | None  # that made the rows equal
    num_rows: int  # of what it repeats
    avoidable: float  # share of the work's time, which is that of the rows


class _Origin(NamedTuple):
    """What made rows equal, and what they are made of."""

    operator: int
    num_rows: int
    needed: float  # share of the rows


def equal_rows(graph: Graph) -> tuple[EqualRows, ...]:
    """Return the last step's work on rows that were repeated, the longest first."""
    groups: dict[tuple[Frame | None, _Origin], list[int]] = defaultdict(list)
    origins: dict[
        tuple[int, int], _Origin
    ] = {}  # by value and the numbers of a row: of a flattened one some rows are one
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if one.phase in ("backward", "optimizer") or len(one.writes) != 1 or len(one.writes[0].shape) < 2:
            continue
        made = one.writes[0].value
        if graph.values[made].kind == "constant" or graph.values[made].zeros == 1:
            continue
        origin = _by_row(one, i, origins)
        if origin is not None:
            groups[one.place, origin].append(i)
            origins[made, one.writes[0].shape[-1]] = origin
        else:
            is_gather = plain_name(one.name) in _GATHERS and len(one.reads[0].shape) > 1
            origin = _repeated(i, one.reads[0], _num_rows(one.writes[0])) if is_gather else None
            if origin is not None:
                origins[made, one.writes[0].shape[-1]] = origin
    records = []
    for (_, origin), rows in groups.items():
        work = graph.work([*rows, *(j for i in rows for j in graph.backward[i])])
        place = graph.operators[origin.operator].place
        records.append(EqualRows(work, place, origin.num_rows, 1 - origin.needed))
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _num_rows(use: Use) -> int:
    return num_elements(use.shape[:-1])


def _repeated(i: int, use: Use, rows: int) -> _Origin | None:
    """Return the origin of some rows that are those of a tensor; rows that a view repeats count once."""
    leading = zip(use.shape[:-1], use.stride[:-1], strict=True)
    num = num_elements(size for size, step in leading if step)
    return _Origin(i, num, num / rows) if num <= (1 - MIN_REPEATED) * rows else None


def _of_use(use: Use, i: int, origins: dict[tuple[int, int], _Origin]) -> _Origin | None:
    """Return the origin of the rows of a tensor as an operator sees it."""
    if use.stride[-1:] != (1,):
        return None
    return origins.get((use.value, use.shape[-1])) or _repeated(i, use, _num_rows(use))


def _by_row(one: Operator, i: int, origins: dict[tuple[int, int], _Origin]) -> _Origin | None:
    """Return the origin of the rows that become the rows of the result, None if there is none or others join them."""
    rows, name = _num_rows(one.writes[0]), base_name(one)
    if name in BY_ROW:
        read = one.reads[BY_ROW[name] :][:1]
    elif is_pointwise(one) and name != "cat":
        read = tuple(use for use in one.reads if len(use.shape) > 1 and _num_rows(use) > 1)
    else:
        return None
    found = {_of_use(use, i, origins) if _num_rows(use) == rows else None for use in read}
    return found.pop() if len(found) == 1 else None

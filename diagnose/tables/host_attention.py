"""Attention written out as product, softmax, product, in a recording without a device.

Operators are told apart by their names and shapes: a softmax over as many elements as the product before it makes and
the product behind it takes. Between the two stand scaling, a mask and views, which one fused operator makes
superfluous. A dropout that draws between them keeps the operators apart: on a CPU the fused one has none.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import EMPTY, Intervals, union
from diagnose.model.shapes import Shape, num_elements
from diagnose.tables import Tables, shared_table
from diagnose.tables.call_extents import extent
from diagnose.tables.host import host_rows
from diagnose.tables.matching_operators import MatchedStep, matched_steps
from diagnose.tables.names import matching
from diagnose.tables.shapes import shapes_of
from diagnose.text.patterns import lazy_pattern

__all__ = ["HostAttention", "host_attention"]

REACH = 10  # outermost operators between a product and the softmax at most: scaling, bias, mask with its views, casts
MIN_SCORES_EACH = 16  # keys of a query: a softmax over fewer is a gate or a mixture of few
_SOFTMAX = lazy_pattern(r"^aten::(_safe_)?softmax$")
_PRODUCTS = frozenset({"aten::matmul", "aten::bmm", "aten::baddbmm"})
_DROPS = frozenset({"aten::dropout", "aten::native_dropout"})
_MASKS = frozenset({"aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::add", "aten::add_"})
_NO_BATCH = (0, 0, 0)  # of matrices
_DRAWS = lazy_pattern(r"^aten::(native_dropout|bernoulli_)$")


class HostAttention(NamedTuple):
    """The attentions of a recording's steps."""

    between: Intervals  # the products, with the functions of it in the backward pass
    softmax: Intervals  # alone
    times: Ints  # in the attribution window, within the softmaxes
    num: float  # attentions a step
    has_mask: bool


@shared_table
def host_attention(t: Tables) -> HostAttention | None:
    """Return the attention that is written out, None where there is none or no shapes were recorded."""
    named, mine = t.named, t.trace.events
    if not len(matching(named.trace, (Kind.OP,), _SOFTMAX)):
        return None
    between, softmax, times, num, has_mask = [EMPTY], [EMPTY], set[int](), 0, False
    of_named: dict[bytes, list[tuple[int, int, int]]] = {}
    for step in matched_steps(t):
        key = step.named.tobytes()  # many steps are matched with one
        found = of_named[key] if key in of_named else of_named.setdefault(key, _of_step(named, step))
        for before, at, after in found:
            between.append(extent(t, step.rows[before + 1 : after])[0])
            rows = step.rows[[at]]
            softmax.append(union((mine.start[rows], mine.end[rows])))
            row = int(step.named[at])
            times.add(int(named.trace.events.start[row] + named.trace.events.end[row]) // 2)
            has_mask |= any(named.name(each) in _MASKS for each in step.named[before + 1 : at].tolist())
            num += 1
    if not num:
        return None
    at_times = np.array(sorted(times), np.int64)
    return HostAttention(union(*between), union(*softmax), at_times, num / t.steps.num, has_mask)


def _of_step(named: Tables, step: MatchedStep) -> list[tuple[int, int, int]]:
    """Return the places of first product, softmax and second product among a step's outermost operators."""
    rows = step.named.tolist()
    names = [named.name(row) for row in rows]
    found: list[tuple[int, int, int]] = []
    for at, name in enumerate(names):
        given = shapes_of(named.trace, rows[at]) if _SOFTMAX.search(name) else ()
        if not given or not given[0] or given[0][-1] < MIN_SCORES_EACH:
            continue
        before = next((i for i in range(at - 1, max(at - 1 - REACH, -1), -1) if names[i] in _PRODUCTS), None)
        after = next((i for i in range(at + 1, min(at + 1 + REACH, len(rows))) if names[i] in _PRODUCTS), None)
        if before is None or after is None or any(_draws(named, row) for row in rows[at + 1 : after]):
            continue
        taken, _ = _factors(named, rows[after])
        if _made(named, rows[before]) == taken == _flat(given[0]) != _NO_BATCH:
            found.append((before, at, after))
    return found


def _flat(shape: Shape) -> tuple[int, int, int]:
    """Return a shape with all but its last two dimensions in one."""
    return (num_elements(shape[:-2]), shape[-2], shape[-1]) if len(shape) >= 3 else _NO_BATCH


def _factors(named: Tables, row: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the shapes that a product multiplies."""
    first = 1 if named.name(row) == "aten::baddbmm" else 0
    given = shapes_of(named.trace, row)[first : first + 2]
    one, other = map(_flat, given) if len(given) == 2 else (_NO_BATCH, _NO_BATCH)
    return one, other


def _made(named: Tables, row: int) -> tuple[int, int, int]:
    one, other = _factors(named, row)
    return (one[0], one[1], other[2]) if one[2] == other[1] else _NO_BATCH


def _draws(named: Tables, row: int) -> bool:
    """Return whether an operator is a dropout of a model in training: one in evaluation returns what it is given."""
    if named.name(row) not in _DROPS:
        return False
    events, all_rows = named.trace.events, host_rows(named.trace, named.main, Kind.OP)
    first, last = np.searchsorted(events.start[all_rows], (events.start[row], events.end[row]))
    return any(_DRAWS.search(named.name(each)) for each in all_rows[first:last].tolist())

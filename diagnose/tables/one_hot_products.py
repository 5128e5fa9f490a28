"""Products of one-hot rows with a weight, and what they take beside a lookup of the weight's rows.

One-hot rows are what `one_hot` makes, converted to the weight's type, and ones that are scattered into zeros. Their
shape alone is recorded, so a product is taken for theirs where it follows closely, multiplies as many such rows from
the left, and nothing between the two changes a tensor of that shape. Where an operator takes two tensors of that shape
before the backward pass, as a loss of soft labels does, they may be targets, and nothing is said of them.
"""

from __future__ import annotations

import json
from itertools import takewhile

import numpy as np

from diagnose.model.arrays import Ints
from diagnose.model.events import Kind, Trace
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import EMPTY, Intervals, total, union
from diagnose.model.shapes import Shape, num_elements
from diagnose.tables import Tables, shared_table
from diagnose.tables.call_extents import extent
from diagnose.tables.matching_operators import MatchedStep, matched_steps
from diagnose.tables.names import BACKWARD, matching
from diagnose.tables.shapes import shapes_of
from diagnose.text.patterns import lazy_pattern

__all__ = ["OneHotProducts", "one_hot_products"]

MIN_COLUMNS = 32  # of fewer a product takes as long as a lookup with its gradient
KEPT_COLUMNS = 32  # a lookup takes as long as so many: of 512 columns 3 % to 8 % (two cores, 4096 and 512 rows)
MAX_BETWEEN = 16  # operators from the rows to their product
MAX_ZEROS = 4  # operators from the zeros to the ones in them

_FIRST_AT = {"aten::linear": 0, "aten::matmul": 0, "aten::mm": 0, "aten::addmm": 1}  # the weight is the one behind it
_CONVERTS = frozenset({"aten::to", "aten::_to_copy", "aten::type_as"})
_KEEPS = _CONVERTS | {
    "aten::view", "aten::reshape", "aten::flatten", "aten::view_as", "aten::unsqueeze", "aten::squeeze",
    "aten::detach", "aten::detach_", "aten::alias", "aten::contiguous", "aten::clone", "aten::requires_grad_",
    "detach", "detach_", "aten::lift_fresh", "aten::zero_",
}  # fmt: skip
_ZEROS = frozenset({"aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::zero_"})
_ONE_HOT, _SCATTER = "aten::one_hot", "aten::scatter_"
_SOURCES = lazy_pattern(f"^({_ONE_HOT}|{_SCATTER})$")


class OneHotProducts(NamedTuple):
    """The products of a recording's steps with their functions in the backward pass, and what made their rows."""

    host: Intervals
    lost: Intervals  # of it, what a lookup would not take, at the ends
    forward: Intervals  # the products alone
    times: Ints  # in the attribution window, within the products
    num: float  # products a step
    columns: tuple[int, ...]  # the different numbers of them

    @property
    def share(self) -> float:
        """Return the share that is lost."""
        return total(self.lost) / max(total(self.host), 1)


class _Operators(NamedTuple):
    """The outermost operators of a step in the attribution window."""

    trace: Trace
    rows: Ints
    names: list[str]
    shapes: list[tuple[Shape, ...]]


class _Rows(NamedTuple):
    """One-hot rows; places are among a step's outermost operators."""

    made: tuple[int, ...]
    shape: Shape
    product: int

    def are_in(self, shape: Shape) -> bool:
        """Return whether a tensor of this shape may be these rows."""
        return bool(shape) and shape[-1] == self.shape[-1] and num_elements(shape) == num_elements(self.shape)


@shared_table
def one_hot_products(t: Tables) -> OneHotProducts | None:
    """Return the products of one-hot rows, None where there are none or no shapes were recorded."""
    if not len(matching(t.named.trace, (Kind.OP,), _SOURCES)):
        return None
    host, lost, forward = [EMPTY], [EMPTY], [EMPTY]
    times, columns, num = set[int](), set[int](), 0
    mine, named = t.trace.events, t.named.trace.events
    of_named: dict[bytes, list[_Rows]] = {}
    for step in matched_steps(t):
        key = step.named.tobytes()  # many steps are matched with one
        found = of_named[key] if key in of_named else of_named.setdefault(key, _of_step(t.named, step))
        for one in found:
            rows, product = step.rows[list(one.made)], step.rows[[one.product]]
            making = union((mine.start[rows], mine.end[rows]))
            multiplying = extent(t, product)[0]
            took = multiplying.end - multiplying.start
            kept = (took * min(KEPT_COLUMNS / one.shape[-1], 1.0)).astype(np.int64)
            host += [making, multiplying]
            lost += [making, union((multiplying.start + kept, multiplying.end))]
            forward.append(union((mine.start[product], mine.end[product])))
            row = int(step.named[one.product])
            times.add(int(named.start[row] + named.end[row]) // 2)
            columns.add(one.shape[-1])
            num += 1
    if not num:
        return None
    at = np.array(sorted(times), np.int64)
    return OneHotProducts(union(*host), union(*lost), union(*forward), at, num / t.steps.num, tuple(sorted(columns)))


def _of_step(named: Tables, step: MatchedStep) -> list[_Rows]:
    """Return the one-hot rows of a step that are multiplied and no targets."""
    rows = step.named.tolist()
    names = [named.name(row) for row in rows]
    if _ONE_HOT not in names and _SCATTER not in names:
        return []
    step_ops = _Operators(named.trace, step.named, names, [shapes_of(named.trace, row) for row in rows])
    found: list[_Rows] = []
    for at, name in enumerate(names):
        if name in (_ONE_HOT, _SCATTER):
            one = _multiplied(step_ops, _made(step_ops, at, found), found)
            if one is not None:
                found.append(one)
    products = {one.product for one in found}
    each = ((one, _readers(step_ops, one, products)) for one in found)
    return [one._replace(made=() if readers else one.made) for one, readers in each if 2 not in readers]


def _made(step: _Operators, at: int, found: list[_Rows]) -> _Rows | None:
    """Return one-hot rows as a product takes them, with the operators that make them; None for other rows."""
    given = step.shapes[at]
    if step.names[at] == _ONE_HOT:
        taken = {i for one in found for i in one.made}
        behind = range(at + 1, min(at + 1 + MAX_BETWEEN, len(step.names))) if given and given[0] else ()
        for i in behind:
            if i not in taken and step.names[i] in _CONVERTS and step.shapes[i] and step.shapes[i][0][:-1] == given[0]:
                return _Rows((at, i), step.shapes[i][0], -1)
        return None
    zeros = [i for i in range(max(at - MAX_ZEROS, 0), at) if step.names[i] in _ZEROS]
    is_one_each = len(given) >= 4 and len(given[2]) >= 2 and given[2] == (*given[0][:-1], 1) and not given[3]
    return _Rows((zeros[-1], at), given[0], -1) if zeros and is_one_each and _scatters_one(step, at) else None


def _scatters_one(step: _Operators, at: int) -> bool:
    """Return whether a 1 is scattered along the last dimension."""
    text = int(step.trace.events.values[step.rows[at]])
    try:
        values = json.loads(step.trace.names[text]) if text >= 0 else []
        dim, value = int(values[1]), float(values[3])
    except (ValueError, TypeError, IndexError):
        return False
    return value == 1 and dim in (-1, len(step.shapes[at][0]) - 1)


def _multiplied(step: _Operators, rows: _Rows | None, found: list[_Rows]) -> _Rows | None:
    """Return the rows with the first product of them; None where something else is computed of them before."""
    if rows is None or rows.shape[-1] < MIN_COLUMNS:
        return None
    taken = {one.product for one in found}
    for i in range(rows.made[-1] + 1, min(rows.made[-1] + 1 + MAX_BETWEEN, len(step.names))):
        if i in taken or not any(map(rows.are_in, step.shapes[i])):
            continue
        if step.names[i] in _FIRST_AT:
            return rows._replace(product=i) if _is_product(rows, step.names[i], step.shapes[i]) else None
        if step.names[i] not in _KEEPS and step.names[i] != _SCATTER:
            return None
    return None


def _is_product(rows: _Rows, name: str, shapes: tuple[Shape, ...]) -> bool:
    """Return whether a product multiplies the rows by one weight, from the left."""
    first = _FIRST_AT[name]
    if len(shapes) < first + 2 or len(shapes[first + 1]) != 2 or not rows.are_in(shapes[first]):
        return False
    return shapes[first + 1][1 if name == "aten::linear" else 0] == rows.shape[-1]


def _readers(step: _Operators, one: _Rows, products: set[int]) -> set[int]:
    """Return how many tensors that may be the rows other operators before the backward pass are given; 2 for more."""
    names = step.names
    forward = takewhile(lambda i: not BACKWARD.match(names[i]), range(one.made[0], len(names)))
    others = (i for i in forward if i not in products and names[i] not in _KEEPS and names[i] != _SCATTER)
    num = {min(sum(map(one.are_in, step.shapes[i])), 2) for i in others}
    return num - {0}

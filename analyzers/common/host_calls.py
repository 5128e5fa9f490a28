"""Why a call of host code is costly: what it goes through each time, and that this hardly changes between calls.

The recording names the callable by value, with the size of its operands and whether they change. The table below has
which of them a callable goes through; of others nothing is claimed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from diagnose.model.records import HostCallRecord, OperandRecord
from diagnose.tables import Tables
from diagnose.text.numbers import duration, plural

__all__ = ["GoneThrough", "Way", "gone_through", "observed_at"]

Way: TypeAlias = Literal["result", "lookup", "sort", "weights", "rows", "file"]
"""What would spare it: the result, a set or dict, a sorted copy, sums of weights, groups of rows, arrays in memory."""

MIN_ELEMENTS = 256  # fewer are gone through in about the time that a call takes
MAX_CHANGED = 0.05  # of the parts of an operand, of which few change
MIN_LINE_SHARE = 0.5  # of the time of a line's calls

_OWNER, _FIRST, _SECOND = -1, 0, 1  # what a method belongs to, and arguments by position
_REDUCED = (
    *("max", "min", "sum", "mean", "std", "var", "median", "prod", "argmax", "argmin", "any", "all", "nonzero"),
    *("argsort", "cumsum", "cumprod", "ptp", "unique", "flatnonzero", "count_nonzero", "bincount", "amax", "amin"),
    *("nanmax", "nanmin", "nansum", "nanmean", "nanstd", "percentile", "quantile", "histogram", "average", "lexsort"),
    *("sort_values", "value_counts", "groupby", "drop_duplicates", "tolist", "to_dict", "to_list"),
)
_ARRAYS = ("numpy.ndarray", "pandas.Series", "pandas.DataFrame", "pandas.Index")
_MADE = ("sorted", "sum", "max", "min", "any", "all", "list", "tuple", "set", "frozenset", "dict", "enumerate")
_LISTS = ("builtins.list", "builtins.tuple", "collections.deque")
_SETS = ("isin", "in1d", "setdiff1d", "intersect1d")
_GENERATORS = ("numpy.Generator", "numpy.RandomState")

_TABLE: Mapping[str, tuple[Way, int | str]] = {
    **{f"{kind}.{name}": ("result", _OWNER) for kind in _ARRAYS for name in _REDUCED},
    **{f"numpy.{name}": ("result", _FIRST) for name in (*_REDUCED, "sort")},
    **{f"builtins.{name}": ("result", _FIRST) for name in _MADE},
    "collections.Counter": ("result", _FIRST),
    "json.loads": ("result", _FIRST),
    **{f"{kind}.{name}": ("lookup", _OWNER) for kind in _LISTS for name in ("index", "count")},
    **{f"{kind} in": ("lookup", _SECOND) for kind in (*_LISTS, "numpy.ndarray")},
    **{f"numpy.{name}": ("sort", _SECOND) for name in _SETS},
    **{f"{kind}.choice": ("weights", "p") for kind in _GENERATORS},
    "random.Random.choices": ("weights", "weights"),
    **{f"{kind} compared": ("rows", _OWNER) for kind in _ARRAYS},
    "numpy.NpzFile[]": ("file", _OWNER),
}


class GoneThrough(NamedTuple):
    """What a call goes through each time, in words of the script."""

    call: HostCallRecord
    node: ast.expr
    way: Way
    operand: OperandRecord
    title: str
    text: str


def observed_at(t: Tables, file: str, line: int) -> GoneThrough | None:
    """Return what the call goes through that takes most of a line's time, in the step or where it was loaded again."""
    known = t.capture.known
    for calls, steps in ((known.host.calls, known.host.steps), (known.loaded.calls, 0)):
        mine = [each for each in calls if (each.file, each.line) == (file, line)]
        total = sum(each.ns for each in mine)
        if mine and mine[0].ns >= MIN_LINE_SHARE * total and (found := gone_through(mine[0], steps)) is not None:
            return found
    return None


def gone_through(call: HostCallRecord, steps: int = 0) -> GoneThrough | None:
    """Return what a call goes through though it hardly changes; None if it changes, or is not known to be gone through.

    Args:
        call: what was observed.
        steps: in how many steps; 0 where samples were loaded again.
    """
    way, role = _TABLE.get(call.name, ("result", ""))
    node = _parsed(call.text)
    if role == "" or node is None or not call.num:
        return None
    operands = {each.text: each for each in call.operands}
    operand = _operand(node, role, operands)
    if operand is None:
        return None
    others = [each for each in call.operands if each is not operand]
    title = _title(way, call, node, operand, others, is_often=call.num > steps)
    if not title:
        return None
    often = f"{call.num / steps:.3g} times a step" if steps else plural(call.num, "time")
    took = duration(call.ns / call.num)
    text = f"{_short(node)} runs {often}, {took} each"
    if operand.size:
        text += f", and goes through the {operand.size:,} elements of {operand.text}"
    seen = _same(operand)
    text += f"; {seen} in the {operand.looks} calls that were compared." if seen else "."
    return GoneThrough(call, node, way, operand, title, text)


def _same(operand: OperandRecord) -> str:
    if operand.same:
        return "these were the same"
    return "few of these changed" if operand.changed is not None and operand.changed <= MAX_CHANGED else ""


def _title(
    way: Way,
    call: HostCallRecord,
    node: ast.expr,
    operand: OperandRecord,
    others: Sequence[OperandRecord],
    *,
    is_often: bool,
) -> str:
    """Return what is wrong with a call, "" if nothing is."""
    called, name, num = _short(node), operand.text, f"{operand.size:,}"
    if way == "file":
        comes_again = 2 * call.num_given <= call.looks and len(call.operands) == 2
        return f"{called} reads the whole array from the file each time" if comes_again else ""
    if operand.size < MIN_ELEMENTS or operand.looks < 2 or not operand.is_kept:
        return ""
    if way == "rows" and any(20 * each.size > operand.size for each in others):
        return ""
    if operand.same and way == "weights":
        return f"{called} adds up all {num} weights in {name} each time, and they do not change"
    if operand.same:
        return f"{called} goes through all {num} elements of {name} each time, and they do not change"
    if operand.grows and way == "lookup":
        return f"{called} goes through {name} each time, and {name} grows: it holds {num} elements"
    if operand.changed is not None and operand.changed <= MAX_CHANGED:
        return f"{called} goes through all {num} elements of {name} each time, though few of them change"
    if operand.same_in_step and is_often and all(each.same or each.same_in_step for each in others):
        return f"{called} goes through all {num} elements of {name} each time, and they do not change within a step"
    return ""


def _operand(node: ast.expr, role: int | str, known: Mapping[str, OperandRecord]) -> OperandRecord | None:
    """Return the operand that has a role in an expression, of sets and comparisons the larger one."""
    match node:
        case ast.Compare(left=left, comparators=[right]):
            found = [known.get(ast.unparse(each)) for each in (left, right)]
            if role == _SECOND:
                return found[1]
            return max((each for each in found if each is not None), key=lambda each: each.size, default=None)
        case ast.Subscript(value=held):
            return known.get(ast.unparse(held))
        case ast.Call(func=function, args=args, keywords=keywords):
            given: ast.expr | None = next((each.value for each in keywords if each.arg == role), None)
            if role == _OWNER and isinstance(function, ast.Attribute):
                given = function.value
            elif isinstance(role, int) and 0 <= role < len(args):
                given = args[role]
            return known.get(ast.unparse(given)) if given is not None else None
    return None


def _short(node: ast.expr) -> str:
    """Return what is called, as the script has it; of a comparison all of it."""
    return f"{ast.unparse(node.func)}()" if isinstance(node, ast.Call) else ast.unparse(node)


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None

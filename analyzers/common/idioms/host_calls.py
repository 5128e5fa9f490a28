"""Why a call of host code is costly: what it goes through each time, and that this hardly changes between calls.

The recording names the callable by value, with the size of its operands and whether they change. The table below has
which of them a callable goes through; of others nothing is claimed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from diagnose.analyzers.common.idioms.forms import MIN_ELEMENTS, costly_form
from diagnose.analyzers.common.idioms.source import Idiom, Source
from diagnose.model.records import HostCallRecord, OperandRecord
from diagnose.tables import Tables
from diagnose.text.numbers import duration, plural

__all__ = ["GoneThrough", "Way", "gone_through", "observed_at", "types_at"]

Way: TypeAlias = Literal["result", "lookup", "sort", "weights", "rows", "file", "row", "copy", "form"]
"""What would spare it: the result, a set or dict, a sorted copy, sums of weights, groups of rows, arrays in memory.

Of a table that are arrays of its columns, of a copy one that is kept, and of a costly form another one.
"""

_OF_CONTENT: frozenset[Way] = frozenset({"result", "lookup", "sort", "weights", "rows"})
MAX_CHANGED = 0.05  # of the parts of an operand, of which few change
MIN_LARGER = 20  # times as many elements as what it is compared with
MIN_LINE_SHARE = 0.5  # of the time of a line's calls

# Of the call's time; what makes it up to date is left. A search took 13 µs where np.isin in 20,000 elements took 32 ms,
# an array's row 0.2 µs where its file of 20,000 took 130 µs, a group of rows 0.1 µs where comparing as many took 6 µs.
MIN_SPARED = 0.8

_OWNER, _FIRST, _SECOND = -1, 0, 1  # what a method belongs to, and arguments by position
_REDUCED = (
    *("max", "min", "sum", "mean", "std", "var", "median", "prod", "argmax", "argmin", "any", "all", "nonzero"),
    *("argsort", "cumsum", "cumprod", "ptp", "unique", "flatnonzero", "count_nonzero", "bincount", "amax", "amin"),
    *("nanmax", "nanmin", "nansum", "nanmean", "nanstd", "percentile", "quantile", "histogram", "average", "lexsort"),
    *("sort_values", "value_counts", "groupby", "drop_duplicates", "tolist", "to_dict", "to_list"),
)
_ARRAYS = ("numpy.ndarray", "pandas.Series", "pandas.DataFrame", "pandas.Index")
_MADE = ("sorted", "sum", "max", "min", "any", "all", "list", "tuple", "set", "frozenset", "dict", "enumerate")
_PLACES = ("builtins.int", "builtins.str", "numpy.int64", "numpy.int32")
_LISTS = ("builtins.list", "builtins.tuple", "collections.deque")
_SETS = ("isin", "in1d", "setdiff1d", "intersect1d")
_ROWS = ("DataFrame.iloc", "DataFrame.loc", "_iLocIndexer", "_LocIndexer")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_GENERATORS = ("numpy.Generator", "numpy.RandomState")

_TABLE: Mapping[str, tuple[Way, int | str]] = {
    **{f"{kind}.{name}": ("result", _OWNER) for kind in _ARRAYS for name in _REDUCED},
    **{f"numpy.{name}": ("result", _FIRST) for name in (*_REDUCED, "sort", "array", "asarray")},
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
    **{f"pandas.{name}[]": ("row", _OWNER) for name in _ROWS},
    "copy.deepcopy": ("copy", _FIRST),
}


class GoneThrough(NamedTuple):
    """What a call goes through each time, in words of the script."""

    call: HostCallRecord
    node: ast.expr
    way: Way
    operand: OperandRecord
    title: str
    text: str
    idiom: Idiom | None = None  # of a costly form: what spares it
    calls_back: bool = False  # what the script's functions take within the call is a part of its time

    @property
    def least(self) -> float:
        """Return which share of its time goes at least."""
        return self.idiom.least if self.idiom is not None else MIN_SPARED

    @property
    def spared(self) -> tuple[Way, str]:
        """Return what one change spares, in whichever calls."""
        return self.way, self.operand.text

    @property
    def keeps_result(self) -> bool:
        """Return whether the result stays the same as long as the operand, so that nothing has to be computed again."""
        return self.way == "result" and self.operand.same


def types_at(t: Tables, file: str, line: int) -> Mapping[str, str]:
    """Return the types that operands of a line's calls had, by their text."""
    calls = (*t.capture.known.host.calls, *t.capture.known.loaded.calls)
    return {one.text: one.kind for call in calls if (call.file, call.line) == (file, line) for one in call.operands}


def observed_at(t: Tables, file: str, line: int, source: Source | None = None) -> GoneThrough | None:
    """Return what the call goes through that takes most of a line's time, in the step or where it was loaded again.

    Expressions around a call work on what it gives, and their time counts along.
    """
    known = t.capture.known
    for calls, steps in ((known.host.calls, known.host.steps), (known.loaded.calls, 0)):
        mine = [each for each in calls if (each.file, each.line) == (file, line)]
        total = sum(each.ns for each in mine)
        for call in mine:
            around = sum(each.ns for each in mine if call.text in each.text)
            if around >= MIN_LINE_SHARE * total and (found := gone_through(call, steps, source)) is not None:
                return found
    return _same_result(t, file, line)


def _same_result(t: Tables, file: str, line: int) -> GoneThrough | None:
    """Return that the function around a line gives the same each time, the innermost one that does."""
    around = [r for r in t.capture.known.host.same_results if r.file == file and r.line <= line <= r.last_line]
    found = max(around, key=lambda each: each.line, default=None)
    if found is None or found.size < MIN_ELEMENTS:
        return None
    name, size = found.function, f"{found.size:,}"
    text = f"{name} gave the same {size} elements in the {found.looks} calls that were compared."
    operand = OperandRecord(text=f"what {name} reads", size=found.size, looks=found.looks, is_kept=True, same=True)
    call = HostCallRecord(file=file, line=found.line, function=name, text=name, looks=found.looks)
    cause = f"{name} gives the same {size} elements each time"
    return GoneThrough(call, ast.Name(name), "result", operand, cause, text)


def gone_through(call: HostCallRecord, steps: int = 0, source: Source | None = None) -> GoneThrough | None:
    """Return what a call goes through though it hardly changes, or though its result needs far less; None of others.

    Args:
        call: what was observed.
        steps: in how many steps; 0 where samples were loaded again.
        source: the statement of the call, where it is known.
    """
    node = _parsed(call.text)
    return _unchanging(call, node, steps) or _in_costly_form(call, node, steps, source) if node is not None else None


def _in_costly_form(call: HostCallRecord, node: ast.expr, steps: int, source: Source | None) -> GoneThrough | None:
    found = costly_form(call, node, source)
    if found is None:
        return None
    operand = max(call.operands, key=lambda each: each.size, default=OperandRecord(text=_short(node)))
    return GoneThrough(call, node, "form", operand, found.cause, _runs(call, node, steps), *found[1:])


def _runs(call: HostCallRecord, node: ast.expr, steps: int) -> str:
    often = f"{call.num / steps:.3g} times a step" if steps else plural(call.num, "time")
    return f"{_short(node)} runs {often}, {duration(call.ns / call.num)} each."


def _unchanging(call: HostCallRecord, node: ast.expr, steps: int) -> GoneThrough | None:
    way, role = _TABLE.get(call.name, ("result", ""))
    if isinstance(node, _COMPREHENSIONS) and any(isinstance(each, ast.Compare) for each in node.generators[0].ifs):
        way, role = "rows", _OWNER  # of a list, those that a comparison selects
    elif isinstance(node, ast.Subscript) and any(isinstance(each, ast.Compare) for each in ast.walk(node.slice)):
        way, role = _TABLE.get(call.name.replace("[]", " compared"), ("result", ""))  # rows that a comparison selects
    known = {each.text: each for each in call.operands}
    operand = _operand(node, role, known) if role != "" else None
    if operand is None:
        return None
    others = [each for each in call.operands if each is not operand]
    changes = _changes(operand, others, is_often=call.num > steps)
    match way:
        case "file":
            is_waste = 2 * call.num_given <= call.looks and bool(others)  # the same array again
        case "row":
            is_one = any(each.kind in _PLACES for each in others)  # and not many at once, or what has to be searched
            is_waste = call.num > steps and is_one and not operand.order
        case "copy":
            is_waste = True
        case _:
            is_waste = bool(changes) and _is_large(operand) and (changes != "grows" or operand.kind in _LISTS)
            is_waste &= way != "rows" or all(MIN_LARGER * each.size <= operand.size for each in others)
    if not is_waste:
        return None
    text = _runs(call, node, steps)
    if way in _OF_CONTENT:
        compared = f"in the {operand.looks} calls that were compared"
        text += f" It goes through the {operand.size:,} elements of {operand.text}; {_SEEN[changes]} {compared}."
    return GoneThrough(call, node, way, operand, _title(way, changes, _short(node), operand), text)


def _is_large(operand: OperandRecord) -> bool:
    return operand.size >= MIN_ELEMENTS and operand.looks > 1 and operand.is_kept


def _changes(operand: OperandRecord, others: Sequence[OperandRecord], *, is_often: bool) -> str:
    """Return how an operand changes between calls: "same", "few", "grows", "same_in_step"; "" if more than that."""
    if operand.same:
        return "same"
    if operand.grows:
        return "grows"
    if operand.changed is not None and operand.changed <= MAX_CHANGED:
        return "few"
    stays = operand.same_in_step and is_often and all(each.same or each.same_in_step for each in others)
    return "same_in_step" if stays else ""


_SEEN = {
    "same": "these were the same",
    "few": "few of these changed",
    "grows": "it held more each time",
    "same_in_step": "within a step these were the same",
}


def _title(way: Way, changes: str, called: str, operand: OperandRecord) -> str:
    """Return what is wrong with a call."""
    name, num = operand.text, f"{operand.size:,}"
    match way, changes:
        case "file", _:
            cause = f"{called} reads the whole array from the file each time"
        case "row", _:
            cause = f"{called} makes a row of pandas each time"
        case "copy", _:
            cause = f"{called} copies all of {name} each time"
        case "weights", "same":
            cause = f"{called} adds up the same {num} weights of {name} each time"
        case _, "same":
            cause = f"{called} goes through the same {num} elements of {name} each time"
        case _, "grows":
            cause = f"{called} goes through all {num} elements of {name} while it grows"
        case _, "few":
            cause = f"{called} goes through all {num} elements of {name} though few of them have changed"
        case _:
            cause = f"{called} goes through the same {num} elements of {name} several times per step"
    return cause


def _operand(node: ast.expr, role: int | str, known: Mapping[str, OperandRecord]) -> OperandRecord | None:
    """Return the operand that has a role in an expression, of sets and comparisons the larger one."""
    match node:
        case ast.Compare(left=left, comparators=[right]):
            found = [known.get(ast.unparse(each)) for each in (left, right)]
            if role == _SECOND:
                return found[1]
            return max((each for each in found if each is not None), key=lambda each: each.size, default=None)
        case ast.Subscript(value=held):
            owner = held.value if isinstance(held, ast.Attribute) else held
            return known.get(ast.unparse(held)) or known.get(ast.unparse(owner))
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return next(iter(known.values()), None)
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
    if isinstance(node, _COMPREHENSIONS):
        return "a comprehension"
    return f"{ast.unparse(node.func)}()" if isinstance(node, ast.Call) else ast.unparse(node)


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None

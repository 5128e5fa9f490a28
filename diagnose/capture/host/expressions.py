"""Which expressions the instructions of a function compute, and the operands that can be read without computing."""

from __future__ import annotations

import ast
import builtins
import dis
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType, MemberDescriptorType, ModuleType, NoneType
from typing import Any, NamedTuple, TypeAlias

from diagnose.capture.host.calls import Operand, Place, kind_of, name_of_call

_INSTRUCTIONS = frozenset(
    {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "BINARY_SUBSCR", "BINARY_OP", "CONTAINS_OP", "COMPARE_OP"}
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_EXPRESSIONS = (ast.Call, ast.Subscript, ast.BinOp, ast.Compare, *_COMPREHENSIONS)
_COMPARED = ("numpy.ndarray", "pandas.Series", "pandas.DataFrame", "pandas.Index")
_STEPPING = frozenset({"enumerate", "range", "len", "reversed"})
_MISSING = object()

Span: TypeAlias = tuple[int, int, int, int]  # first line and column, last line and column


class Point(NamedTuple):
    """An expression whose instruction is watched."""

    place: Place
    node: ast.expr


class Points(NamedTuple):
    """The expressions that are watched in a function, by the offset of their instruction, and their lines."""

    by_offset: dict[int, Point]
    lines: frozenset[int]


def points_of(code: CodeType, lines: Iterable[int]) -> Points:
    """Return the expressions of some lines of a function."""
    wanted = set(lines)
    if not wanted & {line for *_, line in code.co_lines() if line is not None}:
        return Points({}, frozenset())
    nodes, found = _nodes(code.co_filename), dict[int, Point]()
    for each in dis.get_instructions(code):
        positions: tuple[int | None, ...] = getattr(each, "positions", None) or (None,)  # from Python 3.11 on
        if each.opname in _INSTRUCTIONS and None not in positions:
            first, last, column, end = (number or 0 for number in positions)
            node = nodes.get((first, column, last, end))
            if node is None and each.opname.startswith("CALL"):  # of a chain, it begins at the method's name
                node = nodes.get((0, 0, last, end))
            if node is not None and wanted.intersection(_lines(node)):
                place = (code.co_filename, node.lineno, code.co_name, ast.unparse(node))
                found[each.offset] = Point(place, node)
    nodes_of = (point.node for point in found.values())
    return Points(found, frozenset(line for node in nodes_of for line in _lines(node)))


def _lines(node: ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@lru_cache(maxsize=64)
def _nodes(file: str) -> Mapping[Span, ast.expr]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[Span, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, _EXPRESSIONS):
            last, end = node.end_lineno or 0, node.end_col_offset or 0
            found[node.lineno, node.col_offset, last, end] = node
            if isinstance(node, ast.Call):
                found[0, 0, last, end] = node
    return found


def seen_at(point: Point, frame: FrameType) -> tuple[str, list[Operand]]:
    """Return what an expression calls, and those of its operands that are variables, attributes or items of them."""
    read = _reader(frame)
    match point.node:
        case ast.Call(func=function, args=args, keywords=keywords):
            receiver = function.value if isinstance(function, ast.Attribute) else None
            named = [*args, *(each.value for each in keywords)]
            given = [*([receiver] if receiver is not None else []), *named]
            name = _called(function, read)
        case ast.Subscript(value=held, slice=at):
            name, given = _taken(held, read), [held, at]
            if isinstance(held, ast.Attribute) and _read(held, read) is _MISSING:
                given = [held.value, at]
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            given = [left, right]
            name = _compared(op, _read(left, read), _read(right, read))
        case ast.BinOp(left=left, right=right):
            name, given = "", [left, right]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            name, given = "comprehension", [gone_over(point.node)]
        case _:
            return "", []
    return name, _operands((each, _read(each, read)) for each in given)


def gone_over(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> ast.expr:
    """Return what a comprehension goes through, also by ``enumerate(x)`` or ``range(len(x))``."""
    over = node.generators[0].iter
    while isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id in _STEPPING and over.args:
        over = over.args[0]
    return over


def given_to(node: ast.expr, function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[str, list[Operand]]:
    """Return the same of a call, an item or a comparison whose values are all at hand.

    Args:
        node: the expression.
        function: what is called, or what an item is taken of; None of a comparison.
        args: its arguments by position, the item's index, or what is compared.
        named: its arguments by keyword.
    """
    if isinstance(node, ast.Subscript):
        return f"{kind_of(function)}[]", _operands([(node.value, function), (node.slice, args[0])])
    if isinstance(node, ast.Compare):
        return _compared(node.ops[0], *args), _operands(zip([node.left, *node.comparators], args, strict=True))
    if not isinstance(node, ast.Call):
        return "", []
    receiver = getattr(function, "__self__", None)
    of_object = isinstance(node.func, ast.Attribute) and not isinstance(receiver, ModuleType | type | NoneType)
    given = [(node.func.value, receiver)] if of_object and isinstance(node.func, ast.Attribute) else []
    is_spread = any(isinstance(each, ast.Starred) for each in node.args)
    given += [] if is_spread else list(zip(node.args, args, strict=False))
    given += [(each.value, named[each.arg]) for each in node.keywords if each.arg is not None and each.arg in named]
    return name_of_call(function, receiver if of_object else None), _operands(given)


def _operands(given: Iterable[tuple[ast.expr, Any]]) -> list[Operand]:
    found = (
        Operand(ast.unparse(each), value)
        for each, value in given
        if value is not _MISSING and not isinstance(value, ModuleType)
    )
    return list({one.text: one for one in found}.values())


def _compared(how: ast.cmpop, left: Any, right: Any) -> str:
    """Return the name of looking for a value in another, or of comparing all elements of an array or a column."""
    kinds = [kind_of(value) for value in (left, right) if value is not _MISSING]
    if isinstance(how, ast.In | ast.NotIn):
        return f"{kinds[-1]} in" if right is not _MISSING else ""
    return next((f"{kind} compared" for kind in kinds if kind in _COMPARED), "")


def _called(function: ast.expr, read: Callable[[str], Any]) -> str:
    if not isinstance(function, ast.Attribute):
        known = _read(function, read)
        return name_of_call(known) if known is not _MISSING else ""
    receiver = _read(function.value, read)
    if receiver is _MISSING:
        return f".{function.attr}"  # of what another expression makes
    if kind_of(_read(function, read)) == "numpy.vectorize":
        return "numpy.vectorize"
    if isinstance(receiver, ModuleType):
        return name_of_call(vars(receiver).get(function.attr))
    return f"{kind_of(receiver)}.{function.attr}"


def _taken(held: ast.expr, read: Callable[[str], Any]) -> str:
    """Return the name of taking an item: of what is not known by its attribute, as a table's ``iloc``."""
    value = _read(held, read)
    if value is _MISSING and isinstance(held, ast.Attribute):
        owner = _read(held.value, read)
        return f"{kind_of(owner)}.{held.attr}[]" if owner is not _MISSING else ""
    return f"{kind_of(value)}[]" if value is not _MISSING else ""


def _reader(frame: FrameType) -> Callable[[str], Any]:
    scopes = (frame.f_locals, frame.f_globals, vars(builtins))
    return lambda name: next((scope[name] for scope in scopes if name in scope), _MISSING)


def _read(node: ast.expr, read: Callable[[str], Any]) -> Any:
    """Return the value of an expression that runs no code of anyone's, else ``_MISSING``."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return read(name)
        case ast.Attribute(value=owner, attr=name):
            return _attribute(_read(owner, read), name)
        case ast.Subscript(value=held, slice=at):
            return _item(_read(held, read), _read(at, read))
        case ast.Call(func=ast.Name(id="len"), args=[held]) if read("len") is len:
            known = _read(held, read)
            return len(known) if type(known).__module__ in ("builtins", "numpy", "torch") else _MISSING
    return _MISSING


def _attribute(owner: Any, name: str) -> Any:
    if owner is _MISSING:
        return _MISSING
    for scope in _scopes(owner):
        if name in scope:
            return scope[name]
    found = next((vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)), _MISSING)
    if isinstance(found, MemberDescriptorType):
        try:
            return found.__get__(owner)
        except AttributeError:
            return _MISSING
    return _MISSING if hasattr(type(found), "__get__") else found


def _scopes(owner: Any) -> Iterator[Mapping[str, Any]]:
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return
    if isinstance(own, Mapping):
        yield own
        for table in ("_parameters", "_buffers", "_modules"):  # of a module of torch
            if type(own.get(table)) is dict:
                yield own[table]


def _item(held: Any, at: Any) -> Any:
    if type(held) in (list, tuple) and type(at) is int and -len(held) <= at < len(held):
        return held[at]
    if type(held) is dict and type(at) in (str, int):
        return held.get(at, _MISSING)
    return _MISSING

"""Which names the statements of a source give values to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


class Binding(NamedTuple):
    """What gives a value to a name of a module or an attribute of ``self``, or to an item of it, or changes it."""

    name: str
    function: str  # that it stands in, "" for none
    text: str
    line: int = 0  # of the file; 0 in a recording of an earlier version


class StoredSource(NamedTuple):
    """What a capture holds of a source file beside single lines: the functions around them, and what their names are.

    A function is the line that it begins at and its text. At the top of a module a loop takes its place.
    """

    functions: tuple[tuple[int, str], ...] = ()
    bindings: tuple[Binding, ...] = ()


class Assigned(NamedTuple):
    """One name that a statement gives a value to."""

    target: ast.expr
    value: ast.expr | None  # None where it is not one expression, as in the head of a loop


def assigned(node: ast.AST) -> Iterator[Assigned]:
    """Yield what one node assigns, the parts of a tuple each by itself."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _paired(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target, value):
            yield Assigned(target, value)
        case ast.AugAssign(target=target):
            yield Assigned(target, None)
        case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
            yield from _paired(target, None)
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield from _paired(target, value)


_CHANGES = frozenset(
    {
        *("append", "appendleft", "add", "clear", "discard", "extend", "fill", "insert", "pop", "popitem", "popleft"),
        *("remove", "reverse", "setdefault", "shuffle", "sort", "update"),
    }
)


def changed_in_place(node: ast.AST) -> str:
    """Return the name that a call changes in place, such as `.append(…)` or `.mul_(…)`; "" for any other node."""
    match node:
        case ast.Call(func=ast.Attribute(value=held, attr=name)) if name in _CHANGES or name[-1:] == "_" != name[-2:-1]:
            return name_of(held)
    return ""


def _paired(target: ast.expr, value: ast.expr | None) -> Iterator[Assigned]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield Assigned(target, value)
        return
    parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else [None] * 99
    for one, part in zip(target.elts, parts, strict=False):
        yield from _paired(one, part)


def name_of(target: ast.expr) -> str:
    """Return the variable or the attribute of ``self`` that a target is, or is an item of; "" for anything else."""
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    if isinstance(target, ast.Name):
        return target.id
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return ast.unparse(target) if is_own else ""

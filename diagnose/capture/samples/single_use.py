"""Which expressions have one use: their value can be computed for the part alone that this use takes.

A value has one use if the expression is an operand of another one, is returned, or is assigned to a name that is then
read once, or by slices only. Anything else may use it again, unseen.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

__all__ = ["Place", "place_of", "used_once"]

Place: TypeAlias = tuple[int, int, int | None, int | None]  # first line and column, last line and column

_SHAPES = frozenset({"shape", "ndim", "dtype", "size", "device"})
_OPERANDS = (ast.BinOp, ast.Call, ast.Subscript, ast.Return, ast.keyword)


def place_of(node: ast.expr) -> Place:
    """Return where an expression is."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def used_once(tree: ast.Module) -> set[Place]:
    """Return where the expressions with one use are."""
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = set()
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            names: dict[str, list[ast.Name]] = defaultdict(list)
            for node in _own(scope):
                if isinstance(node, ast.Name):
                    names[node.id].append(node)
            for node in _own(scope):
                if isinstance(node, ast.BinOp | ast.Call | ast.Subscript) and _has_one_use(node, parents, names):
                    found.add(place_of(node))
    return found


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function; names that functions in it use count as its own."""
    for child in ast.iter_child_nodes(scope):
        yield from ast.walk(child)


def _has_one_use(node: ast.expr, parents: dict[int, ast.AST], names: dict[str, list[ast.Name]]) -> bool:
    parent = parents[id(node)]
    if isinstance(parent, ast.Attribute):  # a method of it, or its shape
        return parent.attr in _SHAPES or isinstance(parents[id(parent)], ast.Call)
    if isinstance(parent, _OPERANDS):
        return True
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or not isinstance(parent.targets[0], ast.Name):
        return False
    return _is_read_once(parent, names[parent.targets[0].id], parents)


def _is_read_once(assigned: ast.Assign, uses: list[ast.Name], parents: dict[int, ast.AST]) -> bool:
    """Return whether what is assigned to a name is read by slices only, or once, until the next assignment to it."""
    stores = [name for name in uses if not isinstance(name.ctx, ast.Load)]
    reads = [name for name in uses if isinstance(name.ctx, ast.Load)]
    if len(stores) > 1:
        statements = _beside(assigned, parents)
        of = {id(name): _statement_of(name, statements, parents) for name in uses}
        if any(at < 0 for at in of.values()) or any(not _is_plain(statements[of[id(s)]], s) for s in stores):
            return False
        at = statements.index(assigned)
        end = min((of[id(name)] for name in stores if of[id(name)] > at), default=len(statements))
        reads = [name for name in reads if at < of[id(name)] <= end]
    reads = [name for name in reads if not _is_of_shape(name, parents)]
    return (len(reads) == 1 and _is_operand(reads[0], parents)) or all(_is_cut(name, parents) for name in reads)


def _beside(statement: ast.stmt, parents: dict[int, ast.AST]) -> list[ast.stmt]:
    """Return the statements of the block that one is in."""
    for _, block in ast.iter_fields(parents[id(statement)]):
        if isinstance(block, list) and statement in block:
            return [each for each in block if isinstance(each, ast.stmt)]
    return [statement]


def _statement_of(node: ast.AST, statements: list[ast.stmt], parents: dict[int, ast.AST]) -> int:
    """Return which statement of a block a node is in, -1 for none or a loop."""
    while node is not None:
        if node in statements:
            return -1 if isinstance(node, ast.For | ast.While | ast.If | ast.Try) else statements.index(node)
        node = parents.get(id(node))  # type: ignore[assignment]
    return -1


def _is_plain(statement: ast.stmt, name: ast.Name) -> bool:
    return isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.targets[0] is name


def _is_of_shape(name: ast.Name, parents: dict[int, ast.AST]) -> bool:
    parent = parents[id(name)]
    is_length = isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "len"
    return is_length or (isinstance(parent, ast.Attribute) and parent.attr in _SHAPES)


def _is_operand(name: ast.Name, parents: dict[int, ast.AST]) -> bool:
    parent = parents[id(name)]
    is_method = isinstance(parent, ast.Attribute) and isinstance(parents[id(parent)], ast.Call)
    return is_method or isinstance(parent, _OPERANDS)


def _is_cut(name: ast.Name, parents: dict[int, ast.AST]) -> bool:
    parent = parents[id(name)]
    return isinstance(parent, ast.Subscript) and parent.value is name and isinstance(parent.ctx, ast.Load)

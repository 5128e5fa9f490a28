"""Which attributes of the script's objects no line of its sources reads, but to make their own next value.

A running statistic is needed if it is read at last. Two steps do not show whether it is, but sources do: a name that
stands in one statement only is read by that one. Where names are made of text, nothing is known.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from diagnose.capture.record.sampler import is_users_file
from diagnose.model.dataflow import Operator, Value

__all__ = ["unread_values"]

# These get at attributes by other means than their names, or write whole objects.
_BY_TEXT = frozenset(
    {"__dict__", "vars", "locals", "getattr", "attrgetter", "asdict", "astuple", "pickle", "save", "dump", "dumps"}
)


def unread_values(operators: Sequence[Operator], values: Sequence[Value], alive: Iterable[int]) -> frozenset[int]:
    """Return those of the values alive at the end that a statement puts into an attribute which nothing else reads."""
    made: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number in alive:
        value = values[number]
        stack = operators[value.producer].stack if value.producer >= 0 else ()
        if stack and value.role in ("", "state"):
            made[stack[0].file, stack[0].line].append(number)
    attributes = {place: name for place in made if (name := _attribute(*place))}
    if not attributes:
        return frozenset()
    loaded = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    users = {file for file in loaded if file.endswith(".py") and is_users_file(file) and Path(file).is_file()}
    files = users.union(file for file, _ in made)
    unread = [place for place, name in attributes.items() if not any(_reads(file, name, place) for file in files)]
    return frozenset(number for place in unread for number in made[place])


def _attribute(file: str, line: int) -> str:
    """Return the attribute that the statement which begins at a line sets, or changes in place; "" if it is none."""
    for node in ast.walk(_tree(file) or ast.Module([], [])):
        if isinstance(node, ast.stmt) and node.lineno == line:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target: ast.AST | None = node.targets[0]
            elif isinstance(node, ast.AugAssign):
                target = node.target
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = node.value.func
                in_place = isinstance(called, ast.Attribute) and called.attr.endswith("_")
                target = called.value if isinstance(called, ast.Attribute) and in_place else None
            else:
                continue
            return target.attr if isinstance(target, ast.Attribute) else ""
    return ""


def _reads(file: str, name: str, place: tuple[str, int]) -> bool:
    """Return whether a file may read an attribute outside of the statement that sets it: read it, or hold its name."""
    tree = _tree(file)
    if tree is None:
        return True
    own = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and (file, node.lineno) == place]
    mine = {id(node) for statement in own for node in ast.walk(statement)}
    return any(_may_read(node, name) for node in ast.walk(tree) if id(node) not in mine)


def _may_read(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _BY_TEXT or (node.attr == name and isinstance(node.ctx, ast.Load))
    if isinstance(node, ast.AnnAssign):  # a field of a data class, which prints itself
        return isinstance(node.target, ast.Name) and node.target.id == name
    if isinstance(node, ast.Name):
        return node.id in _BY_TEXT
    return isinstance(node, ast.Constant) and node.value == name


def _tree(file: str) -> ast.Module | None:
    """Return a parsed source file, None where it is not known."""
    try:
        text = "".join(linecache.getlines(file))
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None

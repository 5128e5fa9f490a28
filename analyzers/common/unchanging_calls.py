"""A call in a loop's body that walks a model's modules, and whose result is the same in each turn."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from diagnose.model.locations import Where
from diagnose.tables import Tables

__all__ = ["UnchangingCall", "unchanging_call"]

_TABLES = frozenset({"state_dict"})
_WALKS = frozenset({"parameters", "buffers", "modules", "children"})  # iterators, each also as "named_..."
_COLLECTS = frozenset({"dict", "list", "tuple"})


class UnchangingCall(NamedTuple):
    """A call, as the script has it, and what the loop has in its place."""

    call: str
    name: str
    line: str


def unchanging_call(t: Tables, place: Where) -> UnchangingCall | None:
    """Return the outermost such call of a line in a loop, None where there is none or the loop's head is not known."""
    file, lines = place.file or "", t.capture.lines
    around = [(head, last) for head, last in t.capture.loops.get(file, ()) if head < (place.line or 0) <= last]
    heads = [tree for head, _ in around if (file, head) in lines for tree in _parsed(f"{lines[file, head]} pass")]
    if not around or len(heads) < len(around):
        return None
    first, last = max(around)
    body = [tree for line in range(first + 1, last + 1) for tree in _parsed(lines.get((file, line), ""))]
    changed = {name for tree in [heads[around.index((first, last))], *body] for name in _stored(tree)}
    for tree in _parsed(place.code or ""):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (walk := _walk(node)) is not None:
                names = {each.id for each in ast.walk(walk) if isinstance(each, ast.Name)}
                if not names & changed:
                    call = ast.unparse(node)
                    return UnchangingCall(call, walk.attr, ast.unparse(tree).replace(call, walk.attr))
    return None


def _walk(node: ast.Call) -> ast.Attribute | None:
    """Return the method of a call that makes a table of a model's parts, None for any other call."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) as method, args=[]) if name in _TABLES:
            return method
        case ast.Call(func=ast.Name(id=kind), args=[ast.Call(func=ast.Attribute(attr=name) as method, args=[])]) if (
            kind in _COLLECTS and name.removeprefix("named_") in _WALKS
        ):
            return method
    return None


def _stored(tree: ast.AST) -> Iterator[str]:
    """Return the names that a statement gives a value, also to an attribute or an element of theirs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _parsed(text: str) -> list[ast.Module]:
    """Return a line of source as a tree, none where it is only a part of a statement."""
    try:
        return [ast.parse(text.strip())]
    except (SyntaxError, ValueError):
        return []

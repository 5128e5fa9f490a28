"""A call in a loop's body that walks a model's modules, and whose result is the same in each turn."""

from __future__ import annotations

import ast
from typing import NamedTuple

from diagnose.analyzers.common.rewrite import Edits, hoisted
from diagnose.model.dataflow import Frame
from diagnose.model.locations import Where
from diagnose.model.own_source import OwnSource

_TABLES = frozenset({"state_dict"})
_WALKS = frozenset({"parameters", "buffers", "modules", "children"})  # iterators, each also as "named_..."
_COLLECTS = frozenset({"dict", "list", "tuple"})


class UnchangingCall(NamedTuple):
    """A call, as the script has it, and the edits that make it before the loop."""

    call: str
    edits: Edits


def unchanging_call(source: OwnSource, place: Where) -> UnchangingCall | None:
    """Return the outermost such call of a line in a loop, None where there is none or the loop's head is not known."""
    line = Frame(place.file or "", place.line or 0, "")
    edits = hoisted(source, line, lambda call: _walk(call) is not None)
    node = source.statement(line) if edits else None
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and _walk(each)] if node is not None else []
    return UnchangingCall(ast.unparse(calls[0]), edits) if calls else None


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

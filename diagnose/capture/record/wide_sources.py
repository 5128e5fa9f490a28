"""Finds the user's expressions that make 64-bit floats for the step, so that a diff can change them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache

from diagnose.capture.record.source_lines import SourceLines, excerpt_of, parsed
from diagnose.model.records import CallRecord, LoadedRecord


def wide_sources(
    lines: SourceLines, loaded: LoadedRecord, buffers: Mapping[str, tuple[str, int]]
) -> tuple[CallRecord, ...]:
    """Return what is taken down of the expressions.

    Args:
        lines: of the sources.
        loaded: the expressions that samples were loaded with; those that others take over are left out.
        buffers: of modules, with the file and line of the ``__init__`` of their class.
    """

    @cache
    def nodes(file: str) -> list[ast.AST]:
        tree = parsed("\n".join(lines.text(file) or ()))
        return list(ast.walk(tree)) if tree is not None else []

    rows = loaded.expressions
    around = {row for one in rows if one.is_wide for row in one.inside}
    found = [
        excerpt_of(node, lines, one.file, name=one.text)
        for row, one in enumerate(rows)
        if one.is_wide and row not in around
        for node in nodes(one.file)
        if isinstance(node, ast.expr) and node.lineno == one.line and ast.unparse(node)[:120] == one.text
    ]
    for name, (file, line) in buffers.items():
        registered = _registered(nodes(file), line, name.rpartition(".")[2])
        found += [excerpt_of(node, lines, file, name=name) for node in registered]
    return tuple(one for one in found if one is not None)


def _registered(nodes: list[ast.AST], line: int, name: str) -> Iterator[ast.expr]:
    """Yield what the class around a line registers as a buffer of this name."""
    classes = (
        node for node in nodes if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
    )
    for call in (each for node in classes for each in ast.walk(node) if isinstance(each, ast.Call)):
        if len(call.args) > 1 and ast.unparse(call.func).rpartition(".")[2] == "register_buffer":
            # A string of the source, with whatever it is formatted with, may be the name.
            parts = getattr(call.args[0], "values", [call.args[0]])
            pattern = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts]
            if isinstance(call.args[0], ast.JoinedStr | ast.Constant) and re.fullmatch("".join(pattern), name):
                yield call.args[1]

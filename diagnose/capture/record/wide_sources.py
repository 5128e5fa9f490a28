"""Finds the user's expressions that make 64-bit floats for the step, so that a diff can change them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from diagnose.capture.record.source_lines import SourceLines, excerpt_of, parsed
from diagnose.model.records import CallRecord, LoadedRecord


class WideSources:
    """Reads each source file once."""

    def __init__(self, lines: SourceLines) -> None:
        self._lines = lines
        self._nodes: dict[str, list[ast.AST]] = {}

    def of(self, loaded: LoadedRecord, buffers: Mapping[str, tuple[str, int]]) -> tuple[CallRecord, ...]:
        """Return what is taken down of the expressions.

        Args:
            loaded: the expressions that samples were loaded with; those that others take over are left out.
            buffers: of modules, with the file and line of the ``__init__`` of their class.
        """
        rows = loaded.expressions
        around = {row for one in rows if one.is_wide for row in one.inside}
        found = [
            excerpt_of(node, self._lines, one.file, name=one.text)
            for row, one in enumerate(rows)
            if one.is_wide and row not in around
            for node in self._tree(one.file)
            if isinstance(node, ast.expr) and node.lineno == one.line and ast.unparse(node)[:120] == one.text
        ]
        for name, (file, line) in buffers.items():
            registered = self._registered(file, line, name.rpartition(".")[2])
            found += [excerpt_of(node, self._lines, file, name=name) for node in registered]
        return tuple(one for one in found if one is not None)

    def _tree(self, file: str) -> list[ast.AST]:
        if file not in self._nodes:
            tree = parsed("\n".join(self._lines.text(file) or ()))
            self._nodes[file] = list(ast.walk(tree)) if tree is not None else []
        return self._nodes[file]

    def _registered(self, file: str, line: int, name: str) -> Iterator[ast.expr]:
        """Yield what the class around a line registers as a buffer of this name."""
        for node in self._tree(file):
            if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0):
                calls = (each for each in ast.walk(node) if isinstance(each, ast.Call) and len(each.args) > 1)
                registering = (call for call in calls if _last_name(call.func) == "register_buffer")
                yield from (call.args[1] for call in registering if _may_be(call.args[0], name))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _may_be(node: ast.expr, name: str) -> bool:
    """Return whether a string of the source, with whatever it is formatted with, may be a name."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    pattern = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts]
    return isinstance(node, ast.JoinedStr | ast.Constant) and re.fullmatch("".join(pattern), name) is not None

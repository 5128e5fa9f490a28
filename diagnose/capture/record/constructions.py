"""Finds in the script what a diff can change: calls that made an object, and expressions that make 64-bit floats.

What is taken down is the call's own lines with a few around them, the names of its class's parameters, and the keys
(never the values) of a mapping that it passes by ``**``. A call with a credential in its lines is left out.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import msgspec

from diagnose.capture.record.sampler import users_frames
from diagnose.capture.record.source_lines import SourceLines, excerpt_of, parsed
from diagnose.model.records import CallRecord, LoadedRecord


class Constructions:
    """Reads each source file once; ``cwd`` is what relative names start from."""

    def __init__(self, cwd: Path) -> None:
        self._lines = SourceLines(cwd)
        self._calls: dict[str, list[ast.Call]] = {}

    def of(self, made: object, *, name: str) -> CallRecord | None:
        """Return the user's call that is making this object, None where none shows; ``name`` is what it is known as.

        It is called from within the object's ``__init__``.
        """
        frame = next((each for each in users_frames(sys._getframe(1)) if not _constructs(each, made)), None)
        if frame is None:
            return None
        file = frame.f_code.co_filename
        call = self._executed(file, frame, lambda node: _is_class(node, frame, type(made)))
        shown = excerpt_of(call, self._lines, file, name=name) if call is not None else None
        if call is None or shown is None:
            return None
        parameters = list(inspect.signature(type(made).__init__).parameters.values())[1:]
        return msgspec.structs.replace(
            shown,
            parameters=tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))[:60],
            takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
            spread=_spread(call, frame),
        )

    def call(self, frame: FrameType, *, name: str) -> CallRecord | None:
        """Return the call of a function that ends in the last part of ``name`` and that this frame executes."""
        file, last = frame.f_code.co_filename, name.rpartition(".")[2]
        call = self._executed(file, frame, lambda node: ast.unparse(node).rpartition(".")[2] == last)
        shown = excerpt_of(call, self._lines, file, name=name) if call is not None else None
        if call is None or shown is None:
            return None
        return msgspec.structs.replace(shown, spread=_spread(call, frame))

    def _executed(self, file: str, frame: FrameType, is_it: Callable[[ast.expr], bool]) -> ast.Call | None:
        """Return the call that is executed, of those of what is looked for; before Python 3.11 the line's last one."""
        at = frame.f_lineno or 0
        here = [call for call in self._calls_of(file) if call.lineno <= at <= (call.end_lineno or 0)]
        mine = [call for call in here if is_it(call.func)]
        positions = getattr(frame.f_code, "co_positions", None)  # Python 3.11 or newer
        place = next(itertools.islice(positions(), frame.f_lasti // 2, None), None) if positions is not None else None
        exact = [c for c in mine if (c.lineno, c.end_lineno, c.col_offset, c.end_col_offset) == place]
        return exact[0] if exact else max(mine, key=lambda call: (call.lineno, call.col_offset), default=None)

    def _calls_of(self, file: str) -> list[ast.Call]:
        if file not in self._calls:
            tree = parsed("\n".join(self._lines.text(file) or ())) or ast.Module([], [])
            self._calls[file] = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        return self._calls[file]


def _constructs(frame: FrameType, made: object) -> bool:
    code = frame.f_code
    own = code.co_varnames[0] if code.co_argcount else ""
    return code.co_name == "__init__" and frame.f_locals.get(own) is made


def _is_class(node: ast.expr, frame: FrameType, made: type) -> bool:
    """Return whether an expression names the class; no attribute but a module's is read, since that could run code."""
    found = _value(node, frame)
    if found is not None:
        return found is made
    return isinstance(node, ast.Attribute) and node.attr == made.__name__


def _value(node: ast.expr, frame: FrameType) -> Any:  # whatever the script has under that name
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals):
            if node.id in names:
                return names[node.id]
        return None
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        return vars(owner).get(node.attr) if isinstance(owner, ModuleType) else None
    return None


def _spread(call: ast.Call, frame: FrameType) -> tuple[str, ...] | None:
    """Return the keys of the mappings that a call passes by ``**``; None where one of them is not known."""
    keys: list[str] = []
    for keyword in call.keywords:
        if keyword.arg is not None:
            continue
        value = _value(keyword.value, frame)
        if type(value) is not dict:
            return None
        keys += [key for key in value if isinstance(key, str)]
    return tuple(keys)


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

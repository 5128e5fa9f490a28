"""The user's statements as a capture holds them, by their lines, and the loops and functions around them."""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from diagnose.model.assignments import StoredSource
from diagnose.model.dataflow import Frame

Spans: TypeAlias = Mapping[str, tuple[tuple[int, int], ...]]  # by file: first and last lines
_NOTHING: Spans = MappingProxyType({})


class EditedStatement(NamedTuple):
    """What takes the place of the statement that begins at a line of a file, of one with a body of its head."""

    line: int  # 0: ``after`` is put after the file's last import
    before: str  # as it stands; "": ``after`` is put below the statement
    after: str  # statements, the last of them the head of one with a body if the old one is; "": it is left out


def shown(edits: Iterable[EditedStatement]) -> tuple[str, str]:
    """Return what is printed of edits if no diff is: the statements as they stand, and those that take their place.

    A statement that is left out becomes a comment.
    """
    each = list(edits)
    gone = ["\n".join(f"# {line}" for line in edit.before.split("\n")) for edit in each]
    after = [edit.after or left_out for edit, left_out in zip(each, gone, strict=True)]
    return by_place((edit.line, _headed(edit.before)) for edit in each if edit.before), by_place(
        (edit.line, _headed(text)) for edit, text in zip(each, after, strict=True)
    )


def _headed(text: str) -> str:
    return f"{text} ..." if text.endswith(":") else text


def by_place(texts: Iterable[tuple[int, str]]) -> str:
    """Return one text of those of several lines of a file, each below the number of its line; one text as it is."""
    each = list(texts)
    if len(each) < 2:
        return "".join(text for _, text in each)
    return "\n".join(f"# {f'line {line}' if line else 'after the imports'}\n{text}" for line, text in each)


class OwnSource(NamedTuple):
    """Texts of statements, and what is around them."""

    lines: Mapping[tuple[str, int], str] = MappingProxyType({})
    loops: Spans = _NOTHING
    functions: Spans = _NOTHING
    bound: Mapping[tuple[str, int], tuple[str, ...]] = MappingProxyType({})  # names that a loop or function binds
    whole: Mapping[str, StoredSource] = MappingProxyType({})  # by file: whole functions

    def text(self, frame: Frame | None) -> str:
        """Return the text of a statement, of one with a body its head; "" where it is not known."""
        return self.lines.get(frame[:2], "") if frame is not None else ""

    def statement(self, frame: Frame | None) -> ast.stmt | None:
        """Return a statement, of one with a body its head; None where it is not known."""
        return parsed_statement(self.text(frame))

    def loop(self, frame: Frame) -> Frame | None:
        """Return the head of the innermost loop around a statement, in its function."""
        function = self.function(frame)
        start = function.line if function is not None else 0
        return _innermost(frame, [(a, b) for a, b in self.loops.get(frame.file, ()) if start < a < frame.line])

    def function(self, frame: Frame) -> Frame | None:
        """Return the head of the innermost function around a statement."""
        return _innermost(frame, self.functions.get(frame.file, ()))

    def binds(self, head: Frame) -> frozenset[str]:
        """Return the names that a loop or function binds, as far as the capture shows them."""
        known = self.bound.get(head[:2])
        if known is None:  # a recording of an earlier version
            spans = (*self.loops.get(head.file, ()), *self.functions.get(head.file, ()))
            last = max((b for a, b in spans if a == head.line), default=head.line)
            known = tuple(self.stored(head.file, range(head.line, last + 1)))
        return frozenset(known)

    def stored(self, file: str, lines: range) -> Iterator[str]:
        """Yield the names that the known statements of some lines assign."""
        for line in lines:
            node = parsed_statement(self.lines.get((file, line), ""))
            for each in ast.walk(node) if node is not None else ():
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    yield each.id


def parsed_statements(text: str) -> list[ast.stmt]:
    """Return the statements that a text is, of one with a body its head; [] of what is no Python."""
    text = text.strip().removeprefix("el") if text.lstrip().startswith("elif") else text.strip()
    for body in ("", f"\n{' ' * 99}..."):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes: the script had them already
            return ast.parse(text + body).body
    return []


def parsed_statement(text: str) -> ast.stmt | None:
    """Return the statement that a text is, or the head of one; None if it is none or several."""
    found = parsed_statements(text)
    return found[0] if len(found) == 1 else None


def span(text: str, node: ast.AST) -> tuple[int, int]:
    """Return the first byte of a node of a text, and the one after its last."""
    lines = [len(line.encode()) + 1 for line in text.split("\n")]
    places = (("lineno", "col_offset"), ("end_lineno", "end_col_offset"))
    first, last = (sum(lines[: getattr(node, line) - 1]) + getattr(node, column) for line, column in places)
    return first, last


def spliced(text: str, parts: Iterable[tuple[int, int, str]]) -> str:
    """Return a text with others in the place of some of its bytes, which do not overlap."""
    raw = text.encode()
    for start, end, new in sorted(parts, key=lambda part: part[:2], reverse=True):
        raw = raw[:start] + new.encode() + raw[end:]
    return raw.decode()


def with_parts(text: str, parts: Iterable[tuple[ast.AST, str]]) -> str:
    """Return a text with some nodes of its tree written otherwise."""
    return spliced(text, [(*span(text, node), new) for node, new in parts])


_OPERATORS = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Lambda, ast.NamedExpr, ast.Await)


def needs_parentheses(new: ast.AST, old: ast.AST, within: ast.AST) -> bool:
    """Return whether an expression is read otherwise in the place of a part of another: as an operand, or called."""
    leads = old in (getattr(within, name, None) for name in ("func", "value"))
    return isinstance(new, _OPERATORS) and (
        isinstance(within, _OPERATORS) or (leads and isinstance(within, ast.Attribute | ast.Subscript | ast.Call))
    )


def _innermost(frame: Frame, spans: Iterable[tuple[int, int]]) -> Frame | None:
    inside = [first for first, last in spans if first <= frame.line <= last]
    return Frame(frame.file, max(inside), frame.function) if inside else None

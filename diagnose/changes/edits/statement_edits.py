"""Rewrites statements of a script: of each only the expressions that differ, and everything else stays byte for byte.

An edit names a line, the statement that begins there and what takes its place. Nothing is written if the script reads
otherwise, lacks a name that is read, has one that would be new, or would be no Python.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from diagnose.errors import DiagnoseError
from diagnose.model.own_source import (
    EditedStatement,
    needs_parentheses,
    parsed_statement,
    parsed_statements,
    span,
    spliced,
)

__all__ = ["RewriteError", "rewritten"]

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")

_Part: TypeAlias = tuple[int, int, str]  # the first and last byte of a text, and what takes its place


class RewriteError(DiagnoseError):
    """An edit does not fit the script; the message is a clause."""


class _Found(NamedTuple):
    """A statement, and the lists of statements and the functions around it, the innermost last."""

    node: ast.stmt
    blocks: tuple[int, ...]
    functions: tuple[ast.AST, ...]
    is_only: bool = False  # of its block


def rewritten(source: str, edits: Sequence[EditedStatement]) -> str:
    """Return the source of a script with these edits.

    Raises:
        RewriteError: an edit does not fit, or not with the others.
    """
    if not source.endswith("\n"):
        return rewritten(f"{source}\n", edits)[:-1]
    tree = _parsed(source)
    at = [(edit, _statement(tree, edit)) for edit in edits if edit.line]
    _check_names(tree, [*at, *((edit, _Found(tree.body[0], (), ())) for edit in edits if not edit.line)])
    _check_order(at)
    each = (
        (found.node, edit if edit.after or not found.is_only else edit._replace(after="pass")) for edit, found in at
    )
    parts = [part for node, edit in each for part in _parts(source, node, edit)]
    parts += _at_top(source, tree, edits)
    after = spliced(source, parts)
    made = {_head(each.node) for each in _statements(_parsed(after).body)}
    wanted = (_head(node) for edit in edits for node in parsed_statements(edit.after))
    if not made.issuperset(wanted):
        raise RewriteError("its new statements do not fit into the lines of the script")
    return after


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise RewriteError(f"the script would be no Python ({error})") from error


def _statements(
    body: Sequence[ast.AST], blocks: tuple[int, ...] = (), functions: tuple[ast.AST, ...] = ()
) -> Iterator[_Found]:
    blocks = (*blocks, id(body))
    for node in body:
        if isinstance(node, ast.stmt):
            yield _Found(node, blocks, functions, len(body) == 1)
        inner = (*functions, node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else functions
        for name in _BODIES:
            yield from _statements(getattr(node, name, ()), blocks, inner)


def _statement(tree: ast.Module, edit: EditedStatement) -> _Found:
    here = [each for each in _statements(tree.body) if each.node.lineno == edit.line]
    before = parsed_statement(edit.before)
    if len(here) != 1 or (edit.before and (before is None or _head(before) != _head(here[0].node))):
        raise RewriteError(f"line {edit.line} of the script reads otherwise, or the line is of another file")
    return here[0]


def _head(node: ast.stmt) -> str:
    """Return a statement as text, of one with a body its head."""
    fields = ((name, value) for name, value in ast.iter_fields(node) if name not in (*_BODIES, "decorator_list"))
    whole = [(name, value if isinstance(value, list) else [value]) for name, value in fields]
    each = [(name, [ast.dump(one) if isinstance(one, ast.AST) else one for one in values]) for name, values in whole]
    return f"{type(node).__name__}{each}"


def _check_order(at: Sequence[tuple[EditedStatement, _Found]]) -> None:
    """Check that the first edit of a function is made wherever the others are."""
    firsts: dict[tuple[ast.AST, ...], _Found] = {}
    for edit, found in sorted(at, key=lambda each: each[0].line):
        if edit.before:
            first = firsts.setdefault(found.functions, found)
            if found.blocks[: len(first.blocks)] != first.blocks:
                raise RewriteError(f"line {edit.line} may run without line {first.node.lineno}")


def _names(trees: Iterable[ast.AST], *contexts: type[ast.expr_context]) -> set[str]:
    """Return names, and attributes with a dot before them, that are read or written."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, contexts)}
    return names | {
        f".{each.attr}" for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, contexts)
    }


def _imported(trees: Iterable[ast.AST]) -> set[str]:
    aliases = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.alias))
    return {each.asname or each.name.partition(".")[0] for each in aliases}


def _scope(node: ast.AST, functions: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names in a tree outside of functions, and in these."""
    for each in ast.iter_child_nodes(node):
        names = (getattr(each, field, None) for field in ("id", "arg", "name", "asname"))
        yield from (name.partition(".")[0] for name in names if isinstance(name, str))
        if each in functions or not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _scope(each, functions)


def _check_names(tree: ast.Module, at: Sequence[tuple[EditedStatement, _Found]]) -> None:
    """Check that edits read names that are there, and that what they make has new names."""
    attributes = _names([tree], ast.expr_context)
    attributes |= {
        f".{each.name}" for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    old = [node for edit, _ in at if (node := parsed_statement(edit.before)) is not None]
    new = [node for edit, _ in at for node in parsed_statements(edit.after)]
    stored = _names(new, ast.Store)
    made = stored - _names(old, ast.expr_context)
    for edit, found in at:
        trees = parsed_statements(edit.after)
        known = {*_scope(tree, found.functions)} | {name for name in attributes if name[0] == "."}
        for name in sorted(_names(trees, ast.Load) - known - stored - _imported(new) - {*dir(builtins)}):
            if name[0] != ".":
                raise RewriteError(f"the script has no {name}")
        for name in sorted(made & known & _names(trees, ast.Store)):
            raise RewriteError(f"the script has a {name.lstrip('.')} already")


def _at_top(source: str, tree: ast.Module, edits: Sequence[EditedStatement]) -> Iterator[_Part]:
    """Yield what is put after the imports, those left out that the script has."""
    begin = min((edit.line or len(source) for edit in edits), default=0)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno < begin]
    new = [edit.after for edit in edits if not edit.line]
    new = [text for text in new if _head(parsed_statements(text)[0]) not in map(_head, imports)]
    trees = [node for text in new for node in parsed_statements(text)]
    read = _names(trees, ast.Load) - _names(trees, ast.Store) - _imported([*imports, *trees]) - {*dir(builtins)}
    for name in sorted(name for name in read if name[0] != "."):
        raise RewriteError(f"{name} is not imported at the top of the script")
    if new and not imports:
        raise RewriteError("the script begins with no import")
    if new:
        at = _line(source, imports[-1].end_lineno or 0, 1)
        yield at, at, "".join(f"{text}\n" for text in new)


def _line(source: str, number: int, after: int = 0) -> int:
    """Return at which byte a line begins, or the one so many lines after it."""
    return sum(len(line.encode()) + 1 for line in source.split("\n")[: number - 1 + after])


def _parts(source: str, node: ast.stmt, edit: EditedStatement) -> Iterator[_Part]:
    """Yield what an edit of a statement replaces."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    start, end = _line(source, first), _line(source, node.end_lineno or node.lineno, 1)
    whole = source.encode()[start:end].decode()
    margin = whole[: len(whole) - len(whole.lstrip())]

    def lines(text: str) -> str:
        return "".join(f"{margin}{line}\n" if line else "\n" for line in text.split("\n")) if text else ""

    if not edit.before:
        yield end, end, lines(edit.after)
        return
    statements, texts = parsed_statements(edit.after), edit.after.split("\n")
    same = next((each for each in reversed(statements) if _continues(node, each)), None)
    block = statements[0] if len(statements) == 1 else None
    if isinstance(block, ast.With) and len(block.body) == 1 and _head(block.body[0]) == _head(node):
        strings = [each for each in ast.walk(node) if isinstance(each, ast.Constant | ast.JoinedStr)]
        if any(each.lineno != each.end_lineno for each in strings):
            raise RewriteError(f"line {edit.line} has a string of several lines in it")
        moved = "".join(f"    {line}\n" if line.strip() else f"{line}\n" for line in whole[:-1].split("\n"))
        yield start, end, lines("\n".join(texts[: block.body[0].lineno - 1])) + moved
    elif same is None and hasattr(node, "body"):
        raise RewriteError(f"line {edit.line} begins a block")
    elif same is None:
        yield start, end, lines(edit.after)
    else:
        yield start, start, lines("\n".join(texts[: same.lineno - 1]))
        parts = _differences(node, same)
        if parts is None:
            raise RewriteError(f"line {edit.line} reads otherwise")
        yield from (_replaced(source, edit.after, each) for each in parts)
        yield end, end, "" if hasattr(node, "body") else lines("\n".join(texts[same.end_lineno or 0 :]))


def _continues(node: ast.stmt, other: ast.stmt) -> bool:
    """Return whether a new statement is an old one with other expressions in it."""
    targets = [[ast.dump(one) for one in getattr(each, "targets", ())] for each in (node, other)]
    return type(node) is type(other) and targets[0] == targets[1] and _differences(node, other) is not None


class _Difference(NamedTuple):
    """An expression or a function's parameters, what takes their place, and what they are a part of."""

    old: ast.AST
    new: ast.AST
    within: ast.AST


def _differences(old: ast.AST, new: ast.AST, within: ast.AST | None = None) -> list[_Difference] | None:
    """Return the smallest expressions in which two trees differ, bodies left out; None if it is more than that."""
    if ast.dump(old) == ast.dump(new):
        return []
    found = _inner_differences(old, new) if type(old) is type(new) else None
    if found is None and within is not None and all(map(_has_place, (old, new))):
        return [_Difference(old, new, within)]
    return found


def _inner_differences(old: ast.AST, new: ast.AST) -> list[_Difference] | None:
    found: list[_Difference] = []
    for name, value in ast.iter_fields(old):
        if isinstance(old, ast.stmt) and name in (*_BODIES, "decorator_list"):
            continue
        one, other = (each if isinstance(each, list) else [each] for each in (value, getattr(new, name)))
        if len(one) != len(other):
            return None
        for a, b in zip(one, other, strict=True):
            is_tree = isinstance(a, ast.AST) and isinstance(b, ast.AST)
            part = _differences(a, b, old) if is_tree else [] if a == b else None
            if part is None:
                return None
            found += part
    return found


def _has_place(node: ast.AST) -> bool:
    return isinstance(node, ast.expr) or (isinstance(node, ast.arguments) and bool(node.args))


def _replaced(source: str, after: str, one: _Difference) -> _Part:
    start, end = _extent(after, one.new)
    text = after.encode()[start:end].decode()
    if needs_parentheses(one.new, one.old, one.within):
        text = f"({text})"
    return *_extent(source, one.old), text


def _extent(text: str, node: ast.AST) -> tuple[int, int]:
    """Return the first byte of what a node is made of, and the one after its last."""
    spans = [span(text, each) for each in ast.walk(node) if hasattr(each, "lineno")]
    return min(start for start, _ in spans), max(end for _, end in spans)

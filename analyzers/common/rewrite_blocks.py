"""Statements of the user's that change places: what is needed of them is the function that they are in.

Each function returns the edits, or () if the recording does not hold that function, or it does not show that the
statements can be moved.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from diagnose.analyzers.common.rewrite import Edits, all_names, stored_names
from diagnose.model.assignments import StoredSource
from diagnose.model.dataflow import Frame
from diagnose.model.own_source import EditedStatement, OwnSource, parsed_statements, with_parts

__all__ = ["kept_iterator", "moved", "one_backward"]


class _Placed(NamedTuple):
    """A statement."""

    node: ast.stmt
    text: str  # of one with a body its head
    line: int  # of the file
    blocks: tuple[tuple[ast.AST, str], ...]  # around it, the outermost first: what has a body, and which part of it

    @property
    def block(self) -> list[ast.stmt]:
        """Return the statements of the innermost block around it."""
        node, part = self.blocks[-1]
        found: list[ast.stmt] = getattr(node, part)
        return found

    def edit(self, after: str) -> EditedStatement:
        """Return the edit that puts other statements in its place."""
        return EditedStatement(self.line, self.text, after)


def moved(source: OwnSource, statements: Iterable[Frame], reader: Frame) -> Edits:
    """Return statements of one function moved into the branch that reads what they make, above the line that does."""
    lines = sorted({each.line for each in statements})
    for placed in _functions(source, reader.file):
        if not {*lines, reader.line} <= placed.keys():
            continue
        goal, each = placed[reader.line], [placed[line] for line in lines]
        texts = [one.text for one in (*each, goal)]
        is_movable = all(
            one.blocks == goal.blocks[: len(one.blocks)] and len(one.block) > 1 and not hasattr(one.node, "body")
            for one in each
        )
        return (*(one.edit("") for one in each), goal.edit("\n".join(texts))) if is_movable and all(texts) else ()
    return ()


def one_backward(source: OwnSource, starts: Iterable[Frame]) -> Edits:
    """Return backward passes that follow each other, or that a loop starts, as one of the sum of their losses."""
    frames = sorted(set(starts))
    for placed in _functions(source, frames[0].file) if frames else ():
        each = [placed[frame.line] for frame in frames if frame.line in placed]
        if len(each) < len(frames) or {frame.file for frame in frames} != {frames[0].file}:
            continue
        losses = [_loss_of(one.node) for one in each]
        if not all(losses) or any(one.blocks != each[0].blocks or not one.text for one in each):
            return ()
        if len(each) > 1:
            return _of_sum(each, [loss for loss in losses if loss])
        return _of_loop(placed, each[0], losses[0] or "")
    return ()


def _of_sum(each: list[_Placed], losses: list[str]) -> Edits:
    block, mine = each[0].block, [one.node for one in each]
    between = block[block.index(mine[0]) : block.index(mine[-1]) + 1]
    if any(one not in mine and not isinstance(one, ast.Assign) for one in between):  # an update, or a condition
        return ()
    return (*(one.edit("") for one in each[:-1]), each[-1].edit(f"({' + '.join(losses)}).backward()"))


def _of_loop(placed: dict[int, _Placed], start: _Placed, loss: str) -> Edits:
    """Return the losses of a loop added up in it, and one backward pass after it."""
    loop = start.blocks[-1][0]
    head = next((one for one in placed.values() if one.node is loop), None)
    if head is None or not isinstance(loop, ast.For) or not head.text or start.node is not loop.body[-1]:
        return ()
    rest = head.block[head.block.index(loop) + 1 :]
    after = next((one for one in placed.values() if rest and one.node is rest[0]), None)
    plain = all(isinstance(one, ast.Assign | ast.AugAssign) for one in loop.body[:-1]) and not loop.orelse
    if after is None or not after.text or not plain or "total" in all_names(head.blocks[0][0]):
        return ()
    total = f"total = total + {loss}"
    return head.edit(f"total = 0\n{head.text}"), start.edit(total), after.edit(f"total.backward()\n{after.text}")


def _loss_of(node: ast.stmt) -> str | None:
    """Return what a statement starts the backward pass of, with no more arguments than how the graph is kept."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(loss, "backward"), args=[], keywords=words)):
            return ast.unparse(loss) if {word.arg for word in words} <= {"retain_graph"} else None
    return None


def kept_iterator(source: OwnSource, line: Frame) -> Edits:
    """Return `next(iter(loader))` as the next one of an iterator that is made above the loops, and begins again."""
    for placed in _functions(source, line.file):
        here = placed.get(line.line)
        loops = [node for node, _ in here.blocks if isinstance(node, ast.For | ast.While)] if here is not None else []
        head = next((one for one in placed.values() if loops and one.node is loops[0]), None)
        if here is None or head is None or not head.text or not here.text:
            continue
        made = [(call, of) for part in parsed_statements(here.text) if (call := _first_of(part)) and (of := call.args)]
        if len(made) != 1 or "batches" in all_names(here.blocks[0][0]):
            return ()
        call, (loader,) = made[0]
        if all_names(loader) & stored_names(head.node):  # each turn may have another loader
            return ()
        again = f"batches = (batch for _ in itertools.count() for batch in {ast.unparse(loader)})"
        edits = head.edit(f"{again}\n{head.text}"), here.edit(with_parts(here.text, [(call, "batches")]))
        return (EditedStatement(0, "", "import itertools"), *edits)
    return ()


def _first_of(statement: ast.AST) -> ast.Call | None:
    """Return the call of `iter` whose first item is taken."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(ast.Name("next"), [ast.Call(ast.Name("iter"), [_], []) as made], []):
                return made
    return None


def _functions(source: OwnSource, file: str) -> Iterator[dict[int, _Placed]]:
    """Yield the statements of each function of a file that the recording holds, by line; the innermost first."""
    stored = source.whole.get(file, StoredSource())
    for first, text in sorted(stored.functions, key=lambda each: len(each[1])):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        yield {one.line: one for one in _placed(tree, text.split("\n"), first, ())}


def _placed(node: ast.AST, lines: list[str], first: int, blocks: tuple[tuple[ast.AST, str], ...]) -> Iterator[_Placed]:
    for part, value in ast.iter_fields(node):
        inside = (*blocks, (node, part))
        for each in value if isinstance(value, list) else ():
            if isinstance(each, ast.stmt):
                body = getattr(each, "body", None)
                last = body[0].lineno - 1 if isinstance(body, list) else each.end_lineno or each.lineno
                text = lines[each.lineno - 1].strip() if last == each.lineno else ""  # how more lines stand is unknown
                yield _Placed(each, text, each.lineno + first - 1, inside)
                yield from _placed(each, lines, first, inside)

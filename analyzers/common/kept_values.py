"""What makes the same in each step, rewritten so that it is made once: a cache that never hits, a call that stays."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from diagnose.analyzers.common.idioms.once import stays
from diagnose.analyzers.common.idioms.source import Source, names_in, statement_at
from diagnose.analyzers.common.rewrite import Edits
from diagnose.model.assignments import assigned, name_of
from diagnose.model.dataflow import Frame
from diagnose.model.own_source import OwnSource

_LIBRARIES = frozenset({"torch", "np", "numpy", "math"})  # imported at the top, whatever else the file defines


class MissedCache(NamedTuple):
    """A table of results that is filled again whenever it is asked."""

    name: str
    asked: str  # the key that is looked for
    filled: str  # the key that the result is stored under
    edits: Edits

    @property
    def words(self) -> str:
        """Return what is wrong with it."""
        if self.asked == self.filled:
            return f"{self.name} has the key {self.asked} in neither step"
        return f"{self.name} is asked for {self.asked} and filled under {self.filled}"


def missed_cache(source: OwnSource, line: Frame) -> MissedCache | None:
    """Return the table that a line fills after its key was not found, None if there is none."""
    known = statement_at(source, line)
    if known is None:
        return None
    for tested in ast.walk(known.around):
        if isinstance(tested, ast.If) and any(
            node is known.statement for each in tested.body for node in ast.walk(each)
        ):
            stored = [each for part in tested.body for each in _items(part)]
            for node, table, key in _lookups(known, tested):
                mine = [each for each in stored if ast.unparse(each.value) == table]
                if mine:
                    return MissedCache(
                        table, ast.unparse(key), ast.unparse(mine[0].slice), _asked(known, node, key, mine)
                    )
    return None


def _lookups(known: Source, tested: ast.If) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """Yield what asks a table for a key so that a branch is run if it has none: the statement, the table, the key."""
    match tested.test:
        case ast.Compare(left=key, ops=[ast.NotIn()], comparators=[table]):
            yield tested, ast.unparse(table), key
        case (
            ast.Compare(left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)])
            | ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=name))
        ):
            for node in ast.walk(known.around):
                match node:
                    case ast.Assign(
                        targets=[ast.Name(id=target)],
                        value=ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *_]),
                    ) if target == name:
                        yield node, ast.unparse(table), key


def _items(node: ast.AST) -> Iterator[ast.Subscript]:
    """Yield the items that a statement assigns."""
    each = (one.target for part in ast.walk(node) for one in assigned(part))
    return (target for target in each if isinstance(target, ast.Subscript))


def _asked(known: Source, node: ast.stmt, key: ast.expr, stored: list[ast.Subscript]) -> Edits:
    """Return the lookup with the key that results are stored under, if that is another one and is known there."""
    keys = {ast.unparse(each.slice) for each in stored}
    between = range(node.lineno, stored[0].lineno)
    new = {name_of(one.target) for part in ast.walk(known.around) for one in assigned(part)
           if getattr(part, "lineno", 0) in between}  # fmt: skip
    if len(keys) != 1 or ast.unparse(key) in keys or set(names_in(stored[0].slice)) & new:
        return ()
    filled = stored[0].slice
    now = ast.unparse(filled) if isinstance(filled, ast.Tuple) else known.now({}, filled)
    return (known.edited({key: now}, node),)


def made_once(source: OwnSource, line: Frame) -> Edits:
    """Return a statement whose call is made once: before the loop, or where what it is made of gets its value."""
    known = statement_at(source, line)
    target = next(iter(getattr(known.statement, "targets", ())), None) if known is not None else None
    value = getattr(known.statement, "value", None) if known is not None else None
    if known is None or not known.is_whole or not isinstance(target, ast.Name) or not isinstance(value, ast.expr):
        return ()
    loop = known.loop(outermost=True)
    if not any(isinstance(each, ast.Call) for each in ast.walk(value)) or not stays(known, value, loop):
        return ()
    is_own = any(name.startswith("self.") for name in names_in(value))
    kept = f"self.kept_{target.id}" if is_own and loop is None else f"kept_{target.id}"
    once = known.once(value, f"{kept} = {known.now({}, value)}")
    inside = range(known.first, known.first + known.text.count("\n") + 1)
    if not once or (loop is None and (once[0].line in inside or (not once[0].line and not _is_of_libraries(value)))):
        return ()
    return (*once, known.edited({value: kept}))


def _is_of_libraries(value: ast.expr) -> bool:
    return {
        ast.unparse(each.func).partition(".")[0] for each in ast.walk(value) if isinstance(each, ast.Call)
    } <= _LIBRARIES

"""Sizes that differ from rank to rank in one step: the line from which on they do, and the draw that they come from.

Ranks that compute on tensors of other sizes take unlike times, however equal they are otherwise. The data flow of the
same steps of each rank shows the first line whose results are larger on one rank than on another. Where a value that
this line reads is drawn at random, each rank drew its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from diagnose.model.assignments import assigned
from diagnose.model.capture import Capture
from diagnose.model.dataflow import Frame, Operator
from diagnose.model.limits import MAJORITY
from diagnose.model.locations import Where
from diagnose.model.own_source import parsed_statement
from diagnose.model.shapes import num_elements
from diagnose.ranks.profile import MadeLine, RankProfile

# Methods of random and of NumPy's generators that draw a number, with the arguments that they take for one.
_DRAWS = {
    **dict.fromkeys(("random", "choice", "choices", "exponential", "geometric", "poisson"), 1),
    **dict.fromkeys(("randint", "integers", "randrange", "uniform", "normal", "gauss", "binomial", "beta"), 2),
    "triangular": 3,
}


class UnevenSizes(NamedTuple):
    """What the ranks' tensors differ by."""

    where: tuple[Where, ...]  # the draw if there is one, and the first line whose results differ
    is_drawn: bool
    share: float  # by which those of the largest rank exceed the others', mean of the steps


def made_lines(capture: Capture) -> tuple[MadeLine, ...]:
    """Return what each line of the recorded data flow makes in each of its steps, in the order of the program."""
    flow = capture.dataflow
    found: dict[tuple[int, Frame], list[Operator]] = {}
    for one in flow.operators if flow is not None else ():
        if one.place is not None and one.phase in ("forward", "other") and not one.is_view:
            found.setdefault((one.step, one.place), []).append(one)
    rows, functions = list[MadeLine](), _functions(capture) if found else {}
    for (step, place), ones in found.items():
        if sum(row.step == step for row in rows) == 64:  # of a step
            continue
        drawn = (_draw_for(functions.get(frame.file, ()), frame) for frame in ones[0].stack)
        draw = next(filter(None, drawn), None)
        made = sum(num_elements(use.shape) for one in ones for use in one.writes)
        text = capture.lines.get(place[:2], "")
        rows.append(MadeLine(step, *place, text, len(ones), made, *(draw or ("", 0, ""))))
    return tuple(rows)


class _Function(NamedTuple):
    """A function as the capture holds it, or a loop at the top of a module."""

    first: int  # line of the file
    lines: list[str]
    statements: list[ast.stmt]  # in the order of the text


def _functions(capture: Capture) -> dict[str, list[_Function]]:
    """Return the functions of each file."""
    found = dict[str, list[_Function]]()
    for file, source in capture.sources.items():
        trees = ((first, text, parsed_statement(text)) for first, text in source.functions)
        found[file] = [_Function(n, text.split("\n"), [*_statements(tree)]) for n, text, tree in trees if tree]
    return found


def _draw_for(functions: Iterable[_Function], frame: Frame) -> tuple[str, int, str] | None:
    """Return file, line and text of the draw that a statement's values come from, within its function."""
    for first, lines, inner in functions:
        if not first <= frame.line < first + len(lines):
            continue
        wanted = {name for node in inner if first + node.lineno - 1 == frame.line for name in _names(node)}
        for node in reversed(inner):
            line = first + node.lineno - 1
            targets = {name for each in assigned(node) for name in _names(each.target)}
            if line > frame.line or (line < frame.line and not targets & wanted):
                continue
            if any(_draws_number(each) for part in _heads(node) for each in ast.walk(part)):
                return frame.file, line, lines[node.lineno - 1].strip()
            wanted |= _names(node) - targets
    return None


def _draws_number(node: ast.AST) -> bool:
    """Return whether an expression draws one number at random; an array of them has the same size on all ranks."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name("torch"))):
            return False
        case ast.Call(func=ast.Attribute(attr=name), args=given, keywords=named):
            if name == "item":
                return any(map(_draws_tensor, ast.walk(node)))
            return len(given) <= _DRAWS.get(name, -1) and not any(each.arg == "size" for each in named)
        case ast.Call(func=ast.Name("int"), args=[inner]):
            return any(map(_draws_tensor, ast.walk(inner)))
    return False


def _draws_tensor(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and re.match("rand|normal|multinomial|bernoulli", node.attr) is not None


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield what a function's body consists of, in the order of the text."""
    inner = (node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node is not tree)
    yield from sorted(inner, key=lambda node: node.lineno)


def _names(node: ast.AST) -> set[str]:
    """Return the names in an expression, or in a statement's own head."""
    return {each.id for part in _heads(node) for each in ast.walk(part) if isinstance(each, ast.Name)}


def _heads(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a statement but for those in its body; of an expression itself."""
    parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return parts if isinstance(node, ast.stmt) else [node]


def uneven_sizes(ranks: Sequence[RankProfile], time_share: float) -> UnevenSizes | None:
    """Return by what the ranks' tensors differ if that explains that late ones take ``time_share`` longer."""
    steps = [{(each.file, each.line): each for each in p.made if each.step == step} for step in (0, 1) for p in ranks]
    pairs = [steps[: len(ranks)], steps[len(ranks) :]]
    pairs = [each for each in pairs if all(each)]
    made = np.array([[sum(line.made for line in rank.values()) for rank in each] for each in pairs], np.float64)
    if not made.size:
        return None
    share = float(((made.max(axis=1) - np.median(np.sort(made)[:, :-1], axis=1)) / made.mean(axis=1)).mean())
    if share <= 0 or share < MAJORITY * time_share:
        return None
    first = next((line for each in pairs if (line := _first_larger(each)) is not None), None)
    if first is None:
        return None
    made_at = Where(first.file, first.line, first.function, code=first.code or None)
    if not first.draw_line:
        return UnevenSizes((made_at,), False, share)
    return UnevenSizes((Where(first.draw_file, first.draw_line, code=first.draw_code or None), made_at), True, share)


def make_as_much(ranks: Sequence[RankProfile]) -> bool:
    """Return whether each line of the recorded data flow makes as much on all ranks."""
    each = [sorted((one.step, one.file, one.line, one.num, one.made) for one in p.made) for p in ranks]
    return bool(each[0]) and all(lines == each[0] for lines in each)


def _first_larger(ranks: Sequence[dict[tuple[str, int], MadeLine]]) -> MadeLine | None:
    """Return the first line that makes more on one rank than on another, of lines that all run if there are any."""
    largest = dict[tuple[str, int], MadeLine]()
    for lines in ranks:
        for place, line in lines.items():
            if any(place not in other or other[place].made != line.made for other in ranks):
                largest[place] = max(largest.get(place, line), line, key=lambda each: each.made)
    common = (line for place, line in largest.items() if all(place in lines for lines in ranks))
    return next(common, max(largest.values(), key=lambda each: each.made, default=None))

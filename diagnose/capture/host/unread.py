"""Which statements of a loop make what only a branch of its turn reads, or only what follows the loop.

By the source: what a statement gives values to leads to other statements, and in the end to those that have effects.
Where each of them lies in a branch that the statement is not in, the statement's work is needed in the turns that take
such a branch. How many these are, the lines are watched for. What a turn leaves to the next one is needed.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from diagnose.capture.host.flat import (
    ANY,
    OF_OBJECTS,
    Branch,
    Cell,
    Flat,
    Node,
    Place,
    TooManyError,
    scope_of,
)
from diagnose.capture.host.program import SCOPES, Function, Program, own_nodes

Chain: TypeAlias = tuple[Place, ...]
_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While


class Unread(NamedTuple):
    """Statements whose results are read in the same places only."""

    chains: tuple[Chain, ...]  # of those of which nothing else is needed, with the calls that lead to them
    first: Chain  # of the statement that asks for them
    names: tuple[str, ...]  # of the script, that they give values to
    readers: tuple[Place, ...]  # the first line of each branch that reads them; none: nothing does
    after: bool  # what follows the loop reads them: the last turn's
    early: bool  # something changes before the branch that reads them: its condition has to be tested first


def unread_results(trees: Mapping[str, ast.Module]) -> Iterator[Unread]:
    """Yield what the loops of some files make and do not always read."""
    program, seen = Program(trees), set[tuple[Chain, ...]]()
    for file, tree in trees.items():
        bodies: list[tuple[str, ast.AST]] = [("", tree)]
        bodies += [(owner, each) for name in program.methods.values() for at, owner, each in name if at == file]
        bodies += [("", each) for name in program.functions.values() for at, each in name if at == file]
        for owner, body in bodies:
            for one in _of_body(program, file, owner, body):
                if one.chains not in seen:  # a loop's results are those of the loop around it as well
                    seen.add(one.chains)
                    yield one


def _of_body(program: Program, file: str, owner: str, body: ast.AST) -> Iterator[Unread]:
    scope = scope_of(file, body, owner)
    for loop in (node for node in own_nodes(body) if isinstance(node, _Loop)):
        try:
            flat = Flat(program, scope, loop)
        except TooManyError:
            continue
        yield from _of_loop(program, flat, body, loop)


class _Uses(NamedTuple):
    """Where the statements of a loop are read."""

    branches: frozenset[Branch]
    after: bool
    early: bool = False  # something changes between a statement and a branch


_VAIN = _Uses(frozenset(), after=False)


def _of_loop(program: Program, flat: Flat, body: ast.AST, loop: _Loop) -> Iterator[Unread]:
    nodes = flat.nodes
    makers, after = _by_cell(node.gives for node in nodes), _read_after(body, loop)
    onward = _onward(nodes, makers, _escaped(program, flat, body, loop), reflects=program.reflects)
    needed = _needed(nodes, onward, makers)
    follows = _next_statement(body, loop)
    uses: dict[int, _Uses] = {}
    for i, node in enumerate(nodes):
        if i not in needed and not node.has_effect and node.gives:
            found = _uses(nodes, onward, i, after)
            is_known = found is not None and not (found.after and follows is None)
            if found is not None and is_known and _can_wait(nodes, makers, i, found):
                uses[i] = found._replace(early=any(_changes_before(nodes, i, each) for each in found.branches))
    yield from _grouped(nodes, onward, uses, [(nodes[0].chain[0][0], follows)] if follows is not None else [])


def _by_cell(cells: Iterable[Iterable[Cell]]) -> Mapping[Cell, list[int]]:
    found: dict[Cell, list[int]] = defaultdict(list)
    for i, each in enumerate(cells):
        for cell in each:
            found[cell].append(i)
    return found


def _onward(
    nodes: Sequence[Node], makers: Mapping[Cell, list[int]], escaped: set[Cell], *, reflects: bool
) -> list[list[int] | None]:
    """Return the statements that read what each one gives values to; None if more than its own turn may read that."""
    readers = _by_cell(node.reads for node in nodes)
    hides = reflects or ANY in readers

    def is_carried(cell: Cell, i: int, j: int) -> bool:
        before = (k for k in makers[cell] if k < j and nodes[k].is_whole)
        return j <= i and not any(_encloses(nodes[k].branches, nodes[j].branches) for k in before)

    def may_escape(cell: Cell) -> bool:
        return _whole(cell) in escaped or (cell[0] == OF_OBJECTS and hides)

    found: list[list[int] | None] = []
    for i, node in enumerate(nodes):
        pairs = [(cell, j) for cell in node.gives for j in readers.get(cell, ())]
        is_lost = any(map(may_escape, node.gives)) or any(is_carried(cell, i, j) for cell, j in pairs)
        found.append(None if is_lost else [j for _, j in pairs])
    return found


def _whole(cell: Cell) -> Cell:
    """Return the variable or attribute that a cell is a part of, or what it holds."""
    return cell[0], cell[1].partition("[")[0].rstrip("#")


def _needed(nodes: Sequence[Node], onward: Sequence[list[int] | None], makers: Mapping[Cell, list[int]]) -> set[int]:
    """Return the statements that each turn needs."""
    left = [i for i, node in enumerate(nodes) if (node.has_effect and not node.branches) or onward[i] is None]
    found = set[int]()
    while left:
        if (i := left.pop()) not in found:
            found.add(i)
            left += [k for cell in nodes[i].reads for k in makers.get(cell, ())]
    return found


def _encloses(outer: tuple[object, ...], inner: tuple[object, ...]) -> bool:
    return inner[: len(outer)] == outer


def _uses(
    nodes: Sequence[Node], onward: Sequence[list[int] | None], start: int, after: frozenset[Cell]
) -> _Uses | None:
    """Return the branches that read what a statement makes, None if its own turn does in any case."""
    own, branches, is_after = nodes[start].branches, set[Branch](), False
    for i in _reached(onward, start):
        node = nodes[i]
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(own, node.branches, strict=False))
        inside = node.branches[len(list(shared)) :]
        is_read_after = any(_whole(cell) in after for cell in node.gives)
        if onward[i] is None or (node.has_effect and not inside) or (is_read_after and inside):
            return None
        branches |= {inside[0]} if node.has_effect else set()
        is_after |= is_read_after
    return None if is_after and branches else _Uses(frozenset(branches), is_after)


def _reached(onward: Sequence[list[int] | None], start: int) -> Iterator[int]:
    seen, left = {start}, [start]
    while left:
        yield (i := left.pop())
        following = set(onward[i] or ()) - seen
        seen |= following
        left += following


def _can_wait(nodes: list[Node], makers: Mapping[Cell, list[int]], i: int, uses: _Uses) -> bool:
    """Return whether a turn shows before a statement whether it takes the branch, or changes nothing until then."""
    for branch in uses.branches:
        if not _changes_before(nodes, i, branch):
            continue
        test = _test_of(nodes, branch)
        left, seen = [test], set[int]()
        while left:
            k = left.pop()
            if k not in seen:
                seen.add(k)
                left += [m for cell in nodes[k].reads for m in makers[cell] if m < k]
        late = (nodes[k] for k in seen if k > i and not nodes[k].counts)
        if any(node.chain[: len(nodes[test].chain)] != nodes[test].chain for node in late):
            return False
    return True


def _test_of(nodes: Sequence[Node], branch: Branch) -> int:
    return next(k for k, node in enumerate(nodes) if branch.number in node.decides)


def _changes_before(nodes: Sequence[Node], i: int, branch: Branch) -> bool:
    """Return whether something has an effect between a statement and the condition of a branch."""
    test = _test_of(nodes, branch)
    effects = (node for node in nodes[i + 1 : test] if node.has_effect and node.is_real and not node.decides)
    return any(_encloses(node.branches, nodes[test].branches) for node in effects)


def _grouped(
    nodes: Sequence[Node], onward: Sequence[list[int] | None], uses: Mapping[int, _Uses], follows: list[Place]
) -> Iterator[Unread]:
    """Yield the statements that are read in the same places, each by the call that leads to it if that goes whole."""
    whole = Counter(part for node in nodes if node.is_real for part in _parts(node.chain))
    groups: dict[tuple[_Uses, Place | None], list[int]] = defaultdict(list)
    for i, use in uses.items():
        if nodes[i].is_real:
            groups[use, nodes[i].chain[0] if use == _VAIN else None].append(i)
    for (use, _), members in groups.items():
        of_use = (i for i, other in uses.items() if other in (use, _VAIN) and nodes[i].is_real)
        mine = Counter(part for i in of_use for part in _parts(nodes[i].chain))
        asking: dict[Chain, Chain] = {}  # by statement
        for i in members:
            chain = next((part for part in _parts(nodes[i].chain) if mine[part] == whole[part]), None)
            if chain is not None:
                asking[chain] = min(_asking(nodes, onward, i, chain), asking.get(chain, chain), key=len)
        read = [*(branch.place for branch in sorted(use.branches)), *(follows if use.after else ())]
        for asked in _by_caller(asking):
            names = _names(nodes[i] for i in members if nodes[i].chain in asked.values())
            yield Unread(tuple(asked), min(asked.values()), names, tuple(dict.fromkeys(read)), use.after, use.early)


def _parts(chain: Chain) -> list[Chain]:
    return [chain[:n] for n in range(1, len(chain) + 1)]


def _by_caller(asking: Mapping[Chain, Chain]) -> Iterable[Mapping[Chain, Chain]]:
    """Return statements with what asks for each, apart by what calls that."""
    found: dict[Chain, dict[Chain, Chain]] = defaultdict(dict)
    for chain, first in asking.items():
        found[first[:-1]][chain] = first
    return found.values()


def _names(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the names of statements; of a dictionary not its parts as well."""
    names = dict.fromkeys(name for node in nodes for name in node.names)
    return tuple(name for name in names if name.partition("[")[0] == name or name.partition("[")[0] not in names)


def _asking(nodes: Sequence[Node], onward: Sequence[list[int] | None], start: int, chain: Chain) -> Chain:
    """Return the outermost of the calls that lead to a statement whose own result its work goes into."""
    into = (nodes[i] for i in _reached(onward, start))
    own = (node.chain for node in into if node.is_real and not node.has_effect and _encloses(node.chain, chain))
    return min([chain, *own], key=len)


def _read_after(body: ast.AST, loop: _Loop) -> frozenset[Cell]:
    """Return the variables and attributes that what follows a loop reads."""
    end, found = loop.end_lineno or loop.lineno, set[Cell]()
    for node in own_nodes(body):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and node.lineno > end:
            found.add((0, node.id) if isinstance(node, ast.Name) else (OF_OBJECTS, node.attr))
    return frozenset(found)


def _escaped(program: Program, flat: Flat, body: ast.AST, loop: _Loop) -> set[Cell]:
    """Return the variables and attributes that something else may read: other functions, and loops around."""
    found, inside = set[Cell](), set(ast.walk(loop))
    loops = (set(ast.walk(each)) for each in own_nodes(body) if isinstance(each, _Loop) and each is not loop)
    around = set[ast.AST]().union(*(each for each in loops if loop in each))
    last = loop.end_lineno or loop.lineno
    for node in own_nodes(body):
        if isinstance(node, ast.Global | ast.Nonlocal):
            found |= {(0, name) for name in node.names}
        if node in inside:
            continue
        if isinstance(node, SCOPES):
            found |= {(0, each.id) for each in ast.walk(node) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.Name) and node in around and node.lineno <= last:
            found.add((0, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.lineno <= last:
            found.add((OF_OBJECTS, node.attr))
    functions = set(_functions(program)) - {body}
    if isinstance(body, ast.Module):
        found |= {(0, each.id) for one in functions for each in ast.walk(one) if isinstance(each, ast.Name)}
    others = (each for one in functions - flat.functions for each in ast.walk(one))
    return found | {
        (OF_OBJECTS, each.attr) for each in others if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load)
    }


def _functions(program: Program) -> Iterator[Function]:
    for found in program.functions.values():
        yield from (each for _, each in found)
    for methods in program.methods.values():
        yield from (each for _, _, each in methods)


def _next_statement(body: ast.AST, loop: ast.stmt) -> int | None:
    """Return the line of the statement that follows a loop, in its block or in those around it."""
    for node in (body, *own_nodes(body)):
        for part in ("body", "orelse", "finalbody"):
            block = getattr(node, part, None)
            if not isinstance(block, list) or loop not in block:
                continue
            if loop is not block[-1]:
                return int(block[block.index(loop) + 1].lineno)
            return _next_statement(body, node) if isinstance(node, ast.With | ast.If | ast.Try) else None
    return None

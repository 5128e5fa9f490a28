"""Which statements of a loop make what only a branch of its turn reads, or only what follows the loop.

By the source: what a statement gives values to leads to other statements, and in the end to those that have effects.
Where each of them lies in a branch that the statement is not in, the statement's work is needed in the turns that take
such a branch. How many these are, the lines are watched for. What a turn leaves to the next one is needed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from diagnose.capture.host.flat import (
    ANY,
    OF_OBJECTS,
    Branch,
    Cell,
    Flat,
    Function,
    Node,
    Place,
    Program,
    TooManyError,
    last_name,
    own_nodes,
    scope_of,
)

Chain: TypeAlias = tuple[Place, ...]
_LOOPS = ast.For | ast.AsyncFor | ast.While


class Unread(NamedTuple):
    """Statements whose results are read in the same places only."""

    chains: tuple[Chain, ...]  # of those of which nothing else is needed, with the calls that lead to them
    first: Chain  # of the statement that asks for them
    names: tuple[str, ...]  # of the script, that they give values to
    readers: tuple[Place, ...]  # the first line of each branch that reads them; none: nothing does
    after: bool  # what follows the loop reads them: the last turn's


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
    scope = scope_of(program, file, body, owner)
    for loop in (node for node in own_nodes(body) if isinstance(node, _LOOPS)):
        try:
            flat = Flat(program, scope, loop)
        except TooManyError:
            continue
        yield from _of_loop(program, flat, body, loop)


class _Uses(NamedTuple):
    """Where the statements of a loop are read."""

    branches: frozenset[Branch]
    after: bool


_VAIN = _Uses(frozenset(), after=False)


def _of_loop(program: Program, flat: Flat, body: ast.AST, loop: ast.For | ast.AsyncFor | ast.While) -> Iterator[Unread]:
    nodes = flat.nodes
    readers: dict[Cell, list[int]] = defaultdict(list)
    makers: dict[Cell, list[int]] = defaultdict(list)
    for i, node in enumerate(nodes):
        for cell in node.reads:
            readers[cell].append(i)
        for cell in node.gives:
            makers[cell].append(i)
    escaped, after = _outside(program, flat, body, loop)
    follows = _next_statement(body, loop)

    def goes_on(i: int) -> list[int] | None:
        """Return the statements that read what one gives values to; None if more than this turn may read it."""
        found = list[int]()
        for cell in nodes[i].gives:
            name = cell[1].partition("[")[0].rstrip("#")
            if (cell[0], name) in escaped or (cell[0] == OF_OBJECTS and (program.reflects or readers[ANY])):
                return None
            for j in readers[cell]:
                set_before = (k for k in makers[cell] if k < j and nodes[k].is_whole)
                if j <= i and not any(_encloses(nodes[k].branches, nodes[j].branches) for k in set_before):
                    return None
                found.append(j)
        return found

    needed = [node.has_effect and not node.branches for node in nodes]
    onward = [goes_on(i) for i in range(len(nodes))]
    left = [i for i, node in enumerate(nodes) if needed[i] or (onward[i] is None)]
    needed = [False] * len(nodes)
    while left:
        i = left.pop()
        if not needed[i]:
            needed[i] = True
            left += [k for cell in nodes[i].reads for k in makers[cell]]
    uses: dict[int, _Uses] = {}
    for i, node in enumerate(nodes):
        if not needed[i] and not node.has_effect and node.gives:
            found = _uses(nodes, onward, i, after if follows is not None else frozenset(), after)
            if found is not None and _can_wait(nodes, makers, i, found):
                uses[i] = found
    yield from _grouped(nodes, uses, (nodes[0].chain[0][0], follows) if follows is not None else None)


def _encloses(outer: tuple[Branch, ...], inner: tuple[Branch, ...]) -> bool:
    return inner[: len(outer)] == outer


def _uses(
    nodes: list[Node], onward: list[list[int] | None], start: int, known: frozenset[str], after: frozenset[str]
) -> _Uses | None:
    """Return the branches that read what a statement makes, None if its own turn does in any case."""
    own, branches, is_after = nodes[start].branches, set[Branch](), False
    seen, left = {start}, [start]
    while left:
        i = left.pop()
        node, following = nodes[i], onward[i]
        if following is None:
            return None
        if node.has_effect:
            common = next((n for n, (a, b) in enumerate(zip(own, node.branches, strict=False)) if a != b), min(len(own), len(node.branches)))
            if common == len(node.branches):
                return None
            branches.add(node.branches[common])
        names = {cell[1].partition("[")[0] for cell in node.gives if cell[0] == 0}
        if names & after:
            if not names <= known | {name for name in names if name not in after} or node.branches[len(own) :]:
                return None
            is_after = True
        left += [j for j in following if j not in seen]
        seen.update(following)
    if is_after and branches:
        return None
    return _Uses(frozenset(branches), is_after)


def _can_wait(nodes: list[Node], makers: Mapping[Cell, list[int]], i: int, uses: _Uses) -> bool:
    """Return whether a turn shows before a statement whether it takes the branch, or changes nothing until then."""
    for branch in uses.branches:
        test = next((k for k, node in enumerate(nodes) if branch.number in node.decides), None)
        if test is None:
            return False
        between = (node for node in nodes[i + 1 : test] if node.has_effect and node.is_real and not node.gives)
        inside = nodes[i].chain[0]
        if not any(node.chain[0] != inside and not node.branches for node in between):
            continue
        left, seen = [test], set[int]()
        while left:
            k = left.pop()
            if k not in seen:
                seen.add(k)
                left += [m for cell in nodes[k].reads for m in makers[cell]]
        late = (k for k in seen if k > i and k != test and not nodes[k].counts)
        if any(nodes[k].chain[0] != nodes[test].chain[0] for k in late):
            return False
    return True


def _grouped(nodes: list[Node], uses: Mapping[int, _Uses], follows: Place | None) -> Iterator[Unread]:
    """Yield the statements that are read in the same places, each by the call that leads to it if that goes whole."""
    whole: dict[Chain, int] = defaultdict(int)
    for node in (node for node in nodes if node.is_real):
        for n in range(1, len(node.chain) + 1):
            whole[node.chain[:n]] += 1
    groups: dict[tuple[_Uses, Place | None], list[int]] = defaultdict(list)
    for i, use in uses.items():
        groups[use, nodes[i].chain[0] if use == _VAIN else None].append(i)
    for (use, _), members in groups.items():
        mine: dict[Chain, int] = defaultdict(int)
        for i in (i for i, other in uses.items() if other in (use, _VAIN) and nodes[i].is_real):
            for n in range(1, len(nodes[i].chain) + 1):
                mine[nodes[i].chain[:n]] += 1
        real = [nodes[i] for i in members if nodes[i].is_real]
        every = ([node.chain[:n] for n in range(1, len(node.chain) + 1)] for node in real)
        found = (next((chain for chain in each if mine[chain] == whole[chain]), ()) for each in every)
        chains = tuple(dict.fromkeys(filter(None, found)))
        asking = [node for node in real if any(chain[: len(node.chain)] == node.chain for chain in chains)]
        if not asking:
            continue
        first = min((node.chain for node in asking), key=len)
        names = dict.fromkeys(name for node in asking if len(node.chain) == len(first) for name in node.names)
        named = tuple(name for name in names if name.partition("[")[0] == name or name.partition("[")[0] not in names)
        read = [branch.place for branch in sorted(use.branches)] + ([follows] if use.after and follows else [])
        yield Unread(chains, first, named, tuple(dict.fromkeys(read)), use.after)


def _outside(
    program: Program, flat: Flat, body: ast.AST, loop: ast.For | ast.AsyncFor | ast.While
) -> tuple[set[Cell], frozenset[str]]:
    """Return what may be read elsewhere, and the variables that what follows the loop reads."""
    escaped, after = {(OF_OBJECTS, "")}, set[str]()
    end = loop.end_lineno or loop.lineno
    inside = {id(node) for node in ast.walk(loop)}
    loops = (set(map(id, ast.walk(each))) for each in own_nodes(body) if isinstance(each, _LOOPS) and each is not loop)
    around = set[int]().union(*(each for each in loops if id(loop) in each))
    for node in own_nodes(body):
        if isinstance(node, Function | ast.Lambda | ast.ClassDef) and id(node) not in inside:
            escaped |= {(0, each.id) for each in ast.walk(node) if isinstance(each, ast.Name)}
        if isinstance(node, ast.Global | ast.Nonlocal):
            escaped |= {(0, name) for name in node.names}
        if id(node) in inside or not isinstance(getattr(node, "ctx", None), ast.Load):
            continue
        if isinstance(node, ast.Name):
            if node.lineno > end:
                after.add(node.id)
            elif id(node) in around:
                escaped.add((0, node.id))
        if isinstance(node, ast.Attribute):
            escaped.add((OF_OBJECTS, node.attr))
    if isinstance(body, ast.Module):
        escaped |= {(0, each.id) for function in _functions(program) for each in ast.walk(function) if isinstance(each, ast.Name)}
    for function in set(_functions(program)) - flat.functions - {body}:
        loaded = (each for each in ast.walk(function) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load))
        escaped |= {(OF_OBJECTS, each.attr) for each in loaded}
    return escaped, frozenset(after)


def _functions(program: Program) -> Iterator[Function]:
    for found in program.functions.values():
        yield from (each for _, each in found)
    for methods in program.methods.values():
        yield from (each for _, _, each in methods)


def _next_statement(body: ast.AST, loop: ast.stmt) -> int | None:
    """Return the line of the statement that follows a loop in its block."""
    for node in (body, *own_nodes(body)):
        for part in ("body", "orelse", "finalbody"):
            block = getattr(node, part, None)
            if isinstance(block, list) and loop in block and loop is not block[-1]:
                return int(block[block.index(loop) + 1].lineno)
    return None

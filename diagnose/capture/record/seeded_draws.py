"""Lines that draw random numbers, without those whose generator is made in the same call from a seed.

``np.random.default_rng(self.seeds[i])`` gives a sample the same numbers in each epoch and in each process: it draws
nothing that another one could draw too. A generator that is kept, or made without a seed, does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from diagnose.text.patterns import lazy_pattern
from diagnose.text.random_draws import RANDOM_DRAW

__all__ = ["DrawLines", "draw_lines"]

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
# What makes a generator of its first argument, by the last part of its name.
_MADE_OF_A_SEED = frozenset(
    {"default_rng", "RandomState", "Random", "PCG64", "PCG64DXSM", "Philox", "MT19937", "SFC64", "SeedSequence"}
)
_OF_TORCH, _OF_NUMPY = "torch.Generator", ("np.random.Generator", "numpy.random.Generator")
# Arguments that are no seed of the sample: a generator that is kept, and what differs from process to process.
_SHARED = lazy_pattern(
    r"(?:rng|random|generator)\b|\b(?:initial_seed|seed|get_worker_info|urandom|getpid|time|time_ns|uuid\d)\("
    r"|worker_(?:info|id|seed)\b",
)


class DrawLines(NamedTuple):
    """Lines of a source file, from 1."""

    draws: frozenset[int]  # from state that is shared, or that no seed set
    seeded: frozenset[int]  # by a seed alone: from a generator that the same call makes of it


def draw_lines(tree: ast.AST, lines: Sequence[str]) -> DrawLines:
    """Return the lines whose text draws random numbers, by where the numbers come from."""
    left = [line.encode() for line in lines]
    for node in _harmless(tree):
        _blank(left, node)
    drawn = {number for number, line in enumerate(lines, 1) if RANDOM_DRAW.search(line.partition("#")[0])}
    still = {
        number for number in drawn if RANDOM_DRAW.search(left[number - 1].partition(b"#")[0].decode(errors="replace"))
    }
    return DrawLines(frozenset(still), frozenset(drawn - still))


def _harmless(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield what is called where a generator is made from a seed or draws by it, and the types of parameters."""
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            seeded = _seeded_names(node)
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call):
                    yield from _called(inner, seeded)
                elif isinstance(inner, ast.Assign) and _is_of(inner.targets[0], seeded):
                    yield from (
                        each.func for each in ast.walk(inner.value) if isinstance(each, ast.Call) and _is_torchs(each)
                    )
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation


def _called(call: ast.Call, seeded: frozenset[str]) -> Iterator[ast.expr]:
    """Yield what a call calls, if that draws from nothing but a seed."""
    maker = call.func.value if isinstance(call.func, ast.Attribute) else None
    if _is_seeded(call):
        yield maker.func if isinstance(maker, ast.Call) else call.func
        return
    passed = [each.value for each in call.keywords if each.arg == "generator"]
    if (isinstance(maker, ast.Name) and maker.id in seeded) or any(_is_of(each, seeded) for each in passed):
        yield call.func


def _is_of(value: ast.expr, seeded: frozenset[str]) -> bool:
    return value.id in seeded if isinstance(value, ast.Name) else _is_seeded(value)


def _seeded_names(function: _Function) -> frozenset[str]:
    """Return the names of a function that hold nothing but generators that it makes from seeds."""
    stored: dict[str, list[ast.expr | None]] = {}
    seeds: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            stored.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name):
            stored.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, ast.Call) and (name := _seeds(node)):
            seeds.add(name)
    bound = [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    other = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    other |= {name for each in ast.walk(function) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
    return frozenset(
        name
        for name, values in stored.items()
        if bound.count(name) == len(values)
        and name not in other
        and all(_is_seeded(value) or (_is_torchs(value) and name in seeds) for value in values)
    )


def _seeds(call: ast.Call) -> str:
    """Return the name whose generator a call gives a seed, "" where it gives none."""
    func = call.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.attr == "manual_seed":
        return func.value.id if _has_seed(call) else ""
    return ""


def _is_seeded(value: ast.expr | None) -> bool:
    """Return whether an expression makes a generator, or what one is made of, from a seed."""
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr == "manual_seed":
        return _is_torchs(value.func.value) and _has_seed(value)
    name = ast.unparse(value.func)
    return (name.rpartition(".")[2] in _MADE_OF_A_SEED or name in _OF_NUMPY) and _has_seed(value)


def _has_seed(call: ast.Call) -> bool:
    """Return whether the arguments are a seed: given, not None, and no state that is shared."""
    given = [*call.args, *(each.value for each in call.keywords)]
    return bool(given) and all(map(_is_seed, given))


def _is_seed(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return value.value is not None
    text = ast.unparse(value)
    return _is_seeded(value) or not (RANDOM_DRAW.search(text) or _SHARED.search(text))


def _is_torchs(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == _OF_TORCH


def _blank(lines: list[bytes], node: ast.expr) -> None:
    """Put spaces in the place of an expression; its columns are those of UTF-8."""
    last, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    for number in range(node.lineno, last + 1):
        line = lines[number - 1]
        begin = node.col_offset if number == node.lineno else 0
        stop = end if number == last else len(line)
        lines[number - 1] = line[:begin] + b" " * (stop - begin) + line[stop:]

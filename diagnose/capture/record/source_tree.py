"""What the tree of a source file shows: loops but that of the training, samples' random draws, tests in lists."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from diagnose.capture.record.list_lookups import list_lookups
from diagnose.capture.record.seeded_draws import draw_lines
from diagnose.text.patterns import lazy_pattern

__all__ = ["SourceTree", "source_tree"]

MAX_CHARACTERS = 1_000_000  # a tree takes some fifty times the memory of its text
MAX_DRAWS = 100
_TRAINS = lazy_pattern(r"\.(backward|zero_grad)\(|autograd\.grad\(")
_TRANSFORM = lazy_pattern(
    r"\b(?:transforms|T|v2|A)\.(?:Random[A-Z]\w*|(?:Rand|Auto)Augment|ColorJitter|TrivialAugmentWide|AugMix"
    r"|GaussianNoise|ElasticTransform)\("
    r"|\bA\.(?:\w*Flip|Rotate|ShiftScaleRotate|Affine|GaussNoise|CoarseDropout|HueSaturationValue)\("
)
_GIVEN = lazy_pattern(r"transform|augment")  # arguments by which a dataset is given a function for its samples
# Methods of datasets, samplers of augmentations and transforms, which run for each sample.
_PER_SAMPLE = frozenset({"__getitem__", "__getitems__", "__iter__", "__call__"})
_ONCE = frozenset({"__init__", "__post_init__", "__new__", "setup", "prepare"})


class SourceTree(NamedTuple):
    """Lines of a source file, from 1."""

    loops: list[tuple[int, int]]  # the first and last line of each without a backward pass
    draws: list[int]  # of random numbers: by methods of classes that work on samples, and transforms that do
    seeded: list[int]  # draws that depend on nothing but a seed, in any function
    lookups: list[Mapping[str, object]]  # tests of membership in a list that is built once
    statements: list[tuple[int, int]]  # the first and last line of each on several lines; of one with a body its head


def source_tree(lines: Sequence[str]) -> SourceTree:
    """Return what the tree of a source file shows; nothing of what is no Python."""
    if sum(map(len, lines)) > MAX_CHARACTERS:
        return SourceTree([], [], [], [], [])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes: the script had them already
            tree = ast.parse("\n".join(line.rstrip("\n") for line in lines))
    except (SyntaxError, ValueError, RecursionError):
        return SourceTree([], [], [], [], [])
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.While)]
    found = [(loop.lineno, loop.body[-1].end_lineno or loop.lineno) for loop in loops]
    drawn = draw_lines(tree, lines)
    draws = drawn.draws & set(_of_samples(tree))
    draws |= {number for number, line in enumerate(lines, 1) if _TRANSFORM.search(line.partition("#")[0])}
    return SourceTree(
        [(first, last) for first, last in found if not any(map(_TRAINS.search, lines[first:last]))],
        sorted(draws)[:MAX_DRAWS],
        sorted(drawn.seeded)[:MAX_DRAWS],
        list_lookups(tree, lines),
        list(_long_statements(tree)),
    )


def _long_statements(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of statements on several lines, of their heads alone where they have a body."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if last > node.lineno and not isinstance(node, ast.Try):
                yield node.lineno, last


def _of_samples(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of the methods that run for each sample, and of the methods and functions that they may call."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    left: list[ast.AST] = list(_methods_of_samples(tree))
    left += (functions[name] for name in _given(tree) if name in functions)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
        called = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & functions.keys()
        left += [functions.pop(name) for name in sorted(called)]


def _methods_of_samples(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            if _PER_SAMPLE & {each.name for each in methods}:
                yield from (each for each in methods if each.name not in _ONCE)


def _given(tree: ast.Module) -> Iterator[str]:
    """Yield the names that are passed as what transforms samples."""
    for word in ast.walk(tree):
        if isinstance(word, ast.keyword) and isinstance(word.value, ast.Name) and _GIVEN.search(word.arg or ""):
            yield word.value.id

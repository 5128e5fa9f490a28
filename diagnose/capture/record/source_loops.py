"""The `for` and `while` statements of a source file, by their lines; that of the training itself is left out."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence

__all__ = ["inner_loops"]

MAX_CHARACTERS = 1_000_000  # a tree takes some fifty times the memory of its text
_TRAINS = re.compile(r"\.(backward|zero_grad)\(|autograd\.grad\(")


def inner_loops(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first and last line of each loop without a backward pass; none of what is no Python."""
    if sum(map(len, lines)) > MAX_CHARACTERS:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes: the script had them already
            tree = ast.parse("\n".join(line.rstrip("\n") for line in lines))
    except (SyntaxError, ValueError, RecursionError):
        return []
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.While)]
    found = [(loop.lineno, loop.body[-1].end_lineno or loop.lineno) for loop in loops]
    return [(first, last) for first, last in found if not any(map(_TRAINS.search, lines[first:last]))]

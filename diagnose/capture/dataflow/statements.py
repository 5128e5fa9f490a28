"""Returns the first line of the statement that a line of a source file belongs to."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache

__all__ = ["statement_line"]


def statement_line(file: str, line: int) -> int:
    """Return the first line of the innermost statement at a line; the line itself where the source is not known."""
    return _first_lines(file).get(line, line)


@lru_cache(maxsize=256)
def _first_lines(file: str) -> dict[int, int]:
    """Return the first line of the statement at each line that is not the first of one."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    first: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            for line in range(node.lineno, _last_line(node) + 1):
                first[line] = max(first.get(line, 0), node.lineno)
    return first


def _last_line(node: ast.stmt) -> int:
    """Return the last line of a statement; of one that contains others that of its head."""
    inner = [
        each for each in ast.iter_child_nodes(node) if isinstance(each, (ast.stmt, ast.excepthandler, ast.match_case))
    ]
    if not inner:
        return node.end_lineno or node.lineno
    first = inner[0].pattern.lineno if isinstance(inner[0], ast.match_case) else inner[0].lineno
    return max(first - 1, node.lineno)

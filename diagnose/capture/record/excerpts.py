"""The lines around an expression of the script's, as a diff of it needs them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from diagnose.text.masking import mask_code

__all__ = ["Excerpt", "excerpt_of"]

CONTEXT = 3  # lines before and after an expression, as a unified diff has them


class Excerpt(NamedTuple):
    """An expression's place in its lines, as ``CallRecord`` has it; columns are in characters."""

    first: int  # number of the first line
    lines: list[str]
    begin: tuple[int, int]  # line and column
    end: tuple[int, int]
    ends_file: bool  # its last line has no end of its own


def excerpt_of(node: ast.expr, lines: Sequence[str]) -> Excerpt | None:
    """Return an expression of a file with the lines around it; None where one of these holds a credential."""
    end = node.end_lineno or node.lineno
    first, last = max(1, node.lineno - CONTEXT), min(len(lines), end + CONTEXT)
    shown = [line.rstrip("\r\n") for line in lines[first - 1 : last]]
    if any(mask_code(line) != line for line in shown):
        return None
    return Excerpt(
        first,
        shown,
        (node.lineno, _characters(lines[node.lineno - 1], node.col_offset)),
        (end, _characters(lines[end - 1], node.end_col_offset or 0)),
        last == len(lines),
    )


def _characters(line: str, offset: int) -> int:
    """Return the column in characters of an offset in bytes of UTF-8, as syntax trees have it."""
    return len(line.encode("utf-8")[:offset].decode("utf-8", "replace"))

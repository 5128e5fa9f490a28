"""What a terminal shows: small pictures made of characters, and how texts are laid out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Literal

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from diagnose.model.charts import Gap, Picture
from diagnose.model.locations import Where
from diagnose.text.plain_text import whole_line

_LEVELS = " ▁▂▃▄▅▆▇█"
_SHADES = "·░▒▓█"
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def depth_columns(depth: Sequence[tuple[int, int]], step_ns: int, columns: int) -> list[float]:
    """Return the mean depth within each of ``columns`` equal slices of the step; depth is 0 before its first point."""
    totals = [0.0] * columns
    ends = [start for start, _ in depth[1:]] + [step_ns]
    for (start, value), end in zip(depth, ends, strict=False):
        for column, share in _slices(start, end, step_ns, columns):
            totals[column] += value * share
    return totals


def idle_columns(gaps: Sequence[Gap], step_ns: int, columns: int) -> list[dict[str, float]]:
    """Return, for each slice of the step, the share of it that every cause left idle."""
    found: list[dict[str, float]] = [{} for _ in range(columns)]
    for gap in gaps:
        for column, share in _slices(gap.start_ns, gap.end_ns, step_ns, columns):
            found[column][gap.cause] = found[column].get(gap.cause, 0.0) + share
    return found


def cause_shares(picture: Picture) -> dict[str, float]:
    """Return the share of the pictured step that each cause takes, the largest first."""
    shares: dict[str, float] = {}
    for gap in picture.gaps:
        shares[gap.cause] = shares.get(gap.cause, 0.0) + (gap.end_ns - gap.start_ns) / picture.step_ns
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _slices(start: int, end: int, whole: int, columns: int) -> list[tuple[int, float]]:
    """Return (column, share of that column covered) for the part of the interval that lies within the step."""
    if whole <= 0:
        return []
    low, high = max(start, 0) * columns / whole, min(end, whole) * columns / whole
    first, last = math.floor(low), min(math.ceil(high), columns)
    return [(c, min(high, c + 1) - max(low, c)) for c in range(first, last) if min(high, c + 1) > max(low, c)]


def sparkline(values: Sequence[float]) -> str:
    """Return one character a value, blank for zero; heights are logarithmic, since depths of 1 and 300 both matter."""
    top = max(values, default=0.0)
    if top <= 0:
        return " " * len(values)
    scale = (len(_LEVELS) - 1) / math.log1p(top)
    return "".join(_LEVELS[math.ceil(math.log1p(v) * scale - 1e-9)] if v > 0 else " " for v in values)


def shades(busy: Sequence[float]) -> str:
    """Return one character a share: a full block for busy, a dot for idle."""
    return "".join(_SHADES[round(min(max(share, 0.0), 1.0) * (len(_SHADES) - 1))] for share in busy)


def bar(share: float, width: int) -> str:
    """Return a horizontal bar of ``share`` of ``width`` cells, exact to an eighth of a cell."""
    if not math.isfinite(share) or share <= 0:
        return ""
    eighths = max(1, round(min(share, 1.0) * width * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def cells(shares: Sequence[float], width: int) -> list[int]:
    """Return whole cells for shares that sum to 1: they sum to ``width``, and nothing present has none."""
    total = sum(shares)
    if total <= 0:
        return [0] * len(shares)
    exact = [max(share, 0.0) / total * width for share in shares]
    found = [max(1, math.floor(value)) if value > 0 else 0 for value in exact]
    while sum(found) != width:
        step = 1 if sum(found) < width else -1
        order = sorted(range(len(found)), key=lambda i: step * (found[i] - exact[i]))
        chosen = next((i for i in order if exact[i] > 0 and found[i] + step > 0), None)
        if chosen is None:
            break
        found[chosen] += step
    return found


# What the parts of the text have in common.

UNIT = r"(?<=\d) (?=(?:%|×|ns|µs|ms|s)(?:\W|$))"
NO_BREAK = "\ufdd0"  # becomes a space once lines are broken: rich breaks them at U+00A0 too


def title(words: str, aside: str = "") -> RenderableType:
    """Return a heading after an empty line, and in the same line what it is of."""
    return Padding(Text.assemble((words, "bold"), (aside and f"  {aside}", "dim")), (1, 0, 0, 0))


def note(words: str, style: str = "dim", *, indent: int = 2) -> RenderableType:
    """Return a text whose lines are all indented."""
    return Padding(Text(words, style), (0, 0, 0, indent))


def listed(mark: str, *parts: RenderableType, width: int = 4) -> Table:
    """Return parts below each other, the first one behind a mark."""
    grid = Table.grid()
    grid.add_column(width=width)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {mark}", "bold" if mark != "-" else ""), Group(*parts))
    return grid


def table(columns: str) -> Table:
    """Return a table without lines: "l" or "r" is a column that stands on that side, "*" one that breaks lines."""
    grid = Table.grid(padding=(0, 2))
    for column in columns:
        overflow: Literal["fold", "ellipsis"] = "fold" if column == "*" else "ellipsis"
        grid.add_column(justify="right" if column == "r" else "left", no_wrap=column != "*", overflow=overflow)
    return grid


def command(prompt: str, words: str) -> RenderableType:
    """Return a command on one line of any length, since a line break would make two commands of it."""
    return Group(Text.assemble((prompt, "dim"), (whole_line(words), "bold"), no_wrap=True, overflow="ignore"))


def unbroken(text: str) -> str:
    """Return a text whose numbers stay with their units where it is broken into lines."""
    return re.sub(UNIT, NO_BREAK, text)


def padded(text: str, width: int) -> str:
    """Return a text filled up to ``width`` columns; a Chinese character takes two."""
    return text + " " * max(width - cell_len(text), 0)


def place_style(where: Where) -> Style:
    """Return the style of a place: a link to the file, where its path is known in full; terminals show it as OSC 8."""
    file = where.file or ""
    link = PurePosixPath(file).as_uri() if file.startswith("/") and "\0" not in file else None
    return Style.parse("cyan") + Style(link=link)

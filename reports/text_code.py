"""The times by phase, module and function for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diagnose.model.charts import CodeTime, CodeTimes
from diagnose.reports.code_tables import Column, aside, by_class, cell, columns, label, short
from diagnose.reports.language import tr, translated
from diagnose.text.plain_text import middle, one_line

__all__ = ["tables"]

_MAX_ROWS = 8
_MIN_NAME_WIDTH = 24  # columns: of fewer a name does not show what it is
_MAX_NAME_WIDTH = 44
_GAP = 2


def tables(code: CodeTimes, width: int) -> Iterator[RenderableType]:
    """Yield a table by phase, module and function each, as far as the recording shows them, and what they rest on."""
    if code.phases:
        yield _title(tr("Time by phase"))
        yield _table(code.phases, [translated(row.name) for row in code.phases], width)
    if code.modules:
        modules = by_class(code.modules, _MAX_ROWS)
        yield _title(tr("Time by module"), tr("modules of one class together"))
        yield _table(modules, ["  " * row.depth + label(row) for row in modules], width)
    if code.functions:
        functions = code.functions[:_MAX_ROWS]
        yield _title(tr("Time by function"), tr("of the script's own files"))
        yield _table(functions, [short(row) for row in functions], width)
    if words := aside(code):
        yield Padding(Text(words, style="dim"), (0 if code.phases or code.functions else 1, 0, 0, 2))


def _title(title: str, detail: str = "") -> RenderableType:
    return Padding(Text.assemble((title, "bold"), (f"  {detail}" if detail else "", "dim")), (1, 0, 0, 0))


def _table(rows: Sequence[CodeTime], names: Sequence[str], width: int) -> RenderableType:
    """Return one line a row: its name, and as many columns of numbers as fit beside it."""
    texts = {column: [cell(row, column.field) for row in rows] for column in columns(rows) if column.brief}
    wide = {column: _GAP + max(map(cell_len, (column.brief, *cells))) for column, cells in texts.items()}
    room, shown = width - _GAP, set[Column]()
    for column in sorted(texts, key=lambda column: column.order):
        if room - wide[column] >= _MIN_NAME_WIDTH:
            shown.add(column)
            room -= wide[column]
    texts = {column: cells for column, cells in texts.items() if column in shown}
    grid = Table.grid(padding=(0, _GAP))
    grid.add_column(no_wrap=True)
    for _ in texts:
        grid.add_column(justify="right", no_wrap=True)
    grid.add_row("", *(Text(column.brief, style="dim") for column in texts))
    for at, name in enumerate(names):
        indent = len(name) - len(name.lstrip())
        text = " " * indent + middle(one_line(name.lstrip()), min(room, _MAX_NAME_WIDTH) - indent)
        grid.add_row(Text(f"  {text}"), *(cells[at] for cells in texts.values()))
    return grid

"""The times by phase, module and function: what their columns are, and the tables of a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from diagnose.model.charts import CodeTime, CodeTimes
from diagnose.reports.format import duration, percent
from diagnose.reports.language import tr, translated
from diagnose.reports.text_charts import note, table, title
from diagnose.text.plain_text import middle, one_line

MAX_CODE_ROWS = 8


class Column(NamedTuple):
    """A column of numbers."""

    field: str  # of CodeTime
    title: str
    brief: str  # the title in a terminal
    order: int  # in which a terminal takes them, as far as there is room


def columns(rows: Sequence[CodeTime]) -> list[Column]:
    """Return the columns that have something to show."""
    on_device = any(row.device_ns is not None for row in rows)
    sampled = not any(row.host_ns for row in rows)
    host, device, backward = tr("Host"), tr("Device"), tr("Backward")
    every = (
        Column("calls", tr("Calls a step"), tr("Calls"), 3),
        Column("host_ns", host, host, 1),
        Column("self_ns", tr("Self"), tr("Self"), 1 if sampled else 5),
        Column("device_ns", device, device, 2),
        Column("backward_ns", tr("Backward on the host"), "" if on_device else backward, 4),
        Column("backward_device_ns", tr("Backward on the device"), backward, 4),
        Column("share", tr("Share"), tr("Share"), 0),
    )
    same = all(row.self_ns == row.host_ns for row in rows)
    filled = [column for column in every if any(getattr(row, column.field) for row in rows)]
    return [column for column in filled if column.field != "self_ns" or not same]


def cell(row: CodeTime, field: str) -> str:
    """Return a number of a row as text, "–" for none."""
    value = getattr(row, field)
    if not value:
        return "–"
    if field == "share":
        return percent(value)
    return (f"{value:,.0f} ×" if value >= 1 else f"{value:.1f} ×") if field == "calls" else duration(value)


def label(row: CodeTime) -> str:
    """Return what stands in a tree for a module: its name without those around it."""
    return row.name.rpartition(".")[2] if row.depth else row.name


def short(row: CodeTime) -> str:
    """Return "train.py:41 compute_loss" for a function, without the folders of its file."""
    place, _, function = row.name.rpartition(" ")
    return f"{place.rpartition('/')[2]} {function}"


def aside(code: CodeTimes) -> str:
    """Return what the tables rest on, or that there are none; "" where they are of the steps analysed."""
    if code.source == "none":
        return tr(
            "This recording has no stacks, so there is no table by module or function: "
            "record with diagnose trace, or with with_stack=True."
        )
    if code.source == "samples":
        return tr("This recording has no stacks: functions are those that the sampler saw, and no module is known.")
    if not code.as_timed:
        return tr("Of the steps recorded with stacks, which take {time} each.", time=duration(code.step_ns))
    return ""


def by_class(rows: Sequence[CodeTime], most: int) -> list[CodeTime]:
    """Return the tree of modules with those of one class below the same parents as one row, of too many the longest."""
    found: dict[tuple[str, ...], CodeTime] = {}
    around: list[str] = []
    for row in rows:
        around[row.depth :] = [re.sub(r"_\d+$", "", label(row))]
        key = tuple(around)
        one = found.get(key, CodeTime(".".join(key), 0.0, 0.0, depth=len(key) - 1))
        other = row
        found[key] = one._replace(
            self_ns=one.self_ns + other.self_ns,
            share=one.share + other.share,
            host_ns=_sum(one.host_ns, other.host_ns),
            calls=_sum(one.calls, other.calls),
            device_ns=_sum(one.device_ns, other.device_ns),
            backward_ns=_sum(one.backward_ns, other.backward_ns),
            backward_device_ns=_sum(one.backward_device_ns, other.backward_device_ns),
        )
    kept: dict[tuple[str, ...], int] = {}
    for key in sorted(found, key=lambda key: (-round(_whole(found[key])), len(key))):
        if len(kept) < most and (len(key) == 1 or key[:-1] in kept):
            kept[key] = len(kept)
    return [found[key] for key in sorted(kept, key=lambda key: [kept[key[: n + 1]] for n in range(len(key))])]


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _whole(row: CodeTime) -> float:
    """Return what modules are ordered by: a module takes as long as those in it."""
    host = (row.host_ns or 0.0) + (row.backward_ns or 0.0)
    return max(host, (row.device_ns or 0.0) + (row.backward_device_ns or 0.0))


def tables(code: CodeTimes, width: int) -> Iterator[RenderableType]:
    """Yield a table by phase, module and function each, as far as the recording shows them, and what they rest on."""
    if code.phases:
        yield title(tr("Time by phase"))
        yield _table(code.phases, [translated(row.name) for row in code.phases], width)
    if code.modules:
        modules = by_class(code.modules, MAX_CODE_ROWS)
        yield title(tr("Time by module"), tr("modules of one class together"))
        yield _table(modules, ["  " * row.depth + label(row) for row in modules], width)
    if code.functions:
        functions = code.functions[:MAX_CODE_ROWS]
        yield title(tr("Time by function"), tr("of the script's own files"))
        yield _table(functions, [short(row) for row in functions], width)
    if words := aside(code):
        yield from () if code.phases or code.functions else [Text("")]
        yield note(words)


def _table(rows: Sequence[CodeTime], names: Sequence[str], width: int) -> RenderableType:
    """Return one line a row: its name, and as many columns of numbers as fit beside it."""
    texts = {column: [cell(row, column.field) for row in rows] for column in columns(rows) if column.brief}
    room, shown = width - 2, set[Column]()
    for column in sorted(texts, key=lambda column: column.order):
        wide = 2 + max(map(cell_len, (column.brief, *texts[column])))
        if room - wide >= 24:  # of fewer columns a name does not show what it is
            shown.add(column)
            room -= wide
    texts = {column: cells for column, cells in texts.items() if column in shown}
    grid = table("l" + "r" * len(texts))
    grid.add_row("", *(Text(column.brief, style="dim") for column in texts))
    for at, name in enumerate(names):
        indent = len(name) - len(name.lstrip())
        text = " " * indent + middle(one_line(name.lstrip()), min(room, 44) - indent)
        grid.add_row(Text(f"  {text}"), *(cells[at] for cells in texts.values()))
    return grid

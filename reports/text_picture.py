"""The queue, the partition and the causes as pictures of one to a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diagnose.model.charts import Picture
from diagnose.model.diagnosis import Partition, Queue
from diagnose.model.rules import Legend
from diagnose.reports.format import duration, percent, plural, summed
from diagnose.reports.language import tr, translated
from diagnose.reports.rule_labels import PHASES
from diagnose.reports.text_answer import NO_BREAK, padded
from diagnose.reports.text_charts import bar, cells, depth_columns, idle_columns, shades, sparkline
from diagnose.text.plain_text import one_line

__all__ = ["causes", "host", "partition", "phases", "queue"]

_LABEL_WIDTH = 9  # width of the names at the left of the queue's rows
_MAX_CAUSES = 6
_BAR_CELLS = 10
_NAMED_SHARE = 0.25  # of a column: less idle than this is shown by its shade alone
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_STYLES = ("red", "yellow", "magenta", "cyan", "green", "blue")
_PARTS = {
    "compute": ("█", "green", "computing"),
    "exposed_communication": ("▓", "cyan", "communication not overlapped"),
    "exposed_copy": ("▒", "yellow", "copies not overlapped"),
    "idle": ("░", "red", "idle"),
}


def queue(
    picture: Picture, queue: Queue | None, idle_by_cause: Mapping[str, float], width: int, *, has_steps: bool = True
) -> RenderableType:
    """Return the step from left to right: queue depth, device activity, and the causes of idle time."""
    columns = width - _LABEL_WIDTH - 4
    keys = _keys({gap.cause: 0.0 for gap in picture.gaps} | dict(idle_by_cause))
    idle = idle_columns(picture.gaps, picture.step_ns, columns)
    rows: list[RenderableType] = []
    if picture.depth:
        line = sparkline(depth_columns(picture.depth, picture.step_ns, columns))
        rows.append(Text.assemble((padded("  " + tr("depth"), _LABEL_WIDTH + 2), "dim"), (line, "blue")))
    busy = [1 - sum(column.values()) for column in idle]
    rows.append(Text.assemble((padded("  " + tr("device"), _LABEL_WIDTH + 2), "dim"), (shades(busy), "green")))
    if any(idle):
        rows.append(_cause_row(idle, keys))
    if queue is not None:
        rows.append(Padding(Text(_depth_text(queue, has_steps=has_steps), style="dim"), (0, 0, 0, 2)))
    return Group(*rows)


def host(picture: Picture, shares: Mapping[str, float], width: int) -> RenderableType:
    """Return the step of a trace without a device: what the host spent it on, from left to right."""
    return _cause_row(idle_columns(picture.gaps, picture.step_ns, width - _LABEL_WIDTH - 4), _keys(shares))


def _cause_row(idle: list[dict[str, float]], keys: dict[str, tuple[str, str]]) -> Text:
    row = Text(padded("  " + tr("cause"), _LABEL_WIDTH + 2), style="dim")
    for column in idle:
        cause = max(column, key=lambda name: column[name], default="")
        letter, style = keys.get(cause, ("?", "dim"))
        row.append(*((letter, style) if sum(column.values()) >= _NAMED_SHARE else (" ", "")))
    return row


def _keys(idle_by_cause: Mapping[str, float]) -> dict[str, tuple[str, str]]:
    """Return a letter and a style for each cause, the largest first."""
    ranked = sorted(idle_by_cause, key=lambda cause: (-idle_by_cause[cause], cause))
    return {
        cause: (_LETTERS[i] if i < len(_LETTERS) else "?", _STYLES[i] if i < len(_STYLES) else "dim")
        for i, cause in enumerate(ranked)
    }


def _depth_text(queue: Queue, *, has_steps: bool) -> str:
    words = (
        "depth {median} at the median, {high} at the 90th percentile; empty {empty}; {launches} a step, {late} of "
        "tasks launched onto an empty device"
    )
    return tr(
        words if has_steps else words.replace(" a step", ""),
        median=f"{queue.depth_p50:,.0f}",
        high=f"{queue.depth_p90:,.0f}",
        empty=percent(queue.empty_share),
        launches=plural(queue.launches_per_step, "launch"),
        late=percent(queue.late_share),
    )


def partition(partition: Partition, width: int) -> RenderableType:
    """Return the step as one bar with a legend."""
    names = [field.name for field in fields(partition)]
    shares = [getattr(partition, name) for name in names]
    line, legend = Text(), Text()
    for name, share, count in zip(names, shares, cells(shares, width - 4), strict=True):
        mark, style, label = _PARTS[name]
        line.append(mark * count, style)
        if share > 0:
            legend.append(mark, style)
            legend.append(f" {translated(label)} {percent(share)}".replace(" ", NO_BREAK))
            legend.append("   ")
    return Padding(Group(line, legend), (0, 0, 0, 2))


def phases(shares: Mapping[str, float]) -> RenderableType:
    """Return one row a phase of the run: its share, a bar, and what it is, which wraps where there is no room."""
    top = max(shares.values())
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column()  # the only one that wraps: the others are never cut for it
    for name, share in shares.items():
        picture = Text(bar(share / top, _BAR_CELLS), style="cyan")
        label = Text(translated(PHASES.get(name, Legend()).label), style="dim")
        grid.add_row(f"  {translated(one_line(name))}", percent(share), picture, label)
    return grid


def causes(shares: Mapping[str, float], legends: Mapping[str, Legend], step_ns: float) -> RenderableType:
    """Return one line a cause: its letter in the picture, its share of the step, a bar, and what it is in words."""
    keys = _keys(shares)
    rows = summed(dict(shares), _MAX_CAUSES)
    top = max((share for _, share in rows), default=0.0)
    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    grid.add_column(overflow="fold")
    for cause, share in rows:
        letter, style = keys.get(cause, (" ", "dim"))
        label = legends.get(cause, Legend()).label or translated(one_line(cause))
        picture = Text(bar(share / top, _BAR_CELLS).ljust(_BAR_CELLS), style=style)
        grid.add_row(Text(f"  {letter}", style), percent(share), duration(share * step_ns), picture, label)
    return grid

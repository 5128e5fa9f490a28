"""The device's kernels for a terminal: two lines each, the numbers and the name with its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.model.charts import KernelTime
from diagnose.reports.format import duration, percent, place
from diagnose.reports.language import tr
from diagnose.text.kernel_names import shorten
from diagnose.text.plain_text import middle, one_line

__all__ = ["calls", "kernels"]

_NUMBERS_WIDTH = 52  # of the columns before the name


def kernels(listed: Sequence[KernelTime], width: int) -> RenderableType:
    """Return one entry a kernel: share, time, calls, family, type, share of the peak, name and place."""
    room = max(width - _NUMBERS_WIDTH, 20)
    grid = Table.grid(padding=(0, 2))
    for justify in ("right", "right", "right", "left", "left", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    for row in listed:
        name = Text(middle(one_line(shorten(row.name)), room))
        at = place(replace(row.where, op=None) if row.where.file else row.where, limit=room - 10)
        lines = [name, *([Text(middle(one_line(at), room), style="dim")] if at else [])]
        kind = " ".join(part for part in (row.family, row.dtype) if part)
        peak = tr("{share} of peak", share=percent(row.peak_share)) if row.peak_share is not None else ""
        of_peak = [Text(peak, style="dim")] if peak else []
        time = Text(f"{duration(row.time_ns)}")
        grid.add_row(f"  {percent(row.share)}", time, calls(row), Group(Text(kind), *of_peak), Group(*lines))
    return grid


def calls(row: KernelTime) -> str:
    """Return "24 ×", and for less than one call a step "0.2 ×"."""
    return f"{row.calls_per_step:,.0f} ×" if row.calls_per_step >= 1 else f"{row.calls_per_step:.1f} ×"

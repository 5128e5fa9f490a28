"""The predicted step time after each change, and the critical path, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diagnose.model.forecast import Forecast, Waterfall
from diagnose.reports.format import duration, percent
from diagnose.reports.language import tr, translated
from diagnose.reports.text_charts import bar
from diagnose.text.plain_text import one_line

__all__ = ["path", "waterfall"]

_BAR_CELLS, _MIN_BAR_CELLS = 30, 4  # of fewer cells a bar shows little
_GAP_CELLS = 2
MIN_PATH_SHARE = 0.005  # of the path: less is not listed


def waterfall(waterfall: Waterfall, width: int) -> Iterator[RenderableType]:
    """Yield one line for each change, the step after it, and at the end what then bounds it.

    Where there is little room the bars are shorter, then left out, and names take several lines; numbers stay whole.
    """
    baseline = waterfall.forecasts[0].step_ns
    rows = [
        (f"  {duration(f.step_ns) if f.is_narrow else '–'}", one_line(_name(f)), _range(f, baseline))
        for f in waterfall.forecasts
    ]
    taken = sum(max(map(cell_len, column)) for column in zip(*rows, strict=True)) + 3 * _GAP_CELLS
    cells = min(_BAR_CELLS, width - taken)
    has_bars = cells >= _MIN_BAR_CELLS
    grid = Table.grid(padding=(0, _GAP_CELLS))
    grid.add_column(justify="right", no_wrap=True)
    if has_bars:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(justify="right", no_wrap=True)
    for forecast, (step, name, span) in zip(waterfall.forecasts, rows, strict=True):
        share = forecast.step_ns / baseline if baseline else 0
        picture = Text(
            (bar(share, cells) if forecast.is_narrow else "").ljust(cells), style="cyan" if forecast.ids else "red"
        )
        grid.add_row(Text(step), *([picture] if has_bars else []), name, Text(span, style="dim"))
    yield grid
    yield Padding(Text(tr("then it is bound by {what}", what=one_line(waterfall.bound_by)), style="dim"), (0, 0, 0, 2))


def _range(forecast: Forecast, baseline: float) -> str:
    """Return between what the prediction lies, "" where that is narrow."""
    if forecast.high_ns - forecast.low_ns <= MIN_PATH_SHARE * baseline:
        return ""
    return tr("{low} to {high}", low=duration(forecast.low_ns), high=duration(forecast.high_ns))


def _name(forecast: Forecast) -> str:
    if not forecast.ids:
        return tr("now")
    change = forecast.ids[-1]
    return tr("with {change}", change=change) if len(forecast.ids) == 1 else tr("and {change}", change=change)


def path(shares: Mapping[str, float]) -> RenderableType:
    """Return the critical path in one line."""
    ranked = sorted(((name, share) for name, share in shares.items() if share >= MIN_PATH_SHARE), key=lambda s: -s[1])
    listed = ", ".join(f"{translated(one_line(name))} {percent(share)}" for name, share in ranked)
    return Padding(Text(listed), (0, 0, 0, 2))

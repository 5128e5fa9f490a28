"""The predicted step time after each change, and the critical path, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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

_BAR_CELLS = 30
MIN_PATH_SHARE = 0.005  # of the path: less is not listed


def waterfall(waterfall: Waterfall) -> Iterator[RenderableType]:
    """Yield one line for each change, the step after it, and at the end what then bounds it."""
    baseline = waterfall.forecasts[0].step_ns
    grid = Table.grid(padding=(0, 2))
    for justify in ("right", "left", "left", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    for forecast in waterfall.forecasts:
        wide = forecast.high_ns - forecast.low_ns > MIN_PATH_SHARE * baseline
        span = tr("{low} to {high}", low=duration(forecast.low_ns), high=duration(forecast.high_ns)) if wide else ""
        picture = bar(forecast.step_ns / baseline if baseline else 0, _BAR_CELLS).ljust(_BAR_CELLS)
        grid.add_row(
            Text(f"  {duration(forecast.step_ns)}"),
            Text(picture, style="cyan" if forecast.ids else "red"),
            one_line(_name(forecast)),
            Text(span, style="dim"),
        )
    yield grid
    yield Padding(Text(tr("then it is bound by {what}", what=one_line(waterfall.bound_by)), style="dim"), (0, 0, 0, 2))


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

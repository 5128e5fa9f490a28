"""The live table of the GPUs, and the percentiles at the end, for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from diagnose.text.numbers import percent
from diagnose.text.plain_text import one_line

__all__ = ["Line", "live", "percentiles"]

Line = tuple[str, Mapping[str, float | None], str]  # label, values by metric, what holds the clock back

_SHOWN = {
    "kernel_running_percent": ("kernel running", "{:.0f} %"),
    "memory_used_mb": ("memory", "{:,.0f} MB"),
    "sm_mhz": ("clock", "{:.0f} MHz"),
    "power_w": ("power", "{:.0f} W"),
    "temperature_c": ("", "{:.0f} °C"),
    "pcie_to_host_mb_s": ("to host", "{:,.0f} MB/s"),
    "pcie_from_host_mb_s": ("from host", "{:,.0f} MB/s"),
}


def live(lines: Sequence[Line]) -> Table:
    """Return one line a GPU with its newest reading."""
    table = _table("GPU")
    table.add_column("slowed by", overflow="ellipsis", no_wrap=True)
    for label, values, slowed in lines:
        table.add_row(Text(one_line(label)), *_cells(values), Text(one_line(slowed), style="yellow"))
    return table


def percentiles(lines: Sequence[tuple[str, Mapping[str, Mapping[str, float]], float]]) -> Table:
    """Return for each GPU its 5th, 50th and 95th percentile of each metric, and how often it was slowed."""
    table = _table("GPU, percentile")
    for label, found, slowed in lines:
        for name in ("p5", "p50", "p95"):
            values = {metric: each[name] for metric, each in found.items()}
            title = f"{one_line(label)}, slowed in {percent(slowed, 0)}" if name == "p5" and slowed else one_line(label)
            table.add_row(Text(f"{title if name == 'p5' else ''}  {name}"), *_cells(values))
    return table


def _table(first: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True, overflow="ellipsis")
    for heading, _ in _SHOWN.values():
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cells(values: Mapping[str, float | None]) -> list[str]:
    return ["–" if (v := values.get(name)) is None else shape.format(v) for name, (_, shape) in _SHOWN.items()]

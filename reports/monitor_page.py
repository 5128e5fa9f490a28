"""The readings of ``monitor`` as a page: each GPU over time, aligned, and its percentiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from diagnose.model.frozen import dataclass
from diagnose.reports.format import plural
from diagnose.reports.language import tr, translated
from diagnose.reports.pages import render_page
from diagnose.reports.svg import Axis, Svg, ticks

__all__ = ["Board", "render"]

NAMES = {
    "kernel_running_percent": "Kernel running, %",
    "memory_used_mb": "Memory in use, MB",
    "sm_mhz": "SM clock, MHz",
    "power_w": "Power, W",
    "temperature_c": "Temperature, °C",
    "pcie_to_host_mb_s": "PCIe to the host, MB/s",
    "pcie_from_host_mb_s": "PCIe from the host, MB/s",
}
"""The names of readings with their units, as people write them."""
LINE = "#5b7fa6"
TRACK, TALL = 66.0, 46.0
LEFT, RIGHT = 220.0, 1046.0
MAX_POINTS = 800  # of a track; each stands for the highest reading of its share of the time


@dataclass(frozen=True, slots=True)
class Board:
    """One GPU: what was read of it."""

    label: str
    seconds: Sequence[float]  # of each reading, from the first
    series: Mapping[str, Sequence[float | None]]  # by name, parallel to seconds
    percentiles: Mapping[str, Mapping[str, float]]
    slowed: float = 0.0  # share of the readings
    reasons: Sequence[str] = ()


def render(boards: Sequence[Board], interval: float, why: str = "") -> str:
    """Return the page; ``why`` states why there is no GPU to show."""
    num = max((len(b.seconds) for b in boards), default=0)
    return render_page(
        "monitor.html",
        scripts=[],
        data={},
        legends={},
        drawn=False,
        headline=tr(
            "{boards}, {readings}, one every {interval} s",
            boards=plural(len(boards), "GPU"),
            readings=plural(num, "reading"),
            interval=f"{interval:g}",
        )
        if boards
        else tr("No GPU was watched"),
        why=why,
        reading=reading,
        boards=[
            {
                "label": b.label,
                "slowed": b.slowed,
                "reasons": list(b.reasons),
                "chart": _chart(b),
                "readings": [(_name(name), values) for name, values in b.percentiles.items()],
            }
            for b in boards
        ],
    )


def reading(value: float) -> str:
    """Return a number with four digits, and with all of them where it has more before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _name(metric: str) -> str:
    return translated(NAMES.get(metric, metric.replace("_", " ")))


def _chart(board: Board) -> Markup:
    """Return the tracks of a GPU, one below the other on one axis of time."""
    names = [name for name in board.percentiles if any(v is not None for v in board.series.get(name, ()))]
    svg = Svg(tr("Readings of GPU {name} over time.", name=board.label), TRACK * len(names) + 36)
    x = Axis(0, max(board.seconds, default=0) or 1, LEFT, RIGHT)
    for row, name in enumerate(names):
        top = TRACK * row + 14
        values = board.series[name]
        points = _thinned([(t, v) for t, v in zip(board.seconds, values, strict=False) if v is not None])
        highest = max(v for _, v in points) or 1.0
        y = Axis(0, highest, top + TALL, top)
        svg.text(LEFT - 12, top + 18, _name(name), "end")
        svg.text(LEFT - 12, top + 34, tr("to {num}", num=reading(highest)), "end")
        svg.line([(LEFT, top + TALL), (RIGHT, top + TALL)], "currentColor", 0.5)
        line = [(x(t), y(v)) for t, v in points]
        svg.area(line, top + TALL, LINE)
        svg.line(line, LINE, 1.3)
    last = TRACK * len(names)
    svg.x_axis(x, last, [(v, f"{v:g} s") for v in ticks(0, x.high, 8)], 10)
    return svg.render()


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    each = -(-len(points) // MAX_POINTS)
    return [max(points[i : i + each], key=lambda p: p[1]) for i in range(0, len(points), each or 1)]

"""Small vector charts as text: axes, marks and their labels, escaped; colours of text and lines come from the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from diagnose.text.plain_text import clean

__all__ = ["Axis", "Svg", "log_ticks", "ticks"]

WIDTH = 1060  # units of the page's full width


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values on a range of units."""

    low: float
    high: float
    first: float
    last: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return where a value lies; what is outside lies at the end."""
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, 1e-30))
        share = (at - low) / (high - low) if high > low else 0.0
        return round(self.first + min(max(share, 0.0), 1.0) * (self.last - self.first), 1)


@dataclass(slots=True)
class Svg:
    """A chart under construction."""

    label: str  # what it shows, for those who do not see it
    height: float
    width: float = WIDTH
    parts: list[str] = field(default_factory=list)

    def rect(self, box: tuple[float, float, float, float], colour: str, title: str = "", more: str = "") -> None:
        """Add a filled rectangle: left, top, width and height."""
        x, y, width, height = box
        inside = f"<title>{_text(title)}</title>" if title else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.4):.1f}" height="{max(height, 0.4):.1f}" '
            f'fill="{colour}"{more}>{inside}</rect>'
        )

    def line(self, points: Iterable[tuple[float, float]], colour: str, width: float = 1.5, more: str = "") -> None:
        """Add a line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{more}/>')

    def area(self, points: Sequence[tuple[float, float]], base: float, colour: str) -> None:
        """Add the area between points and a base line."""
        if points:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            ends = f"{points[-1][0]:.1f},{base:.1f} {points[0][0]:.1f},{base:.1f}"
            self.parts.append(f'<polygon points="{path} {ends}" fill="{colour}" fill-opacity="0.28"/>')

    def text(self, x: float, y: float, text: str, anchor: str = "start", css: str = "") -> None:
        """Add a text."""
        name = f' class="{css}"' if css else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{_text(text)}</text>')

    def mark(self, at: tuple[float, float], shape: str, size: float, colour: str, title: str = "") -> None:
        """Add a mark of one of several shapes, so that colour is not all that tells groups apart."""
        r = round(size, 1)
        circle = f"M{-r},0a{r},{r} 0 1,0 {2 * r},0a{r},{r} 0 1,0 {-2 * r},0"
        path = {
            "square": f"M{-r},{-r}h{2 * r}v{2 * r}h{-2 * r}z",
            "diamond": f"M0,{-1.3 * r:.1f}L{1.3 * r:.1f},0 0,{1.3 * r:.1f} {-1.3 * r:.1f},0z",
            "triangle": f"M0,{-1.2 * r:.1f}L{1.15 * r:.1f},{r} {-1.15 * r:.1f},{r}z",
        }.get(shape, circle)
        paint = f'fill="none" stroke="{colour}" stroke-width="2"' if shape == "open" else f'fill="{colour}"'
        self.parts.append(
            f'<path transform="translate({at[0]:.1f},{at[1]:.1f})" d="{path}" {paint} opacity="0.85">'
            f"<title>{_text(title)}</title></path>"
        )

    def x_axis(self, axis: Axis, y: float, at: Iterable[tuple[float, str]], top: float, title: str = "") -> None:
        """Add vertical grid lines with their labels, and what the axis counts."""
        for value, text in at:
            x = axis(value)
            self.parts.append(f'<path class="grid" d="M{x:.1f},{top:.1f}V{y:.1f}"/>')
            self.text(x, y + 15, text, "middle")
        if title:
            self.text((axis.first + axis.last) / 2, y + 32, title, "middle")

    def y_axis(self, axis: Axis, left: float, right: float, at: Iterable[tuple[float, str]], title: str = "") -> None:
        """Add horizontal grid lines with their labels."""
        for value, text in at:
            y = axis(value)
            self.parts.append(f'<path class="grid" d="M{left:.1f},{y:.1f}H{right:.1f}"/>')
            self.text(left - 7, y + 4, text, "end")
        if title:
            self.text(left - 7, min(axis.first, axis.last) - 9, title, "end")

    def render(self) -> Markup:
        """Return the chart; a narrow page scrolls it instead of shrinking its text."""
        inside = "".join(self.parts)
        return Markup(  # every text in the parts is escaped
            f'<div class="scroll chart" tabindex="0" role="region" aria-label="{_text(self.label)}">'
            f'<svg viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" aria-label="{_text(self.label)}">'
            f"{inside}</svg></div>"
        )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values between two ends, at most ``most`` and one."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between two ends."""
    return [10.0**i for i in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]


def _text(text: str) -> str:
    return str(escape(clean(text)))

"""One step as a picture: the host's operators, the device, what idle time is attributed to, and the queue's depth.

The picture carries its own background, which follows the reader's colour scheme, and stays small: what lies within
one unit of its width is drawn once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import TypeAlias
from xml.sax.saxutils import escape

from diagnose.model.charts import Gap, Picture, Span
from diagnose.model.rules import Legend
from diagnose.reports.charts import legible, ticks
from diagnose.reports.rule_labels import CATEGORIES

__all__ = ["Detail", "draw"]

Place: TypeAlias = Callable[[float], float]

WIDTH, LEFT, RIGHT = 760, 124, 748
LANE, PAUSE, DEPTH_HEIGHT = 20, 12, 76
MIN_LABEL_SHARE = 0.02  # of the picture: causes that take less are not in its legend
ON_DEVICE = ("compute", "communication", "copy")
MAX_LABEL_CHARS = 56  # of an entry of the legend, which has two columns
LABEL_OF = {"compute": "computing", "communication": "communicating", "copy": "copying"}
STYLE = (
    "<style>text{font:11px system-ui,sans-serif;fill:#3b4048}.b{fill:#fff}.t{font-weight:600;font-size:12.5px}"
    ".g{stroke:#8b93a1;stroke-opacity:.35;fill:none}.o{fill:#93a4b8}.d{fill:#5b7fa6}.a{stroke:#3b4048;fill:none}"
    "@media (prefers-color-scheme:dark){.b{fill:#1b1f25}text{fill:#d6dbe3}.a{stroke:#d6dbe3}}</style>"
)


@dataclass(frozen=True)
class Detail:
    """What of a step is drawn: ns from its start, and whether launches are joined to their tasks by lines."""

    start_ns: int
    end_ns: int
    has_arrows: bool = False


def draw(picture: Picture, legends: Mapping[str, Legend], title: str, detail: Detail | None = None) -> str:
    """Return a picture of a step, or of a part of it, as SVG."""
    part = detail or Detail(0, picture.step_ns)
    return "".join(_parts(picture, legends, title, part))


def _parts(picture: Picture, legends: Mapping[str, Legend], title: str, part: Detail) -> Iterator[str]:
    scale = (RIGHT - LEFT) / max(1, part.end_ns - part.start_ns)

    def x(time_ns: float) -> float:
        return round(LEFT + (min(max(time_ns, part.start_ns), part.end_ns) - part.start_ns) * scale, 1)

    causes = _causes(picture.gaps, part)
    entries = [(LABEL_OF[name], legible(CATEGORIES[name])) for name in _categories(picture.spans, part)]
    entries += [(f"{cause}: {legends[cause].label or cause}", legible(legends[cause].colour)) for cause in causes]
    rows = -(-len(entries) // 2)
    tops = [34 + i * (LANE + PAUSE) for i in range(4)]
    bottom = tops[3] + DEPTH_HEIGHT
    height = bottom + 30 + 17 * rows
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    yield f'<title>{escape(title)}</title>{STYLE}<rect class="b" width="{WIDTH}" height="{height}" rx="6"/>'
    yield f'<text class="t" x="12" y="20">{escape(title)}</text>'
    yield from _grid(part, x, tops[0] - 4, bottom)
    for top, label in zip(tops, ("host", "device", "idle, by cause", "queue depth"), strict=True):
        yield f'<text x="12" y="{top + 14}">{label}</text>'
    host = [(x(s.start_ns), x(s.end_ns)) for s in _host(picture.spans) if _meets(s, part)]
    yield _bars(host, tops[0], 'class="o"')
    for category in ON_DEVICE:
        spans = [(x(s.start_ns), x(s.end_ns)) for s in picture.spans if s.category == category and _meets(s, part)]
        yield _bars(spans, tops[1], f'fill="{legible(CATEGORIES[category])}"')
    for cause in dict.fromkeys(gap.cause for gap in picture.gaps):
        gaps = [(x(g.start_ns), x(g.end_ns)) for g in picture.gaps if g.cause == cause and _meets(g, part)]
        yield _bars(gaps, tops[2], f'fill="{legible(legends[cause].colour)}"')
    if part.has_arrows:
        yield from _arrows(picture, part, x, (tops[0] + LANE, tops[1]))
    yield from _depth(picture.depth, part, x, (tops[3], bottom))
    for i, (text, colour) in enumerate(entries):
        left, top = 12 + (i % 2) * 374, bottom + 26 + 17 * (i // 2)
        yield f'<rect x="{left}" y="{top}" width="10" height="10" rx="2" fill="{colour}"/>'
        yield f'<text x="{left + 15}" y="{top + 9}">{escape(_short(text))}</text>'
    yield "</svg>\n"


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 1].rstrip()}…"


def _meets(span: Span | Gap, part: Detail) -> bool:
    return span.end_ns > part.start_ns and span.start_ns < part.end_ns


def _host(spans: Iterable[Span]) -> list[Span]:
    """Return operators and calls of all threads: the backward pass has one of its own."""
    return [s for s in spans if s.category in ("operator", "runtime")]


def _categories(spans: Sequence[Span], part: Detail) -> list[str]:
    return [c for c in ON_DEVICE if any(s.category == c and _meets(s, part) for s in spans)]


def _causes(gaps: Iterable[Gap], part: Detail) -> list[str]:
    total: dict[str, int] = {}
    for gap in gaps:
        inside = min(gap.end_ns, part.end_ns) - max(gap.start_ns, part.start_ns)
        total[gap.cause] = total.get(gap.cause, 0) + max(0, inside)
    least = MIN_LABEL_SHARE * (part.end_ns - part.start_ns)
    return sorted((cause for cause, time in total.items() if time > least), key=lambda cause: -total[cause])


def _bars(spans: Iterable[tuple[float, float]], top: float, style: str) -> str:
    """Return bars of one colour as one path; those closer than half a unit become one."""
    joined: list[list[float]] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] < 0.5:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    path = "".join(f"M{start:g},{top:g}h{max(end - start, 0.3):.1f}v{LANE}H{start:g}z" for start, end in joined)
    return f'<path {style} d="{path}"/>' if path else ""


def _grid(part: Detail, x: Place, top: float, bottom: float) -> Iterator[str]:
    length_ms = (part.end_ns - part.start_ns) / 1e6
    unit, factor = ("µs", 1e3) if length_ms < 1 else ("ms", 1.0)
    for value in ticks(0, length_ms * factor, 6):
        at = x(part.start_ns + value / factor * 1e6)
        anchor = "end" if at > RIGHT - 20 else "middle"
        yield f'<path class="g" d="M{at:g},{top:g}V{bottom:g}"/>'
        yield f'<text x="{at:g}" y="{bottom + 14:g}" text-anchor="{anchor}">{value:g} {unit}</text>'


def _arrows(picture: Picture, part: Detail, x: Place, between: tuple[float, float]) -> Iterator[str]:
    """Yield a line from each launch to its task, those whose launch lies in the part."""
    launches = getattr(picture.spans, "launch", ())
    for span, launch in zip(picture.spans, launches, strict=False):
        if launch >= 0 and span.category in ON_DEVICE and _meets(span, part):
            call = picture.spans[int(launch)]
            if part.start_ns <= call.start_ns <= part.end_ns:
                path = f"M{x(call.start_ns):g},{between[0]:g}L{x(span.start_ns):g},{between[1]:g}"
                yield f'<path class="a" stroke-width=".7" d="{path}"/>'


def _depth(depth: Sequence[tuple[int, int]], part: Detail, x: Place, between: tuple[float, float]) -> Iterator[str]:
    """Yield the depth as an area over a logarithmic axis: at each unit of width the largest one."""
    top, bottom = between
    most = max((value for _, value in depth), default=1)
    decades = max(1.0, log10(most + 1))

    def y(value: int) -> float:
        return round(bottom - (bottom - top) * log10(value + 1) / decades, 1)

    columns: dict[int, int] = {}
    current = 0
    last = int(LEFT)
    for time, value in depth:
        if time > part.end_ns:
            break
        at = int(x(time))
        for column in range(last, at + 1):
            columns[column] = max(columns.get(column, 0), current)
        columns[at] = max(columns.get(at, 0), value)
        current, last = value, at
    for column in range(last, int(RIGHT) + 1):
        columns[column] = max(columns.get(column, 0), current)
    path, before = f"M{LEFT},{bottom:g}", None
    for column in sorted(columns):
        if columns[column] != before:
            path += f"H{column}V{y(columns[column]):g}"
            before = columns[column]
    yield f'<path class="d" fill-opacity=".45" d="{path}H{RIGHT}V{bottom:g}z"/>'
    for value in (1, 10, 100, 1000):
        if value <= most:
            yield f'<path class="g" d="M{LEFT},{y(value):g}H{RIGHT}"/>'
            yield f'<text x="{LEFT - 6}" y="{y(value) + 4:g}" text-anchor="end">{value}</text>'

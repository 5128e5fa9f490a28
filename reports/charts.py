"""The data of the page's charts: the timeline of one step, the times of all, trials, roofline, memory.

Texts for Plotly are escaped, since it interprets a few HTML tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import median
from typing import TypeAlias, TypedDict

from diagnose.model.charts import Gap, Memory, Picture, Roofline, Span
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.rules import Legend
from diagnose.reports.kernel_names import shorten
from diagnose.reports.rule_labels import CATEGORIES
from diagnose.reports.trial_charts import trial_data
from diagnose.text.plain_text import middle, one_line

__all__ = ["Data", "chart_data", "levels"]

Data: TypeAlias = dict[str, object]

_MAX_LEVELS = 8  # rows of one lane; what nests deeper shares the last one
_MAX_NAME_CHARS = 70  # characters of a name in a hover label
_NESTED = re.compile(r" \+\d+$")  # "host 7 +1" is what nests in "host 7"
_DIGITS = re.compile(r"(\d+)")
_DEVICE = frozenset({"compute", "communication", "copy"})


class Lane(TypedDict):
    """One lane of the timeline: its first row from the top and how many rows it takes."""

    label: str
    row: int
    rows: int
    device: bool


def chart_data(d: Diagnosis) -> Data:
    """Return the data of all charts; a chart without data is None. Times are ms."""
    p = d.picture
    has_timeline = p is not None and p.step_ns > 0 and (p.spans or p.gaps or p.depth)
    return {
        "timeline": _timeline(p, d.legends) if p is not None and has_timeline else None,
        "steps": _steps(d),
        "roofline": _roofline(d.roofline) if d.roofline is not None and d.roofline.points else None,
        "trials": trial_data(d),
        "memory": _memory(d.memory) if d.memory is not None and len(d.memory.timeline) > 1 else None,
    }


def _roofline(r: Roofline) -> Data:
    """Return the operators that compute, in FLOP per byte and TFLOP/s, and the roofs: rates by precision, bandwidth."""
    shown = [p for p in r.points if p.tflops > 0 and p.flop_per_byte > 0]
    return {
        "device": _label(r.device),
        "roofs": [{"name": _label(name), "tflops": rate} for name, rate in r.tflops.items()],
        "gb_per_s": r.gb_per_s,
        "x": [p.flop_per_byte for p in shown],
        "y": [p.tflops for p in shown],
        "share": [p.step_share for p in shown],
        "text": [f"{_label(p.op)} {_label(p.shapes)}<br>{_label(p.kernel)}" for p in shown],
        "detail": [f"{p.precision}, {p.achieved:.0%} of the {p.bound} bound" for p in shown],
    }


def _memory(m: Memory) -> Data:
    """Return allocated and reserved memory over the steady steps, GB over ms."""
    times, allocated, reserved = zip(*m.timeline, strict=True)
    return {
        "x": _ms(times),
        "allocated": [size / 1e9 for size in allocated],
        "reserved": [size / 1e9 for size in reserved] if min(reserved) > 0 else None,
        "capacity": m.capacity / 1e9 if m.capacity else None,
        "peak_at": m.peak_at_ns / 1e6,
        "peak": m.peak_allocated / 1e9,
    }


def _steps(d: Diagnosis) -> Data | None:
    if len(d.step_times_ns) + len(d.source.unprofiled_step_ns) < 2:
        return None
    return {"profiled": _series(d.step_times_ns), "unprofiled": _series(d.source.unprofiled_step_ns)}


def _series(times: Sequence[int]) -> Data | None:
    return {"y": _ms(times), "median": median(times) / 1e6} if times else None


def _timeline(picture: Picture, legends: Mapping[str, Legend]) -> Data:
    lanes, rows = _lanes(picture.spans)
    if picture.gaps and not any(lane["device"] for lane in lanes):
        lanes, rows = _below(lanes), [row + 1 for row in rows]
    names = _Pool()
    items_of: dict[str, list[tuple[float, ...]]] = {}
    for span, row in zip(picture.spans, rows, strict=True):
        name = names.row(span.name, span.category)
        items_of.setdefault(span.category, []).append((row, *_interval(span), name))
    return {
        "step": picture.step,
        "step_ms": picture.step_ns / 1e6,
        "lanes": lanes,
        "spans": [
            {"category": _label(category), "colour": CATEGORIES.get(category, CATEGORIES["operator"]), "items": items}
            for category, items in sorted(items_of.items(), key=lambda item: _order(item[0]))
        ],
        "gaps": _gaps(picture.gaps, names, legends),
        "names": names.texts,
        "depth": {"x": _ms(x for x, _ in picture.depth), "y": [depth for _, depth in picture.depth]},
    }


class _Pool:
    """Names that many spans share: each kept once, as (escaped and short, in full)."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []
        self._rows: dict[str, int] = {}

    def row(self, name: str, category: str = "") -> int:
        if name not in self._rows:
            plain = one_line(name)
            short = shorten(plain, _MAX_NAME_CHARS) if category in _DEVICE else middle(plain, _MAX_NAME_CHARS)
            self._rows[name] = len(self.texts)
            self.texts.append((escape(short, quote=False), plain))
        return self._rows[name]


def _gaps(gaps: Sequence[Gap], names: _Pool, legends: Mapping[str, Legend]) -> list[Data]:
    """Return the gaps by cause, the cause with the most idle time first."""
    found: dict[str, list[Gap]] = {}
    for gap in gaps:
        found.setdefault(gap.cause, []).append(gap)
    ranked = sorted(found, key=lambda cause: -sum(gap.end_ns - gap.start_ns for gap in found[cause]))
    return [
        {
            "cause": _label(cause),
            "colour": legends.get(cause, Legend()).colour,
            "items": [(*_interval(gap), names.row(gap.detail)) for gap in found[cause]],
        }
        for cause in ranked
    ]


def _lanes(spans: Sequence[Span]) -> tuple[list[Lane], list[int]]:
    """Return the lanes, devices before the host, and for each span its row; nested spans get rows of their own."""
    members: dict[str, list[int]] = {}
    for index, span in enumerate(spans):
        members.setdefault(_NESTED.sub("", span.lane), []).append(index)
    on_device = {lane: any(spans[i].category in _DEVICE for i in found) for lane, found in members.items()}
    lanes: list[Lane] = []
    rows = [0] * len(spans)
    used = 0
    for lane in sorted(members, key=lambda name: (not on_device[name], _natural(name))):
        flat = on_device[lane]  # a stream runs one task at a time; what overlaps does so by rounding
        intervals = [(spans[i].start_ns, spans[i].end_ns) for i in members[lane]]
        nesting = [0] * len(intervals) if flat else levels(intervals)
        for index, level in zip(members[lane], nesting, strict=True):
            rows[index] = used + level
        lanes.append(Lane(label=_label(lane), row=used, rows=max(nesting) + 1, device=on_device[lane]))
        used += max(nesting) + 1
    return lanes, rows


def _below(lanes: list[Lane]) -> list[Lane]:
    """Put a lane for the causes above lanes that are all the host's, which gaps would be hidden under."""
    lowered = [Lane(label=lane["label"], row=lane["row"] + 1, rows=lane["rows"], device=False) for lane in lanes]
    return [Lane(label="by cause", row=0, rows=1, device=True), *lowered]


def _natural(name: str) -> list[tuple[int, str]]:
    """Stream 7 comes before stream 20."""
    return [(int(part[:18]) if part.isdecimal() else -1, part) for part in _DIGITS.split(name)]


def levels(intervals: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each interval the first row in which it overlaps nothing before it; at most eight rows."""
    found = [0] * len(intervals)
    ends: list[int] = []
    for index in sorted(range(len(intervals)), key=lambda i: (intervals[i][0], -intervals[i][1])):
        start, end = intervals[index]
        level = next((row for row, busy_until in enumerate(ends) if busy_until <= start), len(ends))
        if level == len(ends) < _MAX_LEVELS:
            ends.append(end)
        level = min(level, _MAX_LEVELS - 1)
        ends[level] = max(ends[level], end)
        found[index] = level
    return found


def _interval(piece: Span | Gap) -> tuple[float, float]:
    """Return start and length."""
    return piece.start_ns / 1e6, (piece.end_ns - piece.start_ns) / 1e6


def _order(category: str) -> int:
    """Annotations lie under operators and those under runtime calls."""
    order: Mapping[str, int] = {"annotation": 1, "operator": 2, "runtime": 3}
    return order.get(category, 0)


def _label(text: str) -> str:
    return escape(middle(one_line(text), 40), quote=False)


def _ms(times: Iterable[int]) -> list[float]:
    return [time / 1e6 for time in times]

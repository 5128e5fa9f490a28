"""The page's charts that need no script: step times, memory, roofline, trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from colorsys import hls_to_rgb, rgb_to_hls
from dataclasses import dataclass, field
from functools import cache
from statistics import median

from markupsafe import Markup, escape

from diagnose.answer.cards import verdict
from diagnose.model.charts import BUSY, Memory, Picture, Readings, Roofline, StepParts
from diagnose.model.diagnosis import Diagnosis, Trial
from diagnose.model.limits import MAX_LOSSES
from diagnose.model.rules import WORK, Legend
from diagnose.reports.format import duration, percent, plural, size
from diagnose.reports.language import tr, translated
from diagnose.reports.rule_labels import CATEGORIES, PALETTE, PARTS
from diagnose.reports.saving_words import certainty_words
from diagnose.text.plain_text import clean, middle, one_line

# Colours that can be told from the page in both themes: at least 3:1 against white and against the dark page.

PAGES = ("#ffffff", "#1b1f25")  # the lightest and the lightest dark background that a mark lies on


@cache
def legible(colour: str) -> str:
    """Return the colour, made lighter or darker in steps until it stands out on both pages; its hue stays."""
    hue, light, saturation = rgb_to_hls(*_channels(colour))
    best = colour
    for _ in range(100):
        # WCAG asks for 3 for what is no text; a little above, since colours are rounded.
        short = [contrast(best, page) < 3.05 for page in PAGES]
        if not any(short):
            break
        light += 0.005 if short[1] else -0.005
        best = "#" + "".join(f"{round(c * 255):02x}" for c in hls_to_rgb(hue, min(max(light, 0.0), 1.0), saturation))
    return best


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2.1 defines it, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _channels(colour: str) -> tuple[float, float, float]:
    return int(colour[1:3], 16) / 255, int(colour[3:5], 16) / 255, int(colour[5:7], 16) / 255


# Small vector charts as text: axes, marks and their labels, escaped; colours of text and lines come from the page.


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
    width: float = 1060  # units of the page's full width
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


MARGIN, RIGHT = 64.0, 1046.0
MAX_DRAWN_STEPS = 240  # bars or points of one chart: more would be thinner than two pixels
TRACK = 62  # height of one series of NVML
LINE, GOOD, WARN = "#5b7fa6", "#2f8f5f", "#b9770e"
SHAPES = ("circle", "square", "diamond", "triangle")
SERIES_COLOURS = (LINE, *PALETTE)


NO_PICTURE = Picture(-1, 0)  # where no step is drawn


def steps_chart(d: Diagnosis) -> Markup | None:
    """Return the recorded steps, each stacked by what it consists of, beside those that were not recorded.

    What NVML read meanwhile lies below, on the axis of the steps.
    """
    picture = d.picture or NO_PICTURE
    recorded = picture.steps or tuple(StepParts(i + 1, ns, {BUSY: ns}) for i, ns in enumerate(d.step_times_ns))
    recorded, others = recorded[:MAX_DRAWN_STEPS], _thinned(d.source.unprofiled_step_ns)
    if len(recorded) + len(others) < 2:
        return None
    highest = max([s.length_ns for s in recorded] + list(others)) or 1
    tracks = picture.readings
    svg = Svg(_steps_label(d, recorded, tracks), 250 + TRACK * len(tracks))
    y = Axis(0, highest / 1e6, 205, 24)
    svg.y_axis(y, MARGIN, RIGHT, [(v, f"{v:g}") for v in ticks(0, highest / 1e6, 4)], "ms")
    share = len(recorded) / (len(recorded) + len(others)) if others else 1.0
    border = MARGIN + (RIGHT - MARGIN) * min(max(share, 0.5 if tracks else 0.25), 0.85) if others else RIGHT
    _stack(svg, d, recorded, y, border)
    if others:
        x = Axis(0, len(others), border + 16, RIGHT)
        for i, ns in enumerate(others):
            svg.mark((x(i + 0.5), y(ns / 1e6)), "circle", 2.5, GOOD, tr("not recorded: {time}", time=duration(ns)))
        middle_ns = median(d.source.unprofiled_step_ns)
        svg.line([(border + 16, y(middle_ns / 1e6)), (RIGHT, y(middle_ns / 1e6))], GOOD, 1.2, ' stroke-dasharray="5 4"')
        svg.text((border + 16 + RIGHT) / 2, 224, tr("not recorded, median {time}", time=duration(middle_ns)), "middle")
    for i, track in enumerate(tracks):
        _track(svg, track, Axis(0, len(recorded), MARGIN, border), 250 + TRACK * i)
    return svg.render()


def _track(svg: Svg, track: Readings, x: Axis, top: float) -> None:
    """Add one series of NVML under the steps, from zero to what the board allows."""
    values = [value for _, value in track.points]
    y = Axis(0, max([track.limit or 0.0, *values]) or 1.0, top + TRACK - 12, top + 20)
    svg.text(MARGIN, top + 13, track_words(track))
    at = [(x(position), y(value)) for position, value in track.points if position <= x.high]
    svg.parts.append(
        f'<path class="grid" d="M{x.first:.1f},{y.first:.1f}H{x.last:.1f}M{x.first:.1f},{y.last:.1f}H{x.last:.1f}"/>'
    )
    svg.area(at, y.first, LINE)
    svg.line(at, LINE)
    for (px, py), (_, value) in zip(at, track.points, strict=False):
        svg.mark((px, py), "circle", 2.2, LINE, f"{translated(track.name)} {_short(value)} {track.unit}")
    svg.text(MARGIN - 7, y.last + 5, _short(y.high), "end")
    svg.text(MARGIN - 7, y.first + 4, "0", "end")


def track_words(track: Readings) -> str:
    """Return a series in words: its median, its range, and what the board allows."""
    values = [value for _, value in track.points]
    low, high = _short(min(values)), _short(max(values))
    ends = f" ({tr('{low} to {high}', low=low, high=high)})" if low != high else ""
    limit = " " + tr("of {num}", num=_short(track.limit)) if track.limit and track.unit != "%" else ""
    return f"{translated(track.name)}: {_short(median(values))}{limit} {track.unit}{ends}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _stack(svg: Svg, d: Diagnosis, steps: Sequence[StepParts], y: Axis, border: float) -> None:
    each = (border - MARGIN) / max(len(steps), 1)
    order = in_order([s.parts for s in steps])
    labelled = max(1, len(steps) // 12)
    for i, step in enumerate(steps):
        width = min(each * 0.76, 64)  # width of a step
        left, total = MARGIN + (i + 0.5) * each - width / 2, 0.0
        for name in order:
            if part := step.parts.get(name, 0):
                top = y((total + part) / 1e6)
                title = tr(
                    "step {num}: {part} {time} of {whole}",
                    num=step.number,
                    part=translated(name),
                    time=duration(part),
                    whole=duration(step.length_ns),
                )
                svg.rect((left, top, width, y(total / 1e6) - top), colour_of(name, d.legends), title)
                total += part
        is_drawn = step.number == (d.picture or NO_PICTURE).step
        if is_drawn:
            svg.text(left + width / 2, y(total / 1e6) - 6, tr("drawn"), "middle", "strong")
        if i % labelled == 0 or is_drawn:
            svg.text(left + width / 2, 224, str(step.number), "middle")
    svg.text((MARGIN + border) / 2, 244, tr("recorded step"), "middle")


def in_order(parts: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the parts from the bottom up: work, then the causes, the largest first."""
    total: dict[str, float] = {}
    for each in parts:
        for name, ns in each.items():
            total[name] = total.get(name, 0.0) + ns
    return sorted(total, key=lambda name: (name not in (BUSY, WORK), -total[name]))


def _steps_label(d: Diagnosis, steps: Sequence[StepParts], tracks: Sequence[Readings]) -> str:
    first, last = (f"{steps[0].number}", f"{steps[-1].number}") if steps else ("", "")
    lengths = [s.length_ns for s in steps] or [0]
    words = tr(
        "Times of the recorded steps {first} to {last}: {low} to {high}, and of {others} that were not recorded.",
        first=first,
        last=last,
        low=duration(min(lengths)),
        high=duration(max(lengths)),
        others=plural(len(d.source.unprofiled_step_ns), "step"),
    )
    if not tracks:
        return words
    return f"{words} {tr('NVML read meanwhile: {readings}.', readings='; '.join(map(track_words, tracks)))}"


def colour_of(name: str, legends: Mapping[str, Legend]) -> str:
    """Return the colour of work or of a cause."""
    if name == BUSY:
        return legible(PARTS["compute"].colour)
    return legible(legends[name].colour if name in legends else CATEGORIES["operator"])


def memory_chart(m: Memory) -> Markup | None:
    """Return allocated and reserved memory over the steady steps."""
    if len(m.timeline) < 2:
        return None
    last = m.timeline[-1][0] or 1
    reserved = [r for _, _, r in m.timeline]
    highest = max([m.peak_allocated, *(a for _, a, _ in m.timeline), *reserved]) or 1
    unit, per = next((u for u in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if highest >= u[1]), ("B", 1.0))
    svg = Svg(
        tr(
            "Memory of {device} over the steady steps: {size} at the peak.",
            device=m.device,
            size=size(m.peak_allocated),
        ),
        248,
    )
    x, y = Axis(0, last / 1e6, MARGIN, RIGHT), Axis(0, highest * 1.08 / per, 190, 20)
    svg.y_axis(y, MARGIN, RIGHT, [(v, f"{v:g}") for v in ticks(0, highest / per, 4)], unit)
    svg.x_axis(x, 190, [(v, f"{v:g}") for v in ticks(0, last / 1e6, 8)], 20, tr("ms from the first steady step"))
    allocated = _held([(x(t / 1e6), y(a / per)) for t, a, _ in m.timeline])
    if m.categories_over_time:
        _categories(svg, m, x, Axis(0, y.high * per, y.first, y.last))
    else:
        svg.area(allocated, 190, LINE)
    svg.line(allocated, LINE)
    svg.text(allocated[-1][0] - 4, allocated[-1][1] - 5, tr("allocated"), "end", "strong")
    if min(reserved) > 0:
        line = _held([(x(t / 1e6), y(r / per)) for t, _, r in m.timeline])
        svg.line(line, WARN, 1.5, ' stroke-dasharray="6 3"')
        svg.text(MARGIN + 6, line[0][1] - 5, tr("reserved"), "start", "strong")
    if m.capacity and highest > m.capacity / 10 and m.capacity <= highest * 1.08:
        svg.line([(MARGIN, y(m.capacity / per)), (RIGHT, y(m.capacity / per))], "currentColor", 1)
    at = x(m.peak_at_ns / 1e6)
    svg.mark((at, y(m.peak_allocated / per)), "diamond", 4.5, LINE, tr("peak: {size}", size=size(m.peak_allocated)))
    return svg.render()


def _categories(svg: Svg, m: Memory, x: Axis, y: Axis) -> None:
    """Add what each category holds, one upon the other, and below them their names."""
    base = [0.0] * len(m.timeline)
    at = MARGIN
    for i, (name, sizes) in enumerate(m.categories_over_time.items()):
        top = [low + size for low, size in zip(base, sizes, strict=True)]
        times = [x(t / 1e6) for t, _, _ in m.timeline]
        up = _held([(t, y(v)) for t, v in zip(times, top, strict=True)])
        down = _held([(t, y(v)) for t, v in zip(times, base, strict=True)])
        colour = legible(SERIES_COLOURS[i % len(SERIES_COLOURS)])
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in [*up, *reversed(down)])
        svg.parts.append(f'<polygon points="{path}" fill="{colour}" fill-opacity="0.75"/>')
        svg.rect((at, 230, 10, 10), colour)
        svg.text(at + 15, 239, middle(translated(name), 48))
        at += 34 + 6.6 * min(len(name), 48)
        base = top


def _held(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a line that keeps each value until the next one."""
    out: list[tuple[float, float]] = []
    for x, y in points:
        if out:
            out.append((x, out[-1][1]))
        out.append((x, y))
    return out


def roofline_chart(r: Roofline) -> Markup | None:
    """Return the operators that compute under the roof of their own precision; none lies above it."""
    shown = [p for p in r.points if p.tflops > 0 and p.flop_per_byte > 0]
    if not shown or not r.tflops or r.gb_per_s <= 0:
        return None
    top = max(r.tflops.values())
    low = min([1.0, *(p.flop_per_byte for p in shown)]) / 2
    high = max(1000.0, *(p.flop_per_byte for p in shown)) * 2
    svg = Svg(
        tr(
            "Roofline of {device}: {operators} with what they achieve.",
            device=r.device,
            operators=plural(len(shown), "operator"),
        ),
        380,
    )
    floor = min([low * r.gb_per_s / 1000, *(p.tflops for p in shown)]) / 1.5
    x, y = Axis(low, high, MARGIN, RIGHT, is_log=True), Axis(floor, top * 1.6, 330, 18, is_log=True)
    svg.x_axis(x, 330, [(v, f"{v:g}") for v in log_ticks(low, high)], 18, tr("FLOP per byte of memory traffic"))
    svg.y_axis(y, MARGIN, RIGHT, [(v, f"{v:g}") for v in log_ticks(floor, top * 1.6)], "TFLOP/s")
    used = {p.precision for p in shown}
    for i, (name, rate) in enumerate(r.tflops.items()):
        colour, ridge = SERIES_COLOURS[i % len(SERIES_COLOURS)], rate * 1000 / r.gb_per_s
        dash = "" if name in used else ' stroke-dasharray="3 4"'
        svg.line([(x(low), y(low * r.gb_per_s / 1000)), (x(ridge), y(rate)), (RIGHT, y(rate))], colour, 1.4, dash)
        svg.text(RIGHT, y(rate) - 5, f"{name} {rate:,.0f} TFLOP/s", "end")
    names = list(r.tflops)
    for p in sorted(shown, key=lambda p: -p.step_share):
        i = names.index(p.precision) if p.precision in names else 0
        roof = min(p.flop_per_byte * r.gb_per_s / 1000, r.tflops.get(p.precision, top))
        title = (
            f"{middle(p.op, 60)} {middle(p.shapes, 80)}: {min(p.tflops, roof):.1f} TFLOP/s, "
            + tr("{share} of the {bound} bound", share=achieved(p.achieved), bound=translated(p.bound))
            + f", {tr('{share} of the step', share=percent(p.step_share))}, {p.precision}"
        )
        at = x(p.flop_per_byte), y(min(p.tflops, roof))
        radius = 4 + 12 * max(p.step_share, 0.0) ** 0.5
        svg.mark(at, SHAPES[i % len(SHAPES)], radius, SERIES_COLOURS[i % len(SERIES_COLOURS)], title)
    return svg.render()


def achieved(share: float) -> str:
    """Return the share of the roof; data that a cache delivers can be read faster than the memory's rate."""
    return "> 99 %" if share >= 0.995 else percent(share)


def _thinned(values: Sequence[int]) -> list[int]:
    if len(values) <= MAX_DRAWN_STEPS:
        return list(values)
    return [values[i * len(values) // MAX_DRAWN_STEPS] for i in range(MAX_DRAWN_STEPS)]


# The trials' charts: each measured speed-up with its interval beside the predicted one, and the losses.

TRIAL_ROW = 30.0
NAMES_END = 250.0
TONES = {
    "gain": ("faster for certain", "#2fa36b", "square"),
    "drifted": ("faster, but other losses", "#d08a2e", "triangle"),
    "even": ("not certain", "#8a94a2", "circle"),
    "loss": ("slower for certain", "#e5484d", "diamond"),
}
LINES = ("#3d7fd6", "#2fa36b", "#d08a2e", "#a267d1", "#e5484d", "#2aa5a0", "#c75b9b", "#8a7a3d")
"""Colours of the losses, taken in turn."""
DASHES = ("", ' stroke-dasharray="7 3"', ' stroke-dasharray="2 3"')


def trial_name(trial: Trial) -> str:
    """Return what was run, in a few words."""
    if trial.kind == "single":
        return trial.id
    return tr("together") if trial.kind == "combination" else tr("together, without {name}", name=trial.id)


def trial_chart(d: Diagnosis) -> Markup | None:
    """Return a row for each measured trial: its speed-up with the interval, and the predicted one; None without any."""
    measured = [t for t in d.trials if t.steps_ms is not None and not t.failure and math.isfinite(t.speed_up)]
    if not measured:
        return None
    predicted = [_predicted(t) for t in measured]
    ends = [1.0, *(x for t in measured for x in (*t.interval, t.speed_up)), *(x for x in predicted if x is not None)]
    finite = [x for x in ends if math.isfinite(x)]
    low, high = min(0.95, *finite) * 0.98, max(1.1, *finite) * 1.02
    bottom = 30 + TRIAL_ROW * len(measured)
    svg = Svg(
        tr("Measured speed-ups with their 95 % intervals: {trials}.", trials="; ".join(map(_words, measured))),
        bottom + 46,
    )
    x = Axis(low, high, NAMES_END, RIGHT)
    noise = max((t.noise for t in measured if t.noise is not None and math.isfinite(t.noise)), default=0.0)
    band = x(1 - noise), x(1 + noise)
    svg.rect(
        (band[0], 22, band[1] - band[0], bottom - 22),
        "currentColor",
        tr("what equal runs differ by"),
        ' fill-opacity="0.12"',
    )
    svg.x_axis(
        x,
        bottom,
        [(v, f"{v:g} ×") for v in ticks(low, high, 8)],
        22,
        tr("speed-up of the step; a gain lies right of 1 ×"),
    )
    svg.line([(x(1), 22), (x(1), bottom)], "currentColor", 1.2, ' stroke-dasharray="4 3"')
    for i, (t, guess) in enumerate(zip(measured, predicted, strict=True)):
        y = 30 + TRIAL_ROW * i + TRIAL_ROW / 2
        _, colour, shape = TONES[verdict(t)]
        svg.text(NAMES_END - 10, y + 4, middle(one_line(trial_name(t)), 34), "end")
        svg.line([(x(t.interval[0]), y), (x(t.interval[1]), y)], legible(colour), 3)
        svg.mark((x(t.speed_up), y), shape, 5, legible(colour), _words(t))
        if guess is not None:
            svg.mark((x(guess), y), "open", 6, "currentColor", tr("predicted {time}", time=f"{guess:.2f} ×"))
    return svg.render()


def tones(d: Diagnosis) -> list[tuple[str, str, str]]:
    """Return the legend: label, colour and shape of what occurs."""
    occurring = {verdict(t) for t in d.trials if t.steps_ms is not None and not t.failure}
    return [(label, legible(colour), shape) for tone, (label, colour, shape) in TONES.items() if tone in occurring]


def _words(trial: Trial) -> str:
    low, high = trial.interval
    span = tr("{low} to {high}", low=f"{low:.2f}", high=f"{high:.2f}")
    words = certainty_words(trial) or translated(TONES[verdict(trial)][0])
    return f"{trial_name(trial)} {trial.speed_up:.2f} × ({span}), {words}"


def _predicted(trial: Trial) -> float | None:
    if trial.predicted_ms is None or trial.steps_ms is None or not 0 < trial.predicted_ms < math.inf:
        return None
    return trial.steps_ms[0] / trial.predicted_ms


def loss_chart(d: Diagnosis) -> Markup | None:
    """Return the losses of the same steps over each other: without a change (broad), then with each."""
    shown = [t for t in d.trials if len(t.losses[0]) > 1 and len(t.losses[1]) > 1]
    if not shown:
        return None
    curves = [(tr("without a change"), *curve) for curve in _unchanged(shown)]
    curves += [
        (
            f"{trial_name(t)}: {translated(t.numerics)}",
            t.losses[1][:MAX_LOSSES],
            legible(LINES[i % len(LINES)]),
            1.8,
            DASHES[i % 3],
        )
        for i, t in enumerate(shown)
    ]
    known = [y for _, ys, *_ in curves for y in ys if math.isfinite(y)]
    if not known:
        return None
    is_log = 0 < min(known) < max(known) / 30
    low, high = (min(known) / 1.2, max(known) * 1.2) if is_log else (min(known), max(known) or 1.0)
    bottom = 210.0
    svg = Svg(tr("Losses of the same steps with each change and without."), bottom + 40 + 18 * len(curves))
    x = Axis(1, max(len(ys) for _, ys, *_ in curves), 70, 1046)
    y = Axis(low, high if high > low else low + 1, bottom, 22, is_log=is_log)
    marks = log_ticks(low, high) if is_log else ticks(low, high, 4)
    svg.y_axis(y, 70, 1046, [(v, f"{v:.3g}") for v in marks], tr("loss"))
    svg.x_axis(x, bottom, [(v, f"{v:.0f}") for v in ticks(1, x.high, 8) if v == round(v)], 22)
    for row, (name, ys, colour, width, dash) in enumerate(curves):
        svg.line([(x(i + 1), y(v)) for i, v in enumerate(ys) if math.isfinite(v)], colour, width, dash)
        at = bottom + 40 + 18 * row
        svg.line([(70, at), (110, at)], colour, width, dash)
        svg.text(118, at + 4, middle(one_line(name), 60))
    return svg.render()


def _unchanged(trials: Sequence[Trial]) -> list[tuple[tuple[float, ...], str, float, str]]:
    different = list(dict.fromkeys(t.losses[0][:MAX_LOSSES] for t in trials))[:3]
    return [(losses, "currentColor", 6.0, ' stroke-opacity="0.25"') for losses in different]

"""The page's charts that need no script: step times, memory, roofline, and the ranks' heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from markupsafe import Markup

from diagnose.model.charts import BUSY, Memory, Readings, Roofline, StepParts
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.rules import WORK, Legend
from diagnose.reports.colours import legible
from diagnose.reports.format import duration, percent, plural, size
from diagnose.reports.language import tr, translated
from diagnose.reports.rule_labels import CATEGORIES, PARTS
from diagnose.reports.svg import Axis, Svg, log_ticks, ticks
from diagnose.text.plain_text import middle

__all__ = ["achieved", "colour_of", "in_order", "memory_chart", "roofline_chart", "steps_chart", "track_words"]

LEFT, RIGHT = 64.0, 1046.0
MAX_STEPS = 240  # bars or points of one chart: more would be thinner than two pixels
MAX_BAR = 64  # width of a step
TRACK = 62  # height of one series of NVML
LINE, GOOD, WARN = "#5b7fa6", "#2f8f5f", "#b9770e"
SHAPES = ("circle", "square", "diamond", "triangle")
MEMORY_COLOURS = ("#5b7fa6", "#b9770e", "#9b59d0", "#2f8f5f", "#c2477f", "#76879c", "#17a3a3", "#a5673f")
PRECISION_COLOURS = ("#5b7fa6", "#b9770e", "#9b59d0", "#2f8f5f")


def steps_chart(d: Diagnosis) -> Markup | None:
    """Return the recorded steps, each stacked by what it consists of, beside those that were not recorded.

    What NVML read meanwhile lies below, on the axis of the steps.
    """
    recorded = d.picture.steps if d.picture is not None else ()
    if not recorded:
        recorded = tuple(StepParts(i + 1, ns, {BUSY: ns}) for i, ns in enumerate(d.step_times_ns))
    recorded, others = recorded[:MAX_STEPS], _thinned(d.source.unprofiled_step_ns)
    if len(recorded) + len(others) < 2:
        return None
    highest = max([s.length_ns for s in recorded] + list(others)) or 1
    tracks = d.picture.readings if d.picture is not None else ()
    svg = Svg(_steps_label(d, recorded, tracks), 250 + TRACK * len(tracks))
    y = Axis(0, highest / 1e6, 205, 24)
    svg.y_axis(y, LEFT, RIGHT, [(v, f"{v:g}") for v in ticks(0, highest / 1e6, 4)], "ms")
    share = len(recorded) / (len(recorded) + len(others)) if others else 1.0
    border = LEFT + (RIGHT - LEFT) * min(max(share, 0.5 if tracks else 0.25), 0.85) if others else RIGHT
    _stack(svg, d, recorded, y, border)
    if others:
        x = Axis(0, len(others), border + 16, RIGHT)
        for i, ns in enumerate(others):
            svg.mark((x(i + 0.5), y(ns / 1e6)), "circle", 2.5, GOOD, tr("not recorded: {time}", time=duration(ns)))
        middle_ns = median(d.source.unprofiled_step_ns)
        svg.line([(border + 16, y(middle_ns / 1e6)), (RIGHT, y(middle_ns / 1e6))], GOOD, 1.2, ' stroke-dasharray="5 4"')
        svg.text((border + 16 + RIGHT) / 2, 224, tr("not recorded, median {time}", time=duration(middle_ns)), "middle")
    for i, track in enumerate(tracks):
        _track(svg, track, Axis(0, len(recorded), LEFT, border), 250 + TRACK * i)
    return svg.render()


def _track(svg: Svg, track: Readings, x: Axis, top: float) -> None:
    """Add one series of NVML under the steps, from zero to what the board allows."""
    values = [value for _, value in track.points]
    y = Axis(0, max([track.limit or 0.0, *values]) or 1.0, top + TRACK - 12, top + 20)
    svg.text(LEFT, top + 13, track_words(track))
    at = [(x(position), y(value)) for position, value in track.points if position <= x.high]
    svg.parts.append(
        f'<path class="grid" d="M{x.first:.1f},{y.first:.1f}H{x.last:.1f}M{x.first:.1f},{y.last:.1f}H{x.last:.1f}"/>'
    )
    svg.area(at, y.first, LINE)
    svg.line(at, LINE)
    for (px, py), (_, value) in zip(at, track.points, strict=False):
        svg.mark((px, py), "circle", 2.2, LINE, f"{translated(track.name)} {_short(value)} {track.unit}")
    svg.text(LEFT - 7, y.last + 5, _short(y.high), "end")
    svg.text(LEFT - 7, y.first + 4, "0", "end")


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
    each = (border - LEFT) / max(len(steps), 1)
    order = in_order([s.parts for s in steps])
    labelled = max(1, len(steps) // 12)
    for i, step in enumerate(steps):
        width = min(each * 0.76, MAX_BAR)
        left, total = LEFT + (i + 0.5) * each - width / 2, 0.0
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
        is_drawn = d.picture is not None and step.number == d.picture.step
        if is_drawn:
            svg.text(left + width / 2, y(total / 1e6) - 6, tr("drawn"), "middle", "strong")
        if i % labelled == 0 or is_drawn:
            svg.text(left + width / 2, 224, str(step.number), "middle")
    svg.text((LEFT + border) / 2, 244, tr("recorded step"), "middle")


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
    x, y = Axis(0, last / 1e6, LEFT, RIGHT), Axis(0, highest * 1.08 / per, 190, 20)
    svg.y_axis(y, LEFT, RIGHT, [(v, f"{v:g}") for v in ticks(0, highest / per, 4)], unit)
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
        svg.text(LEFT + 6, line[0][1] - 5, tr("reserved"), "start", "strong")
    if m.capacity and highest > m.capacity / 10 and m.capacity <= highest * 1.08:
        svg.line([(LEFT, y(m.capacity / per)), (RIGHT, y(m.capacity / per))], "currentColor", 1)
    at = x(m.peak_at_ns / 1e6)
    svg.mark((at, y(m.peak_allocated / per)), "diamond", 4.5, LINE, tr("peak: {size}", size=size(m.peak_allocated)))
    return svg.render()


def _categories(svg: Svg, m: Memory, x: Axis, y: Axis) -> None:
    """Add what each category holds, one upon the other, and below them their names."""
    base = [0.0] * len(m.timeline)
    at = LEFT
    for i, (name, sizes) in enumerate(m.categories_over_time.items()):
        top = [low + size for low, size in zip(base, sizes, strict=True)]
        times = [x(t / 1e6) for t, _, _ in m.timeline]
        up = _held([(t, y(v)) for t, v in zip(times, top, strict=True)])
        down = _held([(t, y(v)) for t, v in zip(times, base, strict=True)])
        colour = legible(MEMORY_COLOURS[i % len(MEMORY_COLOURS)])
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
    x, y = Axis(low, high, LEFT, RIGHT, is_log=True), Axis(floor, top * 1.6, 330, 18, is_log=True)
    svg.x_axis(x, 330, [(v, f"{v:g}") for v in log_ticks(low, high)], 18, tr("FLOP per byte of memory traffic"))
    svg.y_axis(y, LEFT, RIGHT, [(v, f"{v:g}") for v in log_ticks(floor, top * 1.6)], "TFLOP/s")
    used = {p.precision for p in shown}
    for i, (name, rate) in enumerate(r.tflops.items()):
        colour, ridge = PRECISION_COLOURS[i % len(PRECISION_COLOURS)], rate * 1000 / r.gb_per_s
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
        svg.mark(at, SHAPES[i % len(SHAPES)], radius, PRECISION_COLOURS[i % len(PRECISION_COLOURS)], title)
    return svg.render()


def achieved(share: float) -> str:
    """Return the share of the roof; data that a cache delivers can be read faster than the memory's rate."""
    return "> 99 %" if share >= 0.995 else percent(share)


def _thinned(values: Sequence[int]) -> list[int]:
    if len(values) <= MAX_STEPS:
        return list(values)
    return [values[i * len(values) // MAX_STEPS] for i in range(MAX_STEPS)]

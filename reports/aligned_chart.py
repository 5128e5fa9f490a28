"""One step of the late, the median and the fastest rank on one clock: who comes late, and where the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from diagnose.model.job import AlignedRank, AlignedStep
from diagnose.reports.colours import legible
from diagnose.reports.format import duration
from diagnose.reports.language import tr, translated
from diagnose.reports.svg import Axis, Svg, ticks

__all__ = ["aligned_chart"]

LEFT, RIGHT = 90.0, 1046.0
ROW = 66.0  # height of one rank: its step, its collectives, its causes
STEP, BAR = 7.0, 20.0  # heights of the marks
WAITS, MOVES, LAST = "#b9770e", "#3f8f8c", "#d0454c"
LAST_WIDTH = 3.0
MAX_TITLED = 40  # collectives of a rank that show their numbers under the mouse, the longest
LEGEND_WIDTH = 215.0  # of one entry


def aligned_chart(step: AlignedStep) -> Markup:
    """Return a row for each rank: its step as the host has it, its collectives, waiting and transfer apart, its causes.

    A collective for which a rank waits for nobody is marked: there it came last of all ranks.
    """
    ranks = step.ranks
    height = ROW * len(ranks) + 68
    svg = Svg(
        tr(
            "Step {num} on one clock: {ranks}.",
            num=step.step,
            ranks=tr(", ").join(f"{tr('rank {num}', num=r.rank)} ({_part(r)})" for r in ranks),
        ),
        height,
    )
    last = max(max(r.end_ns, *(c.start_ns + c.waiting_ns + c.transfer_ns for c in r.collectives)) for r in ranks)
    x = Axis(0, max(last, 1.0) / 1e6, LEFT, RIGHT)
    bottom = ROW * len(ranks)
    svg.x_axis(x, bottom, [(v, f"{v:g} ms") for v in ticks(0, x.high, 8)], 0)
    for i, rank in enumerate(ranks):
        _row(svg, rank, x, i * ROW + 6)
    entries = (
        ("currentColor", 0.4, tr("the step on the host")),
        (legible(WAITS), 1.0, tr("waits for other ranks")),
        (legible(MOVES), 1.0, tr("transfer")),
        (legible(LAST), 1.0, tr("came last of all ranks")),
    )
    for i, (colour, opacity, words) in enumerate(entries):
        svg.rect((LEFT + i * LEGEND_WIDTH, height - 23, 12, 12), colour, more=f' fill-opacity="{opacity}"')
        svg.text(LEFT + i * LEGEND_WIDTH + 18, height - 12, words)
    return svg.render()


def _part(rank: AlignedRank) -> str:
    words = {"late": tr("late"), "slowest": tr("slowest"), "median": tr("median"), "fastest": tr("fastest")}
    return words.get(rank.part, rank.part)


def _row(svg: Svg, rank: AlignedRank, x: Axis, top: float) -> None:
    """Add one rank."""
    svg.text(LEFT - 8, top + 14, tr("rank {num}", num=rank.rank), "end", "strong" if rank.part == "late" else "")
    svg.text(LEFT - 8, top + 30, _part(rank), "end")
    begin, end = x(rank.begin_ns / 1e6), x(rank.end_ns / 1e6)
    words = tr("step of {time}", time=duration(rank.end_ns - rank.begin_ns))
    svg.rect((begin, top, end - begin, STEP), "currentColor", words, ' fill-opacity="0.4"')
    under = top + STEP + 3
    waits, moves, latest = [], [], []
    for c in rank.collectives:
        came, moved, left = c.start_ns / 1e6, (c.start_ns + c.waiting_ns) / 1e6, c.start_ns + c.waiting_ns
        waits += [(x(came), x(moved))] if c.waiting_ns > 0 else []
        latest += [(x(came), x(came) + LAST_WIDTH)] if c.waiting_ns <= 0 else []
        moves += [(x(moved), x((left + c.transfer_ns) / 1e6))]
    for spans, colour in ((waits, WAITS), (moves, MOVES), (latest, LAST)):
        _spans(svg, spans, under, legible(colour))
    for c in sorted(rank.collectives, key=lambda c: -(c.waiting_ns + c.transfer_ns))[:MAX_TITLED]:
        whole = c.waiting_ns + c.transfer_ns
        title = tr(
            "{name}: waits {waits}, transfer {time}",
            name=c.name,
            waits=duration(c.waiting_ns),
            time=duration(c.transfer_ns),
        )
        at = x(c.start_ns / 1e6)
        svg.rect((at, under, x((c.start_ns + whole) / 1e6) - at, BAR), "transparent", title)
    if said := _loses(rank):
        svg.text(LEFT, under + BAR + 16, said)


def _spans(svg: Svg, spans: Sequence[tuple[float, float]], top: float, colour: str) -> None:
    path = "".join(_box(spans, top))
    if path:
        svg.parts.append(f'<path d="{path}" fill="{colour}"/>')


def _box(spans: Iterable[tuple[float, float]], top: float) -> Iterable[str]:
    for begin, end in spans:
        width = max(end - begin, 0.4)
        yield f"M{begin:.1f},{top:.1f}h{width:.1f}v{BAR:.1f}h{-width:.1f}z"


def _loses(rank: AlignedRank) -> str:
    """Return the causes of a rank in words, and how many of its collectives are drawn where these are not all."""
    causes = tr(", ").join(f"{translated(cause)} {duration(ns)}" for cause, ns in rank.causes)
    words = [tr("loses {causes}", causes=causes)] if causes else []
    if rank.num_collectives > len(rank.collectives):
        num, total = len(rank.collectives), rank.num_collectives
        words.append(tr("the {num} longest of {total} collectives", num=num, total=total))
    return "; ".join(words)

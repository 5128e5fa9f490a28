"""The charts of a job of several ranks: who loses what, who is late in which step, who comes last to a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from diagnose.model.diagnosis import RankSummary
from diagnose.model.job import Job, RankRow
from diagnose.model.rules import Legend
from diagnose.reports.charts import colour_of, in_order
from diagnose.reports.colours import legible
from diagnose.reports.format import duration, percent, plural
from diagnose.reports.language import tr, translated
from diagnose.reports.svg import Axis, Svg, ticks
from diagnose.text.plain_text import middle

__all__ = ["arrival_chart", "lateness_chart", "rank_chart"]

LINE, LATE = "#5b7fa6", "#d0454c"
RIGHT = 1046.0
MAX_NAMED_RANKS = 64  # beyond it a rank's column is too narrow for a title of its own
MIN_ROW_SHARE = 0.01  # of the step, on one rank at least: less is no row of the heat map
MAX_LATE_ROWS = 24  # of the heat map of lateness, the worst: each row has its rank's number beside it
MAX_COLUMNS = 200  # of it: of more steps several share one, as narrower cells cannot be told apart
LEVELS = 5  # of the heat map's shades


def rank_chart(ranks: Sequence[RankSummary], legends: Mapping[str, Legend]) -> Markup:
    """Return one column a rank: its step, and below how much of it each cause takes."""
    shares = [_rank_shares(r) for r in ranks]
    rows = [name for name in in_order(shares) if max(s.get(name, 0.0) for s in shares) >= MIN_ROW_SHARE][:9]
    bars, cell, left = 70.0, 20.0, 214.0
    height = 24 + bars + 16 + cell * len(rows) + 26
    slowest = max(ranks, key=lambda r: r.step_ns)
    svg = Svg(
        tr(
            "Steps of {ranks} and what they lose by cause; rank {num} is slowest.",
            ranks=plural(len(ranks), "rank"),
            num=slowest.rank,
        ),
        height,
    )
    each = (RIGHT - left) / len(ranks)
    y = Axis(0, max(slowest.step_ns, 1) / 1e6, 24 + bars, 24)
    svg.y_axis(y, left, RIGHT, [(v, f"{v:g}") for v in ticks(0, slowest.step_ns / 1e6, 3)], tr("step, ms"))
    path = "".join(
        f"M{left + i * each:.2f},{24 + bars:.1f}V{y(r.step_ns / 1e6):.1f}h{each * 0.9:.2f}V{24 + bars:.1f}z"
        for i, r in enumerate(ranks)
    )
    svg.parts.append(f'<path d="{path}" fill="{LINE}"/>')
    for row, name in enumerate(rows):
        top = 24 + bars + 16 + row * cell
        most = percent(max(s.get(name, 0.0) for s in shares))
        svg.text(left - 8, top + 14, f"{middle(translated(name), 24)} {most}", "end")
        _heat(svg, [s.get(name, 0.0) for s in shares], (left, top, each, cell), colour_of(name, legends))
    if len(ranks) <= MAX_NAMED_RANKS:
        for i, rank in enumerate(ranks):
            title = tr("rank {num}, step {time}: ", num=rank.rank, time=duration(rank.step_ns)) + ", ".join(
                f"{translated(name)} {percent(shares[i][name])}" for name in rows if shares[i].get(name, 0) > 0
            )
            svg.rect((left + i * each, 24, each, height - 50), "transparent", title)
    jump = max(1, round(len(ranks) / 16))
    for i in range(0, len(ranks), jump):
        svg.text(left + (i + 0.45) * each, height - 8, str(ranks[i].rank), "middle")
    svg.text(left - 8, height - 8, tr("rank"), "end")
    return svg.render()


def _rank_shares(rank: RankSummary) -> dict[str, float]:
    shares = dict(rank.idle_by_cause)
    if rank.partition is not None:
        shares["exposed communication"] = rank.partition.exposed_communication
        shares["exposed copies"] = rank.partition.exposed_copy
    return {name: share for name, share in shares.items() if share > 0}


def _heat(
    svg: Svg,
    values: Sequence[float],
    box: tuple[float, float, float, float],  # left and top of the row, width and height of a cell
    colour: str,
    highest: float = 0.0,
) -> None:
    """Add one row of cells, of each shade one path, so that a thousand ranks stay small.

    The strongest shade is of the row's own highest value, or of ``highest``, where rows are to be compared.
    """
    left, top, width, height = box
    highest = highest or max([*values, 0.01])
    svg.rect((left, top, width * len(values), height - 2), "currentColor", more=' fill-opacity="0.06"')
    for level in range(1, LEVELS + 1):
        mine = [i for i, v in enumerate(values) if v > 0 and min(int(v / highest * LEVELS) + 1, LEVELS) == level]
        path = "".join(
            f"M{left + i * width:.2f},{top:.1f}h{width * 0.96:.2f}v{height - 2:.1f}h{-width * 0.96:.2f}z" for i in mine
        )
        if path:
            svg.parts.append(f'<path d="{path}" fill="{colour}" fill-opacity="{level / LEVELS:.1f}"/>')


def lateness_chart(j: Job, step_ns: float) -> Markup | None:
    """Return how late each of the worst ranks was in each step: one row a rank, the worst first.

    None where there is one step, or where nobody was later than 1 % of the step.
    """
    rows = [r for r in j.rows if any(ns is not None for ns in r.by_step_ns)][:MAX_LATE_ROWS]
    num = min((len(r.by_step_ns) for r in rows), default=0)
    each = -(-num // MAX_COLUMNS) or 1  # steps of one column
    values = [_latest(r, num, each) for r in rows]
    highest = max((ns for row in values for ns in row), default=0.0)
    if num < 2 or highest < MIN_ROW_SHARE * step_ns:
        return None
    late = [r.rank for r in rows if r.rank in j.late_ranks]
    svg = Svg(
        tr(
            "Lateness of {ranks} in each of {steps}, the worst first; late: {late}.",
            ranks=plural(len(rows), "rank"),
            steps=plural(num, "step"),
            late=", ".join(map(str, late)) or tr("none"),
        ),
        18.0 * len(rows) + 48,
    )
    left = 90.0
    width = (RIGHT - left) / len(values[0])
    for i, (row, shown) in enumerate(zip(rows, values, strict=True)):
        is_late = row.rank in j.late_ranks
        svg.text(left - 8, i * 18 + 14, tr("rank {num}", num=row.rank), "end", "strong" if is_late else "")
        _heat(svg, shown, (left, i * 18, width, 18), legible(LATE), highest)
    bottom = 18 * len(rows) + 14
    for column in range(0, len(values[0]), max(1, round(len(values[0]) / 16))):
        number = j.steps[column * each] if column * each < len(j.steps) else column * each
        svg.text(left + (column + 0.48) * width, bottom, str(number), "middle")
    svg.text(left - 8, bottom, tr("step"), "end")
    words = "the stronger the red the later than its equals, up to {time}; empty: no later, or not compared"
    svg.text(left, bottom + 24, tr(words, time=duration(highest)))
    return svg.render()


def _latest(row: RankRow, num: int, each: int) -> list[float]:
    """Return a rank's lateness by column, of several steps the most; 0 where it was no later or not compared."""
    late = [max(ns or 0.0, 0.0) for ns in row.by_step_ns[:num]]
    return [max(late[i : i + each]) for i in range(0, num, each)]


def arrival_chart(j: Job) -> Markup | None:
    """Return how long before the last rank each rank came to each collective of the middle step; the last is marked."""
    rows = [r for r in j.rows if any(ns is not None for ns in r.arrivals_ns)]
    if len(rows) < 2 or not j.arrivals:
        return None
    rows = sorted(rows, key=lambda r: r.rank)
    left, cell = 90.0, max(8.0, min(20.0, 420 / len(rows)))
    height = 20 + cell * len(rows) + 36
    latest = [r.rank for r in rows if r.rank in j.late_ranks]
    svg = Svg(
        tr(
            "Arrival of {ranks} at each collective; late: {late}.",
            ranks=plural(len(rows), "rank"),
            late=latest or tr("none"),
        ),
        height,
    )
    width = (RIGHT - left) / len(j.arrivals)
    highest = max((ns for r in rows for ns in r.arrivals_ns if ns is not None), default=0) or 1
    shades: dict[int, list[str]] = {}
    for i, row in enumerate(rows):
        top = 20 + i * cell
        jump = max(1, round(14 / cell))
        beside = any(r.rank in j.late_ranks for r in rows[max(i - jump + 1, 0) : i + jump] if r is not row)
        if row.rank in j.late_ranks or (i % jump == 0 and not (beside and jump > 1)):
            svg.text(
                left - 8,
                top + cell - 3,
                tr("rank {num}", num=row.rank),
                "end",
                "strong" if row.rank in j.late_ranks else "",
            )
        for k, ns in enumerate(row.arrivals_ns[: len(j.arrivals)]):
            if ns is None:
                continue
            box = f"M{left + k * width:.1f},{top:.1f}h{width * 0.94:.1f}v{cell * 0.9:.1f}h{-width * 0.94:.1f}z"
            if ns <= 0:
                svg.parts.append(f'<path d="{box}" fill="{legible(LATE)}"/>')
            else:
                shades.setdefault(min(int(ns / highest * LEVELS) + 1, LEVELS), []).append(box)
    for level, boxes in shades.items():
        svg.parts.append(f'<path d="{"".join(boxes)}" fill="{LINE}" fill-opacity="{level / LEVELS:.1f}"/>')
    words = "red: came last; the stronger the blue the longer it waited, up to {time}"
    svg.text(left, height - 8, tr(words, time=duration(highest)))
    return svg.render()

"""The page's charts of a job of several ranks: who loses what, who is late in which step, who comes last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from diagnose.model.diagnosis import RankSummary
from diagnose.model.job import AlignedRank, AlignedStep, Job, RankRow
from diagnose.model.rules import Legend
from diagnose.reports.charts import RIGHT, Axis, Svg, colour_of, in_order, legible, ticks
from diagnose.reports.format import duration, percent, plural
from diagnose.reports.language import tr, translated
from diagnose.text.plain_text import middle

CALM, WAITS, MOVES, LATE = "#5b7fa6", "#b9770e", "#3f8f8c", "#d0454c"
NAMES = 90.0  # units at the left, for the names of ranks
MIN_ROW_SHARE = 0.01  # of the step, on one rank at least: less is no row of the heat map
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
    svg.parts.append(f'<path d="{path}" fill="{CALM}"/>')
    for row, name in enumerate(rows):
        top = 24 + bars + 16 + row * cell
        most = percent(max(s.get(name, 0.0) for s in shares))
        svg.text(left - 8, top + 14, f"{middle(translated(name), 24)} {most}", "end")
        _heat(svg, [s.get(name, 0.0) for s in shares], (left, top, each, cell), colour_of(name, legends))
    if len(ranks) <= 64:  # beyond it a rank's column is too narrow for a title of its own
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
    # The worst: each row has its rank's number next to it.
    rows = [r for r in j.rows if any(ns is not None for ns in r.by_step_ns)][:24]
    num = min((len(r.by_step_ns) for r in rows), default=0)
    # Of more steps several share a column: narrower cells cannot be told apart.
    each = -(-num // 200) or 1  # steps of one column
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
    left, width = NAMES, (RIGHT - NAMES) / len(values[0])
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
    cell, width = max(8.0, min(20.0, 420 / len(rows))), (RIGHT - NAMES) / len(j.arrivals)
    height, jump = 20 + cell * len(rows) + 36, max(1, round(14 / cell))
    latest = [r.rank for r in rows if r.rank in j.late_ranks]
    words = tr(
        "Arrival of {ranks} at each collective; late: {late}.",
        ranks=plural(len(rows), "rank"),
        late=latest or tr("none"),
    )
    svg = Svg(words, height)
    highest = max((ns for r in rows for ns in r.arrivals_ns if ns is not None), default=0) or 1
    boxes: dict[tuple[str, float], list[str]] = {}
    for i, row in enumerate(rows):
        top, is_late = 20 + i * cell, row.rank in j.late_ranks
        near = rows[max(i - jump + 1, 0) : i + jump]  # whose names would lie on this one's
        if is_late or (i % jump == 0 and not any(r.rank in j.late_ranks for r in near)):
            name = tr("rank {num}", num=row.rank)
            svg.text(NAMES - 8, top + cell - 3, name, "end", "strong" if is_late else "")
        came = {k: ns for k, ns in enumerate(row.arrivals_ns[: len(j.arrivals)]) if ns is not None}
        for k, ns in came.items():
            shade = CALM, (min(int(ns / highest * LEVELS), LEVELS - 1) + 1) / LEVELS
            box = f"M{NAMES + k * width:.1f},{top:.1f}h{width * 0.94:.1f}v{cell * 0.9:.1f}h{-width * 0.94:.1f}z"
            boxes.setdefault(shade if ns > 0 else (legible(LATE), 1.0), []).append(box)
    for (colour, opacity), drawn in boxes.items():
        svg.parts.append(f'<path d="{"".join(drawn)}" fill="{colour}" fill-opacity="{opacity:.1f}"/>')
    words = "red: came last; the stronger the blue the longer it waited, up to {time}"
    svg.text(NAMES, height - 8, tr(words, time=duration(highest)))
    return svg.render()


# One step of the late, the median and the fastest rank on one clock: who comes late, and where the others wait.

RANK_ROW, BAR = 66.0, 20.0  # heights: of a rank with its step, its collectives and its causes; of a collective


def aligned_chart(step: AlignedStep) -> Markup:
    """Return a row for each rank: its step as the host has it, its collectives, waiting and transfer apart, its causes.

    A collective for which a rank waits for nobody is marked: there it came last of all ranks.
    """
    ranks = step.ranks
    height = RANK_ROW * len(ranks) + 68
    svg = Svg(
        tr(
            "Step {num} on one clock: {ranks}.",
            num=step.step,
            ranks=tr(", ").join(f"{tr('rank {num}', num=r.rank)} ({_part(r)})" for r in ranks),
        ),
        height,
    )
    last = max(max(r.end_ns, *(c.start_ns + c.waiting_ns + c.transfer_ns for c in r.collectives)) for r in ranks)
    x = Axis(0, max(last, 1.0) / 1e6, NAMES, RIGHT)
    bottom = RANK_ROW * len(ranks)
    svg.x_axis(x, bottom, [(v, f"{v:g} ms") for v in ticks(0, x.high, 8)], 0)
    for i, rank in enumerate(ranks):
        _row(svg, rank, x, i * RANK_ROW + 6)
    entries = (
        ("currentColor", 0.4, tr("the step on the host")),
        (legible(WAITS), 1.0, tr("waits for other ranks")),
        (legible(MOVES), 1.0, tr("transfer")),
        (legible(LATE), 1.0, tr("came last of all ranks")),
    )
    for i, (colour, opacity, words) in enumerate(entries):
        svg.rect((NAMES + i * 215, height - 23, 12, 12), colour, more=f' fill-opacity="{opacity}"')
        svg.text(NAMES + i * 215 + 18, height - 12, words)
    return svg.render()


def _part(rank: AlignedRank) -> str:
    words = {"late": tr("late"), "slowest": tr("slowest"), "median": tr("median"), "fastest": tr("fastest")}
    return words.get(rank.part, rank.part)


def _row(svg: Svg, rank: AlignedRank, x: Axis, top: float) -> None:
    """Add one rank."""
    name = tr("rank {num}", num=rank.rank)
    svg.text(NAMES - 8, top + 14, name, "end", "strong" if rank.part == "late" else "")
    svg.text(NAMES - 8, top + 30, _part(rank), "end")
    begin, end = x(rank.begin_ns / 1e6), x(rank.end_ns / 1e6)
    words = tr("step of {time}", time=duration(rank.end_ns - rank.begin_ns))
    svg.rect((begin, top, end - begin, 7), "currentColor", words, ' fill-opacity="0.4"')
    under = top + 10
    ends = [(c.start_ns / 1e6, (c.start_ns + c.waiting_ns) / 1e6, c.transfer_ns / 1e6) for c in rank.collectives]
    waits = [(x(came), x(all_there)) for came, all_there, _ in ends if all_there > came]
    moves = [(x(all_there), x(all_there + transfer)) for _, all_there, transfer in ends]
    latest = [(x(came), x(came) + 3.0) for came, all_there, _ in ends if all_there <= came]
    for spans, colour in ((waits, WAITS), (moves, MOVES), (latest, LATE)):
        widths = [(left, max(right - left, 0.4)) for left, right in spans]
        boxes = [f"M{left:.1f},{under:.1f}h{width:.1f}v{BAR:.1f}h{-width:.1f}z" for left, width in widths]
        if boxes:
            svg.parts.append(f'<path d="{"".join(boxes)}" fill="{legible(colour)}"/>')
    # The longest show their numbers under the mouse.
    for c in sorted(rank.collectives, key=lambda c: -(c.waiting_ns + c.transfer_ns))[:40]:
        whole, waiting, transfer = c.waiting_ns + c.transfer_ns, duration(c.waiting_ns), duration(c.transfer_ns)
        words = tr("{name}: waits {waits}, transfer {time}", name=c.name, waits=waiting, time=transfer)
        at = x(c.start_ns / 1e6)
        svg.rect((at, under, x((c.start_ns + whole) / 1e6) - at, BAR), "transparent", words)
    svg.text(NAMES, under + BAR + 16, "; ".join(_loses(rank)))


def _loses(rank: AlignedRank) -> Iterator[str]:
    """Yield the causes of a rank in words, and how many of its collectives are drawn where these are not all."""
    if rank.causes:
        yield tr("loses {causes}", causes=tr(", ").join(f"{translated(c)} {duration(ns)}" for c, ns in rank.causes))
    num, total = len(rank.collectives), rank.num_collectives
    if total > num:
        yield tr("the {num} longest of {total} collectives", num=num, total=total)

"""The part of a step's data flow that a finding names: a row for each operator, an arc for each value between two."""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.model.charts import FlowNode, FlowPicture
from diagnose.model.diagnosis import Where
from diagnose.reports.charts import Svg, legible
from diagnose.reports.format import line_of, percent, plural
from diagnose.reports.language import tr, translated
from diagnose.text.plain_text import middle

ROW, HEADER, GAP = 22.0, 26.0, 18.0  # heights
NODE, NAME, SHAPE, INPUTS, SHARE = 90.0, 106.0, 280.0, 480.0, 752.0  # where columns lie
GREY = "#76879c"
MARKS = {"result": "the result", "use": "its use", "unused": "no operator reads it"}


def flow_title(picture: FlowPicture) -> str:
    """Return the sentence above the chart."""
    text = tr(
        "The finding names {num} of the step's {operators}, {share} of the operator time.",
        num=f"{picture.num_named:,}",
        operators=plural(picture.num_operators, "operator"),
        share=percent(picture.share),
    )
    drawn = sum(node.is_named for node in picture.nodes)
    left_out = picture.num_named - drawn
    return text if not left_out else f"{text} {tr('{num} of them are drawn.', num=drawn)}"


def flow_chart(picture: FlowPicture, colour: str) -> Svg:
    """Return the chart; those that the finding names are squares in its colour, others grey circles."""
    tone, height = legible(colour), ROW
    svg = Svg(flow_title(picture), 0, 760)  # drawn as wide as that, so that the text keeps its size
    for x, column in ((NAME, "Operator"), (SHAPE, "Result"), (INPUTS, "Reads from before the step")):
        svg.text(x, 14, tr(column))
    svg.text(SHARE, 14, tr("Share"), "end")
    at: list[float] = []
    for before, node in zip((None, *picture.nodes), picture.nodes, strict=False):
        if node.num_before:
            height += GAP
            svg.text(NAME, height - 5, _left_out(node.num_before))
        if before is None or node.num_before or _group(before) != _group(node):
            height += HEADER
            svg.parts.append(f'<path class="grid" d="M{NODE:.1f},{height - 20:.1f}H{SHARE:.1f}"/>')
            svg.text(NODE, height - 6, _heading(node), css="strong")
        at.append(height + ROW / 2)
        height += ROW
    for i, node in enumerate(picture.nodes):
        for read in node.reads:
            _arc(svg, (at[read], at[i]), i - read, tone if picture.nodes[read].is_named else "")
    rows = flow_rows(picture)
    for node, y, row in zip(picture.nodes, at, rows, strict=True):
        _node(svg, node, y, row, tone)
    if picture.num_after:
        height += GAP
        svg.text(NAME, height - 5, _left_out(picture.num_after))
    svg.height = height + 4
    return svg


def flow_rows(picture: FlowPicture) -> list[str]:
    """Return the chart in words: what each operator reads and makes, one line each, numbered from 1."""
    return [", ".join(_words(node)) for node in picture.nodes]


def _words(node: FlowNode) -> Iterator[str]:
    yield f"{node.operator} ({_heading(node)})"
    reads = [tr("operator {num}", num=read + 1) for read in node.reads] + [translated(each) for each in node.inputs]
    if reads:
        yield tr("reads {values}", values=" + ".join(reads))
    if node.dtype:
        yield tr("makes {value}", value=_shape(node))
    yield percent(node.share)
    if node.is_named:
        yield tr("named by the finding")
    if node.mark:
        yield tr(MARKS[node.mark])


def _node(svg: Svg, node: FlowNode, y: float, words: str, tone: str) -> None:
    svg.mark((NODE, y), "square" if node.is_named else "circle", 5.5, tone if node.is_named else GREY, words)
    svg.text(NAME, y + 4, middle(node.operator, 20), css="strong" if node.is_named else "")
    svg.text(SHAPE, y + 4, middle(_shape(node), 26))
    if node.mark:
        svg.text(INPUTS, y + 4, f"← {tr(MARKS[node.mark])}", css="strong")
    elif node.inputs:
        svg.text(INPUTS, y + 4, middle(", ".join(map(translated, node.inputs)), 30))
    svg.text(SHARE, y + 4, percent(node.share), "end")


def _arc(svg: Svg, ends: tuple[float, float], num_rows: int, tone: str) -> None:
    """Add a value from what made it down to what reads it; ``tone`` is "" unless the finding names what made it."""
    start, end = ends
    left = NODE - 7 - min(14.0 + 6.0 * num_rows, 100.0)  # it bends the more, the more rows lie between
    colour, width = (tone, 2.0) if tone else (GREY, 1.1)
    x = NODE - 7
    svg.parts.append(
        f'<path d="M{x:.1f},{start:.1f}C{left:.1f},{start:.1f} {left:.1f},{end:.1f} {x - 4:.1f},{end:.1f}" fill="none" '
        f'stroke="{colour}" stroke-width="{width}" opacity="0.8"/>'
        f'<path d="M{x:.1f},{end:.1f}l-6,-3.5v7z" fill="{colour}"/>'
    )


def _group(node: FlowNode) -> tuple[Where, str]:
    return node.where, node.phase


def _heading(node: FlowNode) -> str:
    """Return "train.py:41, backward", with the text of the line if it is known."""
    phase = f", {translated(node.phase)}" if node.phase in ("backward", "optimizer") else ""
    code = f" · {middle(node.where.code.strip(), 60)}" if node.where.code else ""
    return f"{line_of(node.where)}{phase}{code}"


def _left_out(num: int) -> str:
    return "⋮ " + tr("{operators} left out", operators=plural(num, "operator"))


def _shape(node: FlowNode) -> str:
    return " ".join(filter(None, ("×".join(map(str, node.shape)), node.dtype)))

"""The picture of docs/report.md: the part of a small step's data flow that the rule constant-work names."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from diagnose.dataflow import analyse
from diagnose.model.charts import FlowPicture
from diagnose.pipeline.timeline import flow_picture
from diagnose.reports.flow_chart import flow_chart
from diagnose.reports.rule_labels import PALETTE
from diagnose.trace_reader.documents import read_dataflow

__all__ = ["draw_flow", "small_flow"]

RULE, TITLE = "constant-work", "Operators compute the same in each step"
SCRIPT = Path(__file__).with_name("small_step.py")
TOP, SIDE = 34, 12  # what lies around the chart
STYLE = (
    "<style>text{font:12.5px system-ui,sans-serif;fill:#545d69}.strong{fill:#16191d;font-weight:600}.b{fill:#fff}"
    ".grid{stroke:#8b93a1;stroke-opacity:.35;fill:none}"
    "@media (prefers-color-scheme:dark){.b{fill:#1b1f25}text{fill:#a3adba}.strong{fill:#e8ebef}}</style>"
)


def small_flow() -> FlowPicture:
    """Return the part of the small step's data flow."""
    found = analyse(read_dataflow(SCRIPT.with_suffix(".dataflow.json.gz")))
    lines = {(SCRIPT.name, i): text for i, text in enumerate(SCRIPT.read_text(encoding="utf-8").splitlines(), 1)}
    return flow_picture(found.graph, RULE, found.constant_work[0].work.operators, lines)


def draw_flow(picture: FlowPicture) -> str:
    """Return the picture as SVG with a background that follows the reader's colours."""
    chart = flow_chart(picture, PALETTE[0])
    width, height = chart.width + 2 * SIDE, chart.height + TOP + SIDE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f'<title>{escape(TITLE)}</title>{STYLE}<rect class="b" width="{width:.0f}" height="{height:.0f}" rx="6"/>'
        f'<text class="strong" x="{SIDE}" y="20">{escape(TITLE)}</text>'
        f'<g transform="translate({SIDE},{TOP})">{"".join(chart.parts)}</g></svg>\n'
    )

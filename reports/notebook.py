"""A diagnosis as a notebook shows it: the report without its charts, and where these are.

A notebook keeps what it shows, and the whole page has some megabytes of charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from diagnose.model.diagnosis import Diagnosis
from diagnose.reports import html

__all__ = ["render"]

FRAME = '<iframe srcdoc="{}" style="width: 100%; height: 800px; border: 0"></iframe>'
HOW = '<p>With its charts: <code>diagnosis.to_html("report.html")</code> writes the whole report.</p>'


def render(d: Diagnosis, pages: Sequence[Path] = ()) -> str:
    """Return the report in a frame, so that neither page styles the other; ``pages`` hold the whole of it."""
    return FRAME.format(escape(html.render(d, charts=False))) + (_link(pages[-1]) if pages else HOW)


def _link(page: Path) -> str:
    name = escape(page.as_posix())
    return f'<p>With its charts: <a href="{name}" target="_blank">{name}</a></p>'

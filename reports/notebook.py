"""A diagnosis as a notebook shows it: the report without its charts, and where these are.

A notebook keeps what it shows, and the whole page has some megabytes of charts. Where the report takes much without
them too, by its drawings and long tables, the text of the terminal stands in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate
from pathlib import Path

from diagnose.model.diagnosis import Diagnosis
from diagnose.reports import html, text
from diagnose.reports.format import plural
from diagnose.reports.language import tr

MAX_CELL_BYTES = 400_000  # of one cell's output: of most recordings it is 60 to 320 kB
FRAME = '<iframe srcdoc="{}" style="width: 100%; height: 800px; border: 0"></iframe>'
PLAIN = '<pre style="max-height: 800px; overflow: auto">{}</pre>'
HOW = '<p>{} <code>diagnosis.to_html("report.html")</code> writes the whole report.</p>'
WITH_CHARTS, AS_PAGE = "With its charts:", "This is the text of a report that is too large for a notebook. As a page:"


def render(d: Diagnosis, pages: Sequence[Path] = ()) -> str:
    """Return the report in a frame, so that neither page styles the other; ``pages`` hold the whole of it."""
    shown = FRAME.format(escape(html.render(d, charts=False))) + _rest(WITH_CHARTS, pages)
    return shown if len(shown.encode()) <= MAX_CELL_BYTES else _as_text(d) + _rest(AS_PAGE, pages)


def _as_text(d: Diagnosis) -> str:
    """Return the report of the terminal, as many lines as there is room for."""
    lines = escape(text.render(d)).split("\n")
    # The rest is for what stands around a text: a path of 4,096 bytes at most, twice.
    room = MAX_CELL_BYTES - 10_000
    ends = accumulate(len(line.encode()) + 1 for line in lines)
    kept = sum(end <= room for end in ends)
    rest = ["… " + tr("and {left} more", left=plural(len(lines) - kept, "line"))] if kept < len(lines) else []
    return PLAIN.format("\n".join([*lines[:kept], *rest]))


def _rest(words: str, pages: Sequence[Path]) -> str:
    """Return where the whole of the report is, or how it is written."""
    if not pages:
        return HOW.format(words)
    name = escape(pages[-1].as_posix())
    return f'<p>{words} <a href="{name}" target="_blank">{name}</a></p>'

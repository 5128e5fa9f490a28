"""A docstring as a page: one sentence, then sections, each a heading and an indented text."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its first line, and heading and text of each section; a text is one paragraph without line breaks."""

    summary: str
    sections: tuple[tuple[str, str], ...]


def parse_page(docstring: str) -> Page:
    """Split a docstring at its headings, the lines without an indentation."""
    summary, _, rest = docstring.partition("\n")
    found = re.findall(r"^(\S.*)\n((?:[ ]{4}.*\n|\n)+)", rest + "\n", re.MULTILINE)
    return Page(summary, tuple((heading, " ".join(body.split())) for heading, body in found))

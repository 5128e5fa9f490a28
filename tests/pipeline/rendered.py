"""A diagnosis in the forms that a user gets, each rendered once."""

import html
import json
import re
from typing import NamedTuple

from diagnose.reports.text import render

DRAWN = re.compile("[\u2580-\u259f]+")


class Forms(NamedTuple):
    """A diagnosis in the three forms that a user gets."""

    text: str
    words: str  # of the text, with single spaces and without what draws bars
    json: dict
    page: str


MADE = {}  # by diagnosis: each is rendered once for all checks


def forms(d):
    """Return the text, the JSON and the page."""
    if id(d) not in MADE:
        shown = render(d).replace("\u00a0", " ")
        MADE[id(d)] = d, Forms(shown, " ".join(DRAWN.sub(" ", shown).split()), json.loads(d.to_json()), d.to_html())
    return MADE[id(d)][1]


def part(page, mark):
    """Return the section of a page that is marked so, "" where it has none."""
    found = re.search(rf"<(section|details)[^>]*{mark}.*?</\1>", page, re.DOTALL)
    return found[0] if found else ""


def read(page):
    """Return the words of a part of a page, without tags and scripts."""
    shown = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", shown)).split())

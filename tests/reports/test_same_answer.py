"""The first screen of the page and of the terminal: the same words in the same order."""

import html
import re

import pytest

from diagnose.answer.screen import answer
from diagnose.model.words import english
from diagnose.reports.format import duration
from diagnose.reports.html import render as page
from diagnose.reports.text import render
from diagnose.text.plain_text import one_line


@pytest.mark.parametrize("width", [80, 100])
def test_the_first_screen_has_what_the_page_has_in_the_same_order(any_form, width):
    a = answer(any_form)
    wanted = [english(a.pill), one_line(english(a.headline))]
    if a.record_again:
        wanted += ["No recommendations: the trace may not be representative. Record again with:", a.command]
    elif a.now_ns > 0:
        wanted += [
            duration(a.now_ns),
            *([duration(a.after.after_ns)] if a.after else []),
            *([english(a.view)] if a.view is not None else []),
        ]
    for card in a.cards:
        wanted += [one_line(card.prescription.title), one_line(card.prescription.safety)]
    wanted += [one_line(english(caution)) for caution in a.cautions]
    shown = page(any_form)
    start = shown.index('<section id="answer"')
    first = shown[start : shown.index("</section>", start)].replace("<wbr>", "")
    html_words = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", first)).split())
    for words in (" ".join(render(any_form, width=width).split()), html_words):
        at = 0
        for part in wanted:
            at = words.index(" ".join(part.split()), at) + 1

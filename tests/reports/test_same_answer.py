"""The first screen of the page and of the terminal: the same words in the same order."""

import html
import re
from dataclasses import replace

import pytest

from diagnose.answer.screen import answer
from diagnose.model.words import english
from diagnose.reports.format import duration
from diagnose.reports.html import render as page
from diagnose.reports.json import to_dict
from diagnose.reports.text import render
from diagnose.reports.text_findings import code_lines
from diagnose.text.plain_text import one_line


@pytest.mark.parametrize("width", [80, 100])
def test_the_first_screen_has_what_the_page_has_in_the_same_order(any_form, width):
    a = answer(any_form)
    wanted = [english(a.pill), one_line(english(a.headline))]
    if a.record_again:
        wanted += ["This recording cannot show what limits usual steps. Record again with:", a.command]
    elif a.now_ns > 0:
        wanted += [
            duration(a.now_ns),
            *([duration(a.after.after_ns)] if a.after else []),
            *([english(a.view)] if a.view is not None else []),
        ]
    warned = [one_line(english(caution)) for caution in a.cautions]
    wanted += warned if a.warns_first else []
    for card in a.cards:
        wanted += [one_line(card.prescription.title), one_line(card.prescription.safety)]
    wanted += [] if a.warns_first else warned
    shown = page(any_form)
    start = shown.index('<section id="answer"')
    first = shown[start : shown.index("</section>", start)].replace("<wbr>", "")
    html_words = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", first)).split())
    for words in (" ".join(render(any_form, width=width).split()), html_words):
        at = 0
        for part in wanted:
            at = words.index(" ".join(part.split()), at) + 1


def test_page_terminal_and_json_have_one_range_of_the_step_possible(forms):
    """That of the replay of exactly the cards, which the list of changes has too."""
    d = forms["gaps"]
    first, second, both = d.waterfall.forecasts
    wide = both._replace(low_ns=11_000_000, high_ns=13_000_000)
    d = replace(d, waterfall=d.waterfall._replace(forecasts=(first, second, wide), combinations=()))
    a, ids = answer(d), both.ids
    assert tuple(card.prescription.id for card in a.cards) == ids
    assert (a.after.low_ns, a.after.high_ns) == (11_000_000, 13_000_000)
    assert to_dict(d)["answer"]["possible_step_ms"] == [12, 11, 13]
    assert to_dict(d)["waterfall"]["forecasts"][-1]["range_ms"] == [11, 13]
    assert [text.count("11.0 ms to 13.0 ms") for text in (render(d, width=100), page(d, charts=False))] == [2, 2]


def test_page_and_terminal_have_the_code_of_the_first_card(any_form):
    cards = answer(any_form).cards
    code = [line.strip() for line in code_lines(cards[0].prescription, neighbours=0)] if cards else []
    shown = page(any_form, charts=False)
    start = shown.index('<section id="answer"')
    block = re.search(
        r'<li>.*?<pre tabindex="0"><code>(.*?)</code>.*?</li>', shown[start : shown.index("</section>", start)], re.S
    )
    found = [line.strip() for line in html.unescape(re.sub(r"<[^>]*>", "", block[1])).splitlines()] if block else []
    assert found == [one_line(line) for line in code]

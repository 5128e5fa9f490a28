"""Defects that readers saw once, each on the page or in the terminal as they saw it."""

import html
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from diagnose.model.diagnosis import RankSummary
from diagnose.model.rules import Legend
from diagnose.reports.html import render as page
from diagnose.reports.text import render as text

MS = 1_000_000
LONG = "operators were issued one after the other and more slowly than the device ran them, which left it without work"
ONE_OF_SEVERAL = re.compile(
    r"(?<![\d.,])1 (?:\w+ )?(?:gaps|regions|calls|steps|kernels|intervals|launches|ranks|spans)\b"
)


def words(diagnosis) -> str:
    """Return what a reader sees of the page, folded parts included."""
    shown = re.sub(r"<(script|style|nav)\b.*?</\1>", "", page(diagnosis), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", shown.replace("<wbr>", ""))).split())


@pytest.fixture
def brief(recording):
    """A step of 100 µs with one gap, of it 4 µs in an allocation."""
    r = recording()
    r.step(1, 0, 100)
    r.kernel("gemm", 0, 90, launched=(0, 2))
    r.runtime("cudaMalloc", 90, 94)
    r.kernel("relu", 97, 100, launched=(94, 96))
    return r.diagnosis()


def test_no_sentence_states_a_time_as_nothing(brief):
    for shown in (words(brief), text(brief, verbose=True)):
        assert "cudaMalloc: 1 call, 4.00 µs of the idle time." in shown
        assert not re.search(r"(?<![\d.])0\.00 (ms|µs|s)\b", shown)


def test_one_thing_is_no_plural(brief):
    for shown in (words(brief), text(brief, verbose=True)):
        assert "1 idle gap in 1 step" in shown
        assert ONE_OF_SEVERAL.findall(shown) == []


def test_no_form_of_a_report_counts_one_thing_as_several(any_form):
    assert ONE_OF_SEVERAL.findall(words(any_form)) == []


def test_a_ranks_step_is_a_length_and_not_a_product(forms):
    ranks = tuple(RankSummary(r, "gaps", "data-stall", 5.67 * MS, None, {"data-stall": 0.4}) for r in range(8))
    d = replace(forms["ranks"], ranks=ranks, step_ns=5.67 * MS)
    for shown in (words(d), text(d)):
        assert "5.67 ms" in shown
        assert not re.search(r"(?<![\d.])8 × [\d.]+ ms", shown)


@pytest.mark.parametrize("width", [80, 100])
def test_a_long_label_mangles_no_number_of_the_idle_table(forms, width):
    d = forms["gaps"]
    shown = text(replace(d, legends={cause: Legend(LONG, "#000000") for cause in d.idle_by_cause}), width=width)
    table = shown[shown.index("Idle by cause") :].split("\n\n")[0].splitlines()[1:]
    rows = filter(None, (re.match(r"  ([a-f]) +([\d.]+ %) +([\d.]+ [mµ]s)  ", line) for line in table))
    assert [row.groups() for row in rows] == [
        ("a", "30.0 %", "6.00 ms"), ("b", "12.0 %", "2.40 ms"), ("c", "6.0 %", "1.20 ms"),
        ("d", "3.0 %", "600 µs"), ("e", "2.0 %", "400 µs"), ("f", "1.0 %", "200 µs"),
    ]  # fmt: skip
    assert max(map(cell_len, table)) <= width

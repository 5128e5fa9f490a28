"""Every kind of page in a real browser: nothing fails, nothing is fetched, nobody is shut out, every control works."""

import base64
import re
import statistics
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from diagnose.compare.compare import compare
from diagnose.compare.gate import evaluate_gate
from diagnose.compare.html import as_html
from diagnose.compare.sides import side_of
from diagnose.model.charts import SpanTable
from diagnose.pipeline.run import analyze_paths
from diagnose.reports import html as pages
from diagnose.reports.html import render
from diagnose.reports.language import language
from tests.reports.browsing import MARKS, WIDTHS, appear, count, requests, settle

pytest.importorskip("axe_core_python", reason="pages are checked with the package axe-core-python")
TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
AXE = resources.files("axe_core_python") / "axe.min.js"

pytestmark = MARKS

EVERYDAY = ("gaps", "hostile", "trials")
FORMS = ("gaps", "healthy", "cpu_bound", "no_gpu", "ranks", "trials", "device", "hostile", "bare", "low_trust",
         "inference", "compiled", "ranks_8", "ranks_256")  # fmt: skip
PAGES = (*FORMS, "large", "compared", "gate", "what_if", "chinese")  # every kind of page


def test_every_form_is_opened(forms):
    assert tuple(forms) == FORMS


@pytest.fixture
def page_of(forms):
    """Return a function that makes each of PAGES."""

    def make(kind):
        d = forms["gaps"]
        if kind == "large":
            return render(replace(d, picture=large_picture(d.picture, 200_000)))
        if kind in {"compared", "gate"}:
            slow = replace(d, step_ns=1.5 * d.step_ns, idle_by_cause={**d.idle_by_cause, "data-stall": 0.6})
            slow = replace(slow, partition=replace(d.partition, compute=0.08, idle=0.84))
            compared = compare(side_of("before.json", d, []), side_of("after.json", slow, []))
            return as_html(compared, evaluate_gate(compared) if kind == "gate" else None)
        if kind == "what_if":
            return pages.render_forecasts("run-7", d.waterfall.forecasts, (("compute", 0.9),), pages.Basis(0.02))
        with language("zh" if kind == "chinese" else "en"):  # without a font, missing characters are as wide
            return render(forms["trials" if kind == "chinese" else kind])

    return make


def violations(browser) -> list[str]:
    """Return what axe-core finds on the page, each with the first element that it found it on."""
    # The page's own policy keeps scripts out that are not its own, so it is put in from outside.
    browser.execute_script(AXE.read_text(encoding="utf-8"))
    found = browser.execute_async_script("axe.run(document, { resultTypes: ['violations'] }).then(arguments[0])")
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found["violations"]]


def assert_sound(browser, width: int, *, barriers: bool = True) -> None:
    assert browser.get_log("browser") == []
    assert "file" in (schemes := requests(browser))
    assert schemes <= {"file", "data", "blob"}
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert count(browser, "img[src=x]") == 0
    assert not barriers or violations(browser) == []


@pytest.mark.parametrize("form", EVERYDAY)
def test_a_page_opens_without_an_error_a_request_or_a_barrier(show, forms, form):
    browser = show(forms[form])
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert_sound(browser, 1180, barriers=form == "trials")  # it holds nearly every part; checking it takes seconds


@pytest.mark.full
@pytest.mark.parametrize("kind", PAGES)
def test_every_page_is_sound_in_both_themes_and_widths(show, page_of, kind):
    browser = show(page_of(kind))
    try:
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                appear(browser, scheme, width)
                browser.refresh()
                assert_sound(browser, width)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


CONTROLS = "button:not([disabled]), summary, select, input, a[href], [tabindex='0']"


@pytest.mark.full
@pytest.mark.parametrize("kind", PAGES)
def test_every_control_of_every_page_is_reached_and_pressed_by_keyboard(show, page_of, kind):
    browser = show(page_of(kind))
    unreached = (
        "document.querySelectorAll('details').forEach(d => { d.open = true; });"
        "const shown = (e) => e.getClientRects().length && getComputedStyle(e).visibility !== 'hidden';"
        "return [...document.querySelectorAll(arguments[0])].filter(shown)"
        ".filter((e) => { e.focus(); return document.activeElement !== e || e.tabIndex < 0; }).map((e) => e.outerHTML)"
    )
    assert [html[:200] for html in browser.execute_script(unreached, CONTROLS)] == []
    pressed = "button:not([disabled]):not(.copy):not(.tools button), details.finding > summary"
    for control in browser.find_elements("css selector", pressed)[:80]:
        browser.execute_script("arguments[0].focus()", control)
        browser.switch_to.active_element.send_keys("\n")
    settle(browser)
    assert browser.get_log("browser") == []


@pytest.mark.full
@pytest.mark.parametrize("kind", PAGES)
def test_every_page_prints_on_a_few_pages(show, page_of, kind):
    assert 1 <= num_printed(show(page_of(kind))) <= 4


def num_printed(browser) -> int:
    """Return on how many pages of A4 the page is printed."""
    size = {"preferCSSPageSize": True, "paperWidth": 8.27, "paperHeight": 11.69}
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", size)["data"])
    return len(re.findall(rb"/Type\s*/Page\b", printed))


PRINTED = (
    "const shown = (s) => [...document.querySelectorAll(s)].filter((e) => e.getClientRects().length);"
    "const cut = (e) => e.scrollHeight > e.clientHeight + 2 || e.scrollWidth > e.clientWidth + 2;"
    "return {parts: shown('.part').map((e) => e.id), heads: shown('#kernel-table thead button').length,"
    "rows: shown('#kernel-table tbody tr').length, note: shown('#kernels .printed').map((e) => e.textContent)[0],"
    "findings: shown('.finding > summary').length, second: shown('#finding-2 .fix').length,"
    "cut: shown('.scroll, .flame-scroll, pre').filter(cut).length,"
    "bars: shown('.bar').map((e) => [e.getBoundingClientRect().top, e.getBoundingClientRect().bottom])}"
)


def test_what_is_open_is_printed_whole_and_what_is_closed_is_not(show, forms):
    d = forms["gaps"]
    families = {f"a family of kernels {i}": 1 / 9 for i in range(9)}  # whose names take two lines
    browser = show(replace(d, verdict="kernel-bound", kernel_families=families))
    assert num_printed(browser) <= 4
    browser.execute_script("document.getElementById('finding-2').open = true")
    try:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", A4)
        found = browser.execute_script(PRINTED)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert found["parts"] == ["flame", "what-if", "kernels"]
    assert found["heads"] == 9
    assert (found["rows"], found["note"]) == (10, "Printed: the first 10 of 12 kernels.")
    assert found["findings"] == 6
    assert found["second"] == 1
    assert found["cut"] == 0
    assert all(above[1] <= below[0] for above, below in pairwise(found["bars"]))


SCREEN = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
A4 = {"width": 688, "height": 1000, "deviceScaleFactor": 1, "mobile": False}  # without the margins, CSS pixels


def height(browser) -> int:
    """Return how high the page is on a screen of 1440 x 900."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SCREEN)
    try:
        settle(browser)
        return browser.execute_script("return document.documentElement.scrollHeight")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("form", ["gaps", "cpu_bound", "no_gpu", "inference"])
def test_a_page_takes_three_screens_as_opened(show, forms, form):
    assert height(show(forms[form])) <= 3 * 900


@pytest.mark.full
def test_half_of_the_bundled_captures_have_a_page_of_three_screens(show):
    captures = sorted(path for path in TRACES.iterdir() if path.is_dir())
    heights = [height(show(analyze_paths([path]))) for path in captures]
    assert len(heights) > 12
    assert statistics.median(heights) <= 3 * 900
    assert max(heights) <= 4 * 900


@pytest.mark.parametrize(
    "form", ["hostile", *(pytest.param(form, marks=pytest.mark.full) for form in ("ranks", "trials", "gaps"))]
)
def test_a_phone_needs_no_sideways_scrolling_and_shows_the_bars(show, forms, form):
    browser = show(forms[form])
    try:
        appear(browser, "light", 390)
        browser.refresh()
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        bar, number = browser.execute_script(
            "const wide = (s) => document.querySelector(s).getBoundingClientRect().width;"
            "return [wide('.bar .partition'), wide('.bar-number')]"
        )
        assert bar > 300
        assert number > 50
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def large_picture(picture, num):
    """Return the picture with ``num`` spans, a quarter of them on the device."""
    i = np.arange(num)
    lane = i * 4 // num
    at = (i % (num // 4)) * 80
    table = SpanTable(
        ("GPU 0 stream 7", "host 1", "host 1 +1", "host 1 +2"),
        tuple(f"kernel_{k}" for k in range(500)),
        ("compute", "operator"),
        lane=lane, start=at, end=at + 20 + i * 7919 % 60, name=i * 7 % 500, category=(lane > 0).astype(np.int64),
        launch=np.where(lane == 0, i + num // 4, -1),
    )  # fmt: skip
    return picture._replace(spans=table, step_ns=20 * num, gaps=(), depth=((0, 1), (5 * num, 300)))


def test_two_hundred_thousand_spans_are_a_small_page(forms):
    d = forms["gaps"]
    assert len(render(replace(d, picture=large_picture(d.picture, 200_000)))) < 2_500_000


@pytest.mark.timing
def test_the_largest_picture_is_there_within_a_second_and_moves_smoothly(show, forms):
    d = forms["gaps"]
    browser = show(replace(d, picture=large_picture(d.picture, 200_000)))
    paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
    assert browser.execute_script(paint) < 1000
    browser.find_element("id", "timeline").send_keys("w")
    settle(browser)
    assert float(browser.execute_script("return document.getElementById('timeline').dataset.took")) < 50
    assert browser.get_log("browser") == []


def test_the_page_of_a_prediction_has_what_its_range_rests_on(forms):
    basis = pages.Basis(0.02, assumptions=("Assumes a free core for each worker, besides the training's.",))
    page = pages.render_forecasts("run-7", forms["gaps"].waterfall.forecasts, (("compute", 0.9),), basis)
    assert "Assumes a free core for each worker, besides the training" in page

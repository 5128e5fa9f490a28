"""The page in a real browser: nothing fails, nothing is fetched, charts are drawn, zooming and copying work."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from diagnose.reports.html import render

webdriver = pytest.importorskip("selenium.webdriver", reason="the browser is driven with the package selenium")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=1180,900",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
RANGE = "return document.getElementById('timeline').layout.xaxis.range"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="needs chromium and chromedriver"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator["webdriver.Chrome"]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return a function that gives a diagnosis' page, written the first time that it is asked for."""
    folder, written = tmp_path_factory.mktemp("pages"), {}

    def page(diagnosis):
        if id(diagnosis) not in written:
            path = folder / f"report{len(written)}.html"
            path.write_text(render(diagnosis), encoding="utf-8")
            written[id(diagnosis)] = (path, diagnosis)  # kept, so that its id stays its own
        return written[id(diagnosis)][0]

    return page


@pytest.fixture
def show(browser, pages):
    def open_page(diagnosis):
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(pages(diagnosis).as_uri())
        return browser

    return open_page


def requests(browser) -> set[str]:
    """Return the schemes of what the page asked for; Chromium's own pages are not counted."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    sent = (m["params"] for m in messages if m["method"] == "Network.requestWillBeSent")
    return {p["request"]["url"].partition(":")[0] for p in sent if p["documentURL"].startswith("file:")}


def count(browser, selector: str) -> int:
    return browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector)


EVERYDAY = ("gaps", "hostile", "trials")
FORMS = ("gaps", "healthy", "cpu_bound", "no_gpu", "ranks", "trials", "device", "hostile", "bare")


def test_every_form_is_opened(forms):
    assert tuple(forms) == FORMS


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[] if form in EVERYDAY else [pytest.mark.full]) for form in FORMS]
)
def test_every_form_opens_without_an_error_or_a_request(show, forms, form):
    browser = show(forms[form])
    assert browser.get_log("browser") == []
    assert "file" in (schemes := requests(browser))
    assert schemes <= {"file", "data", "blob"}
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert count(browser, "img[src=x]") == 0


def test_charts_are_drawn(show, forms):
    browser = show(forms["gaps"])
    for chart in ("timeline", "steps"):
        width, height = browser.execute_script(
            "const b = document.querySelector(`#${arguments[0]} svg.main-svg`).getBoundingClientRect();"
            "return [b.width, b.height]", chart,
        )  # fmt: skip
        assert width > 600
        assert height > 150
    picture = forms["gaps"].picture
    assert count(browser, "#timeline .bars .point path") == len(picture.spans) + len(picture.gaps)
    orange = [
        fill for fill in browser.execute_script(
            "return [...document.querySelectorAll('#timeline .bars .point path')].map(p => getComputedStyle(p).fill)"
        ) if fill == "rgb(242, 129, 29)"
    ]  # fmt: skip
    assert len(orange) == sum(gap.cause == "data-stall" for gap in picture.gaps)


def test_roofline_and_memory_are_drawn(show, forms):
    browser = show(forms["device"])
    assert count(browser, "#roofline .scatterlayer .points path") == 1  # the addition does no FLOP
    assert count(browser, "#roofline .scatterlayer .js-line") == 2  # a roof for each precision
    assert count(browser, "#memory .scatterlayer .js-line") == 3  # allocated, reserved, what the device has
    assert "2 allocations had to empty the cache first" in browser.find_element("tag name", "body").text


def test_trials_and_their_losses_are_drawn(show, forms):
    browser = show(forms["trials"])
    assert browser.get_log("browser") == []
    assert count(browser, "#trials .scatterlayer .errorbar path.xerror") == 3  # the failed one was not measured
    assert count(browser, "#trials .scatterlayer .points path") == 3 + 1  # and one was predicted
    assert count(browser, "#losses .scatterlayer .js-line") == 1 + 2  # without a change, and two trials
    assert "unchanged 20.00 ms" in browser.find_element("id", "trials").get_attribute("textContent")


def test_a_cause_zooms_to_its_largest_gap_and_back(show, forms):
    browser = show(forms["gaps"])
    chips = browser.find_elements("css selector", "#chips button")
    assert [chip.text for chip in chips[:3]] == ["whole step", "data-stall", "host-sync"]
    chips[2].click()
    low, high = browser.execute_script(RANGE)
    assert low == pytest.approx(17.6 - 2.4 * 0.6, abs=0.01)
    assert high == 20
    chips[0].click()
    assert browser.execute_script(RANGE) == [0, 20]


def test_dragging_zooms_and_a_double_click_resets(show, forms):
    browser = show(forms["gaps"])
    plot = browser.find_element("css selector", "#timeline .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    chain = webdriver.ActionChains(browser)
    chain.move_to_element_with_offset(plot, -100, 0).click_and_hold().move_by_offset(200, 0).release().perform()
    low, high = browser.execute_script(RANGE)
    assert 0 < low < high < 20
    webdriver.ActionChains(browser).double_click(plot).perform()
    assert browser.execute_script(RANGE) == [0, 20]


def test_an_example_is_shown_on_the_timeline(show, forms):
    browser = show(forms["gaps"])
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.find_element("css selector", "button.show").click()
    low, high = browser.execute_script(RANGE)
    assert 0 <= low < 2  # the example's start
    assert high > 8  # and its end


def test_clicking_a_bar_tells_its_full_name(show, forms, kernel_name):
    browser = show(forms["gaps"])
    browser.execute_script(
        "const el = document.getElementById('timeline'), t = el.data.findIndex(t => t.name === 'compute');"
        "el.emit('plotly_click', { points: [{ customdata: el.data[t].customdata[0] }] })"
    )
    assert kernel_name in browser.find_element("id", "detail").text


def test_copying_works_or_selects_the_code(show, forms):
    browser = show(forms["gaps"])
    button = browser.find_element("css selector", "button.copy")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    browser.execute_script(
        "window.said = []; new MutationObserver(() => said.push(arguments[0].textContent))"
        ".observe(arguments[0], { childList: true })", button,
    )  # fmt: skip
    button.click()
    first = "const d = arguments[0], t = setInterval(() => { if (said.length) { clearInterval(t); d(said[0]); } }, 20)"
    assert browser.execute_async_script(first) in {"Copied", "Selected"}


@pytest.mark.parametrize(
    "form",
    ["hostile", *(pytest.param(form, marks=pytest.mark.full) for form in ("ranks", "trials", "gaps"))],
)
def test_a_phone_needs_no_sideways_scrolling(show, forms, form):
    browser = show(forms[form])
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        browser.refresh()
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_dark_and_light_follow_the_system(show, forms):
    browser = show(forms["gaps"])
    found = {}
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        found[scheme] = browser.execute_script(
            "return [document.body, document.querySelector('#timeline .xtick text')]"
            ".map((e, i) => getComputedStyle(e)[['backgroundColor', 'fill'][i]])"
        )
    assert found["light"] == ["rgb(251, 251, 250)", "rgb(91, 100, 112)"]
    assert found["dark"] == ["rgb(20, 23, 27)", "rgb(154, 164, 177)"]


@pytest.mark.full
def test_the_largest_pictures_stay_usable(show, forms):
    many = forms["gaps"].picture
    spans = tuple(replace(many.spans[i % 40], start_ns=i * 5000, end_ns=i * 5000 + 4000) for i in range(4000))
    browser = show(replace(forms["gaps"], picture=replace(many, spans=spans, gaps=(), depth=())))
    assert count(browser, "#timeline .bars .point path") == 4000
    zoomed = "const d = arguments[0]; Plotly.relayout('timeline', { 'xaxis.range': [1, 2] }).then(() => d(true))"
    assert browser.execute_async_script(zoomed)
    assert browser.execute_script(RANGE) == [1, 2]


@pytest.mark.timing
def test_the_largest_picture_zooms_within_seconds(show, forms):
    many = forms["gaps"].picture
    spans = tuple(replace(many.spans[i % 40], start_ns=i * 5000, end_ns=i * 5000 + 4000) for i in range(4000))
    browser = show(replace(forms["gaps"], picture=replace(many, spans=spans, gaps=(), depth=())))
    took = browser.execute_async_script(
        "const d = arguments[0], t = performance.now();"
        "Plotly.relayout('timeline', { 'xaxis.range': [1, 2] }).then(() => d(performance.now() - t))"
    )
    assert took < 3000

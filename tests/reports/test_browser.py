"""The page in a real browser: nothing fails, nothing is fetched, nobody is shut out, and every control works."""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from diagnose.model.charts import SpanTable
from diagnose.reports.html import render

webdriver = pytest.importorskip("selenium.webdriver", reason="the browser is driven with the package selenium")

pytest.importorskip("axe_core_python", reason="pages are checked with the package axe-core-python")
WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=1180,900",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
VIEW = "const d = document.getElementById('timeline').dataset; return [Number(d.from), Number(d.to)]"
WIDTHS = {1440: {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False},
          390: {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}}  # fmt: skip

AXE = resources.files("axe_core_python") / "axe.min.js"

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


@pytest.fixture
def show(browser, tmp_path):
    """Return a function that opens a diagnosis' page and waits until its timeline is drawn."""

    def open_page(diagnosis):
        page = tmp_path / "report.html"
        page.write_text(render(diagnosis), encoding="utf-8")
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(page.as_uri())
        if count(browser, "#timeline"):
            WebDriverWait(browser, 20, 0.02).until(lambda b: count(b, "#timeline[data-spans][data-took]"))
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
FORMS = ("gaps", "healthy", "cpu_bound", "no_gpu", "ranks", "trials", "device", "hostile", "bare", "low_trust")


def test_every_form_is_opened(forms):
    assert tuple(forms) == FORMS


def appear(browser, scheme: str, width: int) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDTHS[width])


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
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_sound_in_both_themes_and_widths(show, forms, form):
    browser = show(forms[form])
    try:
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                appear(browser, scheme, width)
                browser.refresh()
                assert_sound(browser, width)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS)
def test_every_form_prints_on_a_few_pages(show, forms, form):
    printed = show(forms[form]).execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) <= 5


def test_the_timeline_is_drawn_and_names_its_bars(show, forms):
    browser = show(forms["gaps"])
    picture = forms["gaps"].picture
    assert browser.execute_script("return document.getElementById('timeline').dataset.spans") == str(len(picture.spans))
    assert browser.execute_script(VIEW) == [0, 20]
    orange = browser.execute_script(
        "const c = document.querySelector('#timeline canvas'), k = c.width / c.clientWidth;"
        "const p = c.getContext('2d').getImageData(206 * k, 34 * k, 200 * k, 1).data;"
        "const is = (r, g, b) => r > 180 && g > 80 && g < 190 && b < 140;"
        "let n = 0; for (let i = 0; i < p.length; i += 4) n += is(...p.slice(i, i + 3)) ? 1 : 0;"
        "return n / (p.length / 4)"
    )
    assert orange > 0.7  # of the first 200 pixels of the causes: the step begins with 6 ms of data-stall


def test_a_cause_zooms_to_its_largest_gap_and_keys_lead_back(show, forms):
    browser = show(forms["gaps"])
    chips = browser.find_elements("css selector", "#chips button")
    assert [chip.text for chip in chips[:2]] == ["data-stall", "host-sync"]
    chips[1].click()
    settle(browser)
    low, high = browser.execute_script(VIEW)
    assert (low, high) == (pytest.approx(20 - 2.4 * 2.2, abs=0.01), 20)
    assert browser.find_element("id", "detail").text.startswith("host-sync, 2.40 ms from 17.6 ms")
    box = browser.find_element("id", "timeline")
    for key, expected in (("0", (0, 20)), ("w", (4, 16)), ("d", (6.4, 18.4)), ("s", (2.4, 20)), ("n", (0, 13.2))):
        box.send_keys(key)
        settle(browser)
        if key != "s":
            assert browser.execute_script(VIEW) == pytest.approx(expected, abs=0.01), key


def settle(browser) -> None:
    """Wait until what was asked for is drawn: two frames later."""
    browser.execute_async_script("const d = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(d))")


def test_dragging_moves_and_a_part_is_zoomed_into_with_shift(show, forms):
    browser = show(forms["gaps"])
    canvas = browser.find_element("css selector", "#timeline canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    keys = webdriver.common.keys.Keys
    chain = webdriver.ActionChains(browser).key_down(keys.SHIFT).move_to_element_with_offset(canvas, -100, 0)
    chain.click_and_hold().move_by_offset(200, 0).release().key_up(keys.SHIFT).perform()
    settle(browser)
    low, high = browser.execute_script(VIEW)
    assert 0 < low < high < 20
    chain = webdriver.ActionChains(browser).move_to_element(canvas).click_and_hold().move_by_offset(-80, 0)
    chain.release().perform()
    settle(browser)
    moved = browser.execute_script(VIEW)
    assert moved[0] > low
    assert moved[1] - moved[0] == pytest.approx(high - low, rel=1e-3)
    webdriver.ActionChains(browser).double_click(canvas).perform()
    settle(browser)
    assert browser.execute_script(VIEW) == [0, 20]


def test_searching_finds_bars_and_an_example_is_shown(show, forms):
    browser = show(forms["gaps"])
    search = browser.find_element("id", "timeline-search")
    search.send_keys("AdamW")
    assert browser.find_element("id", "timeline-found").text == "1 found, Enter goes on"
    search.send_keys("\n")
    assert "Optimizer.step#AdamW.step" in browser.find_element("id", "detail").text
    assert browser.find_element("id", "timeline-found").text == "1 of 1"
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.find_element("css selector", "button.show").click()
    settle(browser)
    low, high = browser.execute_script(VIEW)
    assert 0 <= low < 2  # the example's start
    assert high > 8  # and its end


def flame(browser) -> tuple[str, str, int]:
    """Return the cause, the box that the graph is zoomed to, and how many boxes are drawn."""
    WebDriverWait(browser, 20, 0.02).until(lambda b: count(b, "#flame-boxes[data-boxes]"))
    d = browser.execute_script("return {...document.getElementById('flame-boxes').dataset}")
    return d["cause"], d["top"], int(d["boxes"])


def test_a_flame_graph_zooms_by_click_and_follows_the_cause(show, forms):
    browser = show(forms["gaps"])
    assert flame(browser) == ("data-stall", "data-stall", 6)
    widths = browser.execute_script("return [...document.querySelectorAll('.frame')].map((f) => f.style.width)")
    assert [round(float(w[:-1])) for w in widths] == [100, 100, 97, 67, 50, 17]
    browser.find_elements("css selector", ".frame")[3].click()
    assert flame(browser) == ("data-stall", "__getitem__ data.py:12", 5)  # its callers stay, in full width
    assert browser.find_element("id", "flame-detail").text == (
        "your code, 4.00 ms a step (67 %), 1.00 ms in itself/home/ada/project/data.py(12): __getitem__"
    )
    browser.find_element("id", "flame-all").click()
    assert flame(browser)[1] == "data-stall"
    options = browser.find_elements("css selector", "#flame-cause option")
    assert [o.text for o in options] == ["data-stall · 6.00 ms a step", "host-sync · 2.40 ms a step"]
    options[1].click()
    assert flame(browser) == ("host-sync", "host-sync", 2)
    assert browser.find_element("id", "flame-note").text.endswith("Python frames were not recorded.")


def test_a_flame_graph_is_walked_and_searched_by_keyboard(show, forms):
    browser = show(forms["gaps"])
    flame(browser)
    keys = webdriver.common.keys.Keys
    focused = "return document.activeElement.getAttribute('aria-label')"

    def press(key):
        browser.switch_to.active_element.send_keys(key)
        return browser.execute_script(focused)

    browser.execute_script("document.querySelector('.frame[tabindex=\"0\"]').focus()")
    assert press(keys.ARROW_DOWN).startswith("/home/ada/project/train.py(31): main, 6.00 ms, 100 %")
    assert press(keys.ARROW_DOWN).startswith("torch/utils/data/dataloader.py")
    assert press(keys.ARROW_DOWN).startswith("/home/ada/project/data.py")
    assert press(keys.ARROW_RIGHT).startswith("aten::stack, 1.00 ms, 17 %")
    assert press(keys.ENTER).startswith("aten::stack")
    assert flame(browser)[1] == "aten::stack"
    assert press("0").startswith("data-stall, 6.00 ms")
    press("/")
    browser.switch_to.active_element.send_keys("data")
    assert browser.find_element("id", "flame-found").text == "2 found, 5.80 ms (97 %)"  # one is inside the other
    assert count(browser, ".frame.match") == 2
    browser.switch_to.active_element.send_keys(keys.ENTER)
    assert flame(browser)[1] == "__next__ dataloader.py:701"


def test_a_finding_leads_to_the_flame_graph_of_its_cause(show, forms):
    browser = show(forms["gaps"])
    assert flame(browser)[0] == "data-stall"
    browser.execute_script("document.querySelectorAll('details.finding').forEach(d => { d.open = true; })")
    browser.find_element("css selector", "a.to-flame[data-cause='host-sync']").click()
    assert flame(browser)[0] == "host-sync"


def test_kernels_are_sorted_and_searched(show, forms):
    browser = show(forms["gaps"])
    first = "return document.querySelector('#kernel-table tbody tr:not([hidden]) th').textContent"
    assert browser.execute_script(first) == "kernel_0"
    heading = browser.find_elements("css selector", "#kernel-table thead button")[3]
    assert heading.text.startswith("Calls a step")
    heading.send_keys("\n")
    assert browser.execute_script(first) == "kernel_11"
    assert heading.find_element("xpath", "..").get_attribute("aria-sort") == "descending"
    heading.send_keys("\n")
    assert browser.execute_script(first) == "kernel_0"
    browser.find_element("css selector", "input.filter").send_keys("elementwise")
    assert count(browser, "#kernel-table tbody tr:not([hidden])") == 6
    assert "6 of 12" in browser.find_element("css selector", "p.filter").text


def test_changes_can_be_taken_out_in_any_order(show, forms):
    browser = show(forms["gaps"])
    first, second = browser.find_elements("css selector", "input.change")
    combined = browser.find_element("id", "combined")
    assert combined.text == "20.0 ms → 12.0 ms (1.67 ×)"
    first.send_keys(" ")
    assert combined.text == "20.0 ms → 18.0 ms (1.11 ×)"
    second.send_keys(" ")
    assert combined.text == "No change: 20.0 ms"
    first.send_keys(" ")
    assert combined.text == "20.0 ms → 15.0 ms (1.33 ×)"


def test_a_link_opens_what_it_leads_to(show, forms):
    browser = show(forms["gaps"])
    assert not browser.find_element("id", "finding-2").get_attribute("open")
    browser.find_element("css selector", ".actions a[href='#finding-2']").click()
    assert browser.find_element("id", "finding-2").get_attribute("open")
    browser.execute_script("location.hash = '#term-data-stall'")
    assert browser.find_element("id", "glossary").get_attribute("open")


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


def test_dark_and_light_follow_the_system(show, forms):
    browser = show(forms["gaps"])
    found = {}
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        settle(browser)
        found[scheme] = browser.execute_script(
            "const c = document.querySelector('#timeline canvas');"
            "const pixel = [...c.getContext('2d').getImageData(4, 4, 1, 1).data];"
            "return [getComputedStyle(document.body).backgroundColor, pixel]"
        )
    assert found["light"] == ["rgb(250, 250, 249)", [255, 255, 255, 255]]
    assert found["dark"] == ["rgb(19, 22, 26)", [27, 31, 37, 255]]


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
    return replace(picture, spans=table, step_ns=20 * num, gaps=(), depth=((0, 1), (5 * num, 300)))


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

"""The page in a real browser: its charts and controls do what they are for."""

from dataclasses import replace

import pytest

from diagnose.model.charts import Span
from tests.reports.browsing import MARKS, WIDTHS, WebDriverWait, count, settle, webdriver
from tests.reports.flow_forms import flow_of_rule

MS = 1_000_000
VIEW = "const d = document.getElementById('timeline').dataset; return [Number(d.from), Number(d.to)]"

pytestmark = MARKS


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


def test_the_flame_graph_opens_on_the_cause_that_the_first_card_takes_away(show, forms):
    d = forms["gaps"]
    first, second, *rest = d.findings
    assert [flame.cause for flame in d.picture.flames] == [first.rule, second.rule]
    browser = show(replace(d, findings=(second, first, *rest), dominant=second.rule))
    title = browser.find_element("css selector", ".actions h2").text
    assert title == next(p.title for p in d.prescriptions if p.rule == second.rule)
    assert flame(browser)[0] == second.rule


def test_a_flame_graph_is_walked_and_searched_by_keyboard(show, forms):
    browser = show(forms["gaps"])
    flame(browser)
    keys = webdriver.common.keys.Keys
    focused = "return document.activeElement.getAttribute('aria-label')"

    def press(key):
        browser.switch_to.active_element.send_keys(key)
        return browser.execute_script(focused)

    browser.execute_script("document.querySelector('.frame[tabindex=\"0\"]').focus()")
    assert press(keys.ARROW_DOWN) == "main train.py:31, /home/ada/project/train.py(31): main, 6.00 ms, 100 %"
    assert press(keys.ARROW_DOWN).startswith("__next__ dataloader.py:701, torch/utils/data/dataloader.py")
    assert press(keys.ARROW_DOWN).startswith("__getitem__ data.py:12, /home/ada/project/data.py")
    assert press(keys.ARROW_RIGHT).startswith("aten::stack, 1.00 ms, 17 %")
    assert press(keys.ENTER).startswith("aten::stack")
    assert flame(browser)[1] == "aten::stack"
    assert press("0") == "data-stall 6.00 ms a step, 100 %"
    press("/")
    browser.switch_to.active_element.send_keys("data")
    assert browser.find_element("id", "flame-found").text == "2 found, 5.80 ms (97 %)"  # one is inside the other
    assert count(browser, ".frame.match") == 2
    browser.switch_to.active_element.send_keys(keys.ENTER)
    assert flame(browser)[1] == "__next__ dataloader.py:701"


def test_the_name_of_a_box_has_the_text_that_is_seen(show, forms):
    boxes = show(forms["gaps"]).find_elements("css selector", ".frame")
    assert len(boxes) == 6
    assert [box.text for box in boxes if box.text not in box.get_attribute("aria-label")] == []


def test_deep_calls_have_thin_rows_until_a_part_of_the_step_is_shown(show, forms):
    d = forms["gaps"]
    nested = tuple(Span("host 4711", i * MS, (20 - i) * MS, f"call {i}", "operator") for i in range(9))
    browser = show(replace(d, picture=d.picture._replace(spans=nested)))
    box = browser.find_element("id", "timeline")
    high = "return document.querySelector('#timeline canvas').clientHeight"
    whole = browser.execute_script(high)
    box.send_keys("w")
    settle(browser)
    assert browser.execute_script(high) == whole + 3 * 10  # of eight rows, three are as high as the first five
    canvas = browser.find_element("css selector", "#timeline canvas")
    webdriver.ActionChains(browser).move_to_element_with_offset(canvas, 80, 0).click().perform()
    settle(browser)
    box.send_keys("0")
    settle(browser)
    assert browser.execute_script(high) == whole


def test_a_finding_leads_to_the_flame_graph_of_its_cause(show, forms):
    browser = show(forms["gaps"])
    assert flame(browser)[0] == "data-stall"
    browser.execute_script("document.querySelectorAll('details.finding').forEach(d => { d.open = true; })")
    browser.find_element("css selector", "a.to-flame[data-cause='host-sync']").click()
    assert flame(browser)[0] == "host-sync"


def test_kernels_are_sorted_and_searched(show, forms):
    browser = show(forms["gaps"])
    browser.find_element("css selector", "#kernels > summary").click()
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
    assert combined.text == "20.0 ms → 12.0 ms (1.7 ×)"
    first.send_keys(" ")
    assert combined.text == "20.0 ms → 18.0 ms (1.1 ×)"
    second.send_keys(" ")
    assert combined.text == "No change: 20.0 ms"
    first.send_keys(" ")
    assert combined.text == "20.0 ms → 15.0 ms (1.3 ×)"


def test_a_step_of_a_wide_range_has_no_number_whatever_is_taken_out(show, forms):
    """Both changes leave 2 ms to 16 ms; each of them alone leaves a number."""
    d = forms["gaps"]
    first, second, both = d.waterfall.forecasts
    both = both._replace(low_ns=2 * MS, high_ns=16 * MS)
    waterfall = d.waterfall._replace(forecasts=(first, second, both))
    wide = waterfall._replace(combinations=(*waterfall.combinations[:3], both._replace(ids=())))
    browser = show(replace(d, waterfall=wide))
    box = browser.find_element("css selector", "input.change")
    combined, last = browser.find_element("id", "combined"), browser.find_elements("css selector", ".waterfall tr")[-1]
    assert combined.text == "20.0 ms → 2.00 ms to 16.0 ms"
    assert last.text.endswith("– 2.00 ms to 16.0 ms")
    box.send_keys(" ")
    assert combined.text == "20.0 ms → 18.0 ms (1.1 ×)"
    assert last.text.endswith("18.0 ms")


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


def test_the_data_flow_of_a_finding_keeps_its_size_on_a_phone_and_scrolls(show, forms):
    d = forms["gaps"]
    d = replace(d, picture=d.picture._replace(flows=(flow_of_rule(d.findings[0].rule),)))
    browser = show(d)
    browser.execute_script("document.querySelector('.flow').closest('details').open = true")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDTHS[390])
    try:
        box, page = browser.execute_script(
            "const box = document.querySelector('.flow .chart'), root = document.documentElement;"
            "return [[box.scrollWidth, box.clientWidth, box.firstChild.getBoundingClientRect().width],"
            "[root.scrollWidth, window.innerWidth]]"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert box[0] == box[2] == 760
    assert box[1] < page[0] == page[1] == 390
    assert count(browser, ".flow svg path title") == count(browser, ".flow li") == 3
    summary = browser.find_element("css selector", "details:has(> .flow) > summary")
    assert summary.text.startswith("Data flow: The finding names 2 of")

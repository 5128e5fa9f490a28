"""A page in a real browser: how tests open it, and wait for what it draws."""

import json
import shutil
from collections.abc import Iterator

import pytest

from diagnose.reports.html import render

webdriver = pytest.importorskip("selenium.webdriver", reason="the browser is driven with the package selenium")
WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=1180,900",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
WIDTHS = {1440: {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False},
          390: {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}}  # fmt: skip
PATIENCE_S = 300  # a page is never waited for as long but on a machine that much else keeps busy
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="needs chromium and chromedriver"),
]


def start(tmp_path_factory) -> Iterator["webdriver.Chrome"]:
    """Yield a browser, and end it."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(PATIENCE_S)
    yield driver
    driver.quit()


def opener(browser, tmp_path):
    """Return a function that opens a page, or that of a diagnosis, and waits until its charts are drawn."""

    def open_page(shown):
        page = tmp_path / "report.html"
        page.write_text(shown if isinstance(shown, str) else render(shown), encoding="utf-8")
        browser.get_log("browser")
        browser.get_log("performance")
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})  # what another test has set
        browser.get(page.as_uri())
        if count(browser, "#timeline"):
            WebDriverWait(browser, PATIENCE_S, 0.02).until(lambda b: count(b, "#timeline[data-spans][data-took]"))
        if count(browser, "#flame-boxes"):
            WebDriverWait(browser, PATIENCE_S, 0.02).until(lambda b: count(b, "#flame-boxes[data-boxes]"))
        return browser

    return open_page


def requests(browser) -> set[str]:
    """Return the schemes of what the page asked for; Chromium's own pages are not counted."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    sent = (m["params"] for m in messages if m["method"] == "Network.requestWillBeSent")
    return {p["request"]["url"].partition(":")[0] for p in sent if p["documentURL"].startswith("file:")}


def count(browser, selector: str) -> int:
    return browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector)


def appear(browser, scheme: str, width: int) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDTHS[width])


def settle(browser) -> None:
    """Wait until what was asked for is drawn: two frames later."""
    browser.execute_async_script("const d = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(d))")

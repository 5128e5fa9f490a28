"""The built site in a browser: its main pages load without a message, a broken link or a missing picture."""

import subprocess
import threading
from collections import Counter
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import util
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SPEC = util.spec_from_file_location("browsing", ROOT / "tests" / "reports" / "browsing.py")
browsing = util.module_from_spec(SPEC)
SPEC.loader.exec_module(browsing)
pytest.importorskip("mkdocs", reason="the site is built with mkdocs-material")
pytestmark = [*browsing.MARKS, pytest.mark.full]
PAGES = (
    "index", "install", "tutorial", "gpu-idle", "slow-training", "report", "cookbook", "accuracy", "limits", "faq",
    "comparison", "rules", "rules/data-stall", "changes", "changes/load-in-workers", "commands", "api", "json",
    "remedies", "architecture", "contributing", "changelog", "zh/tutorial",
)  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Leave the test's output alone."""


class Page(HTMLParser):
    """The links, the sources of pictures, styles and scripts, and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.anchors.add(named.get("id"))
        if tag == "a" and named.get("href"):
            self.links.append(named["href"])
        elif tag in ("img", "script") and named.get("src"):
            self.loaded.append(named["src"])
        elif tag == "link" and named.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(named["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [ROOT / "scripts" / "docs", "--output", folder], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    yield from browsing.start(tmp_path_factory)


def test_every_link_leads_to_a_page_and_an_anchor_and_nothing_is_loaded_from_elsewhere(site):
    pages = {path.relative_to(site).as_posix(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    faults = Counter()
    for name, page in pages.items():
        for link in (*page.links, *page.loaded):
            target, anchor = urldefrag(urljoin(f"http://site/{name}", link))
            path = unquote(urlsplit(target).path).lstrip("/") or "index.html"
            if urlsplit(target).netloc != "site":
                if link in page.loaded:
                    faults[f"{name} loads {link}"] += 1
            elif path in pages:
                if anchor and unquote(anchor) not in pages[path].anchors and not anchor.startswith("__"):
                    faults[f"{name}: no anchor {link}"] += 1
            elif name != "404.html" and not (site / path).exists():
                faults[f"{name}: {link} leads nowhere"] += 1
    assert not faults
    assert len(pages) > 180


@pytest.mark.parametrize("width", [1440, 390])
def test_main_pages_load_without_a_message_and_fit(address, chrome, width):
    found = {}
    for name in PAGES:
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", browsing.WIDTHS[width])
        chrome.get(f"{address}{name}.html")
        missing = chrome.execute_script(
            "return [...document.images].filter(i => !(i.loading === 'lazy') && !i.naturalWidth).map(i => i.src)"
        )
        wide = chrome.execute_script("return document.documentElement.scrollWidth")
        messages = [entry["message"] for entry in chrome.get_log("browser")]
        if missing or messages or wide > width + 1:
            found[name] = (missing, wide, messages)
    assert found == {}

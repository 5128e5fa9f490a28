"""``diagnose serve``: what it shows, and to whom it shows nothing."""

import http.client
import json
import shutil
import threading
from pathlib import Path

import pytest

from diagnose.cli.archive import entries
from diagnose.cli.main import run
from diagnose.cli.serve import Archive, Server
from tests.reports.browsing import CHROMIUM, DRIVER, WebDriverWait, start
from tests.reports.test_pages import violations

Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two captures of one script, a report, and links to what lies outside."""
    around = tmp_path_factory.mktemp("around")
    shown = around / "shown"
    for name in ("slow", "again"):
        shutil.copytree(TRACES / "slow_dataset-planted", shown / "week 1" / name)
    described = shown / "week 1" / "again" / "capture.json"
    info = json.loads(described.read_text())
    faster = [ms / 2 for ms in info["unprofiled_ms"]]
    described.write_text(json.dumps({**info, "started_at": "2030-01-01T00:00:00+00:00", "unprofiled_ms": faster}))
    assert run(["analyze", "-q", "--json", "-o", str(shown / "<b>.json"), str(TRACES / "healthy-planted")]) == 0
    (around / "secret.json").write_text((shown / "<b>.json").read_text())
    shutil.copytree(TRACES / "healthy-planted", around / "outside")
    (shown / "link.json").symlink_to(around / "secret.json")
    (shown / "linked").symlink_to(around / "outside")
    (shown / "week 1" / "slow" / "rank0.steps.json.gz").unlink()
    return shown


@pytest.fixture(scope="module")
def server(folder):
    with Server(Archive(folder)) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def ask(server):
    """Return the function that sends a request as it is and returns its answer."""

    def asked(path, *, method="GET", host=None, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.putrequest(method, path, skip_host=True)
        for value in [f"127.0.0.1:{server.server_port}"] if host is None else host:
            connection.putheader("Host", value)
        connection.endheaders()
        answer = connection.getresponse()
        answer.text = answer.read().decode()
        connection.close()
        return answer

    return asked


def links(page):
    return [part.split('"')[0] for part in page.split('<a href="')[1:]]


def test_recordings_of_one_script_are_a_trend_and_each_has_its_report(server, ask):
    index = ask(f"/{server.token}/")
    assert index.status == 200
    assert "3 recordings of 2 scripts" in index.text
    assert "is 50.0 % shorter than the median of 1 recording before it" in index.text
    assert "<b>.json" not in index.text
    assert "link" not in "".join(links(index.text))
    assert len(links(index.text)) == 3
    for link in links(index.text):
        report = ask(f"/{server.token}/{link}")
        assert report.status == 200
        assert "<main" in report.text
    head = ask(f"/{server.token}/", method="HEAD")
    assert (head.status, head.text) == (200, "")
    assert head.headers["Content-Length"] == str(len(index.text.encode()))


def test_list_and_reports_are_shown_in_chinese(folder):
    archive = Archive(folder, "zh")
    index = archive.index()
    assert '<html lang="zh-Hans">' in index
    assert "<h1>2 个脚本的 3 份录制</h1>" in index
    assert "最近一次未录制的步为 " in index
    assert "：短 50.0 %。" in index
    assert '<th scope="col">类型</th>' in index
    number = next(entry.id for entry in entries(folder) if entry.kind == "report")
    assert '<html lang="zh-Hans">' in archive.report(number)


def test_every_answer_forbids_what_it_does_not_need(server, ask):
    headers = ask(f"/{server.token}/").headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]
    assert "frame-ancestors 'none'" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Server"] == "diagnose"
    assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/wrong/",
        "/{token}",
        "/{token}/../../secret.json",
        "/{token}/r/../../../secret.json",
        "/{token}/r/..%2f..%2fsecret.json",
        "/{token}/r/%2e%2e/%2e%2e/secret.json",
        "/{token}/r/..%c0%af..%c0%afsecret.json",
        "/{token}/r/%00",
        "/{token}/r//etc/passwd",
        "/{token}/r/link.json",
        "/{token}/r/0000000000000000",
        "/{upper}/",
        "/x/../{token}/",
        "http://127.0.0.1/{token}/",
    ],
)
def test_nothing_else_has_an_address(server, ask, path):
    answer = ask(path.format(token=server.token, upper=server.token.swapcase()))
    assert answer.status == 404
    assert server.token not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "host", [[], ["evil.example"], ["127.0.0.1"], ["evil.example:{port}"], ["127.0.0.1:{port}", "evil.example"]]
)
def test_a_request_that_names_another_host_is_refused(server, ask, host):
    answer = ask(f"/{server.token}/", host=[name.format(port=server.server_port) for name in host])
    assert answer.status == 421
    assert "recordings" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "MADEUP"])
def test_other_methods_are_refused(server, ask, method):
    answer = ask(f"/{server.token}/", method=method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"


def test_a_capture_whose_files_become_links_leads_nowhere(server, ask, folder):
    """Between the list and the request: what a capture's folder holds may have been exchanged."""
    trace = folder / "week 1" / "again" / "rank0.light.pt.trace.json.gz"
    kept = trace.rename(trace.with_suffix(".kept"))
    trace.symlink_to(folder.parent / "outside" / "rank0.light.pt.trace.json.gz")
    link = next(f"r/{entry.id}" for entry in entries(folder) if entry.name == "week 1/again")
    assert ask(f"/{server.token}/{link}").status == 422
    kept.replace(trace)
    assert ask(f"/{server.token}/{link}").status == 200


def test_it_listens_on_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32


def test_what_cannot_be_served_is_one_sentence(tmp_path, capsys, server):
    assert run(["serve", str(tmp_path / "missing")]) == 2
    assert run(["serve", "--port", str(server.server_port), str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert ": use an existing one with captures or reports." in errors[0]
    assert "cannot be used (Address already in use); choose another --port." in errors[1]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    yield from start(tmp_path_factory)


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="needs chromium and chromedriver")
def test_the_list_is_used_by_keyboard_in_a_browser(server, browser):
    browser.get(server.url)
    assert violations(browser) == []
    for _ in range(20):  # to the first link: a table that scrolls and its sorted columns come before it
        browser.switch_to.active_element.send_keys(Keys.TAB)
        if browser.switch_to.active_element.tag_name == "a":
            break
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    WebDriverWait(browser, 60, 0.05).until(lambda b: "/r/" in b.current_url and b.find_elements("tag name", "main"))
    assert browser.get_log("browser") == []  # nothing was refused by the policy, of the page or of the answer

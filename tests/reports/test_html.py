"""The page as text: one file, everything escaped, the right parts for each kind of diagnosis, and the charts' data."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from diagnose.model.charts import Gap, Picture, Span
from diagnose.model.diagnosis import Prescription
from diagnose.reports.charts import chart_data, levels
from diagnose.reports.html import render

MS = 1_000_000


class Page(HTMLParser):
    """What a browser would see: tags, attributes, visible text, scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.open = ""
        self.feed(text)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.open = ""

    def handle_data(self, data):
        if self.open == "script":
            self.scripts[-1] += data
        elif self.open != "style":
            self.words.append(data)

    def data(self) -> dict:
        return json.loads(self.scripts[0])


def test_every_form_is_one_whole_file(any_form):
    text = render(any_form)
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert len(page.scripts) == 3
    for tag, attributes in page.tags:
        address = attributes.get("src") or attributes.get("href") or "#"
        assert address.startswith(("#", "data:")), (tag, address)
        assert not any(name.startswith("on") for name in attributes)
    text.encode("utf-8")


def test_only_the_pages_own_scripts_may_run(forms):
    page = Page(render(forms["gaps"]))
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for script in page.scripts[1:]:
        assert f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_plotly_stands_in_it_once(forms):
    text = render(forms["gaps"])
    assert text.count("plotly.js v") == 1
    assert len(text) < 6_000_000


def test_the_answer_stands_at_the_top(forms):
    page = Page(render(forms["gaps"]))
    assert (
        page.text.index("The GPU is idle 54 %") < page.text.index("Start here") < page.text.index("Where the step goes")
    )
    assert "saves 4.00 ms to 5.80 ms a step" in page.text
    assert "20.0 ms → 14.2 ms" in page.text


def test_findings_carry_evidence_examples_and_prescriptions(forms):
    text = render(forms["gaps"])
    page = Page(text)
    assert len([1 for tag, a in page.tags if tag == "article"]) == 6
    assert "20 of 20 gaps of this kind lie inside" in page.text
    assert "loader = DataLoader( dataset, batch_size=64" in page.text
    assert text.count('<button type="button" class="copy">') == 2
    assert "vectorized_<wbr>elementwise_<wbr>kernel&lt;<wbr>CUDAFunctor_<wbr>add&gt;" in text
    assert [a["title"] for _, a in page.tags if (a.get("title") or "").startswith("void at::native")]
    assert text.count('class="show"') == 6  # the examples of the step that is drawn


def test_a_prescription_without_a_finding_is_still_shown(forms):
    extra = Prescription(
        "small-grid", "x", "Use a larger batch", "", "batch = 128", (0, MS), None, "may change the numbers"
    )
    page = Page(render(replace(forms["gaps"], prescriptions=(extra,))))
    assert "Other changes" in page.text
    assert "Use a larger batch" in page.text


def test_a_healthy_trace_is_told_so(forms):
    page = Page(render(forms["healthy"]))
    assert "Nothing to fix" in page.text
    assert "Start here" not in page.text
    assert "Findings" not in page.text


def test_small_findings_alone_are_called_small(forms):
    d = forms["gaps"]
    page = Page(render(replace(d, dominant=None, findings=d.findings[-1:])))
    assert "Little to gain The largest finding takes 200 µs of each step (1.0 %)." in page.text


def test_without_a_gpu_the_page_is_about_the_host(forms):
    page = Page(render(forms["no_gpu"]))
    assert "Where the host's time goes" in page.text
    assert "operators the host computed inside operators 60.0 % 12.0 ms" in page.text
    assert "data-stall the step waited for its next batch 40.0 % 8.00 ms" in page.text
    assert "aten::mkldnn_convolution" in page.text.replace("_ ", "_").replace(":: ", "::")
    assert "Where the step goes" not in page.text
    assert "Queue depth" not in page.text


def test_ranks_and_trials_have_tables(forms):
    assert len(re.findall(r'<th scope="row" class="number">[0-3]</th>', render(forms["ranks"]))) == 4
    page = Page(render(forms["trials"]))
    assert "data-stall-fix 1.42 × 1.38 to 1.46 14.1 ms from 20.0 ms 15.0 ms 130 B from 100 B identical" in page.text
    assert "compile-fix failed: It ended with exit code 1." in page.text
    assert "together, without data-stall-fix" in page.text
    assert "With the gains applied: " in page.text


def test_hostile_strings_stay_text(forms, hostile_text):
    text = render(forms["hostile"])
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert len(page.scripts) == 3
    assert r"</script><img src=x onerror=alert(1)>[red]\x1b[31m\u2028\u202e{{ 7*7 }}" in page.text
    head, _, tail = text.partition('id="data">')
    data = tail[: tail.index("</script>")]
    assert not re.search("[<>&\u2028\u2029]", data)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800-\udfff]", head + data)


def test_texts_that_plotly_draws_are_escaped(forms):
    timeline = Page(render(forms["hostile"])).data()["timeline"]
    drawn = [timeline["lanes"][1]["label"], timeline["spans"][0]["category"], timeline["names"][0][0]]
    assert all("<" not in text and "&lt;" in text for text in drawn)
    assert "<img src=x" in timeline["names"][0][1]  # in full, shown as text by the page's own script


def test_the_timeline_holds_every_span_and_gap(forms):
    d = forms["gaps"]
    timeline = chart_data(d)["timeline"]
    assert sum(len(group["items"]) for group in timeline["spans"]) == len(d.picture.spans)
    assert sum(len(group["items"]) for group in timeline["gaps"]) == len(d.picture.gaps)
    assert [group["cause"] for group in timeline["gaps"]][:2] == ["data-stall", "host-sync"]
    assert timeline["gaps"][0]["items"][0][:2] == (0, 6)
    assert [lane["label"] for lane in timeline["lanes"]] == ["GPU 0 stream 7", "GPU 0 stream 20", "host 4711"]
    assert [lane["device"] for lane in timeline["lanes"]] == [True, True, False]
    assert timeline["depth"]["x"][:2] == [0, 6]


def test_without_a_device_the_causes_have_a_lane_of_their_own(forms):
    timeline = chart_data(forms["no_gpu"])["timeline"]
    assert [(lane["label"], lane["row"], lane["rows"]) for lane in timeline["lanes"]] == [
        ("by cause", 0, 1), ("host 1", 1, 2),
    ]  # fmt: skip
    assert [item[0] for item in timeline["spans"][0]["items"]] == [1, 2]


def test_a_name_is_stored_once():
    spans = tuple(Span("GPU 0 stream 7", i, i + 1, "kernel", "compute") for i in range(100))
    timeline = chart_data_of(Picture(0, 100, spans))
    assert timeline["names"] == [("kernel", "kernel")]


def chart_data_of(picture: Picture) -> dict:
    from types import SimpleNamespace

    nothing = {"step_times_ns": (), "roofline": None, "memory": None, "trials": (), "legends": {}}
    d = SimpleNamespace(picture=picture, source=SimpleNamespace(unprofiled_step_ns=()), **nothing)
    return chart_data(d)["timeline"]


@pytest.mark.parametrize("picture", [None, Picture(0, 0), Picture(0, 10)])
def test_nothing_to_draw_is_no_chart(picture):
    assert chart_data_of(picture) is None


def test_gaps_alone_are_drawn():
    timeline = chart_data_of(Picture(0, 10 * MS, (), (Gap(0, MS, "host-sync", "waits"),)))
    assert (timeline["lanes"], timeline["gaps"][0]["items"]) == (
        [{"label": "by cause", "row": 0, "rows": 1, "device": True}],
        [(0, 1, 0)],
    )


def test_nested_spans_get_rows_of_their_own():
    assert levels([(0, 10), (1, 5), (2, 3), (5, 9), (10, 12)]) == [0, 1, 2, 1, 0]
    assert max(levels([(i, 1000 - i) for i in range(50)])) == 7
    assert levels([]) == []


def test_the_waterfall_and_the_path_are_drawn(forms):
    page = Page(render(forms["gaps"]))
    assert "Load in workers fix 15.0 ms 14.0 ms to 16.0 ms" in page.text
    assert "Then the step is bound by the device's own kernels." in page.text
    text = render(forms["gaps"])
    assert 'class="fall now"><i style="width: 100.00%">' in text
    assert '<b style="left: 70.00%; width: 10.00%">' in text
    assert 'title="compute, 8.00 ms: sm90_gemm&lt;128, 64&gt; (GPU 0 stream 7)"' in text
    assert text.count('class="fall"') == 2
    assert "Predicted step time after each change" not in Page(render(forms["healthy"])).text

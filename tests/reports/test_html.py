"""The page as text: one file, everything escaped, the right parts for each kind of diagnosis, and the charts' data."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

from diagnose.model.diagnosis import Partition, Prescription, RankSummary
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

    def ids(self) -> set[str]:
        return {a["id"] for _, a in self.tags if a.get("id")}


def test_every_form_is_one_whole_file(any_form):
    text = render(any_form)
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert len(page.scripts) == 6
    for tag, attributes in page.tags:
        address = attributes.get("src") or attributes.get("href") or "#"
        assert address.startswith(("#", "data:")), (tag, address)
        assert not any(name.startswith("on") for name in attributes)
    text.encode("utf-8")
    assert len(text) < 400_000


def test_links_lead_to_something(any_form):
    page = Page(render(any_form))
    links = {a["href"] for tag, a in page.tags if tag == "a" and a.get("href", "").startswith("#")}
    assert {link for link in links if link[1:] not in page.ids()} == set()


def test_only_the_pages_own_scripts_may_run(forms):
    page = Page(render(forms["gaps"]))
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for script in page.scripts[1:]:
        assert f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_the_first_screen_is_headline_bars_and_actions(forms):
    page = Page(render(forms["gaps"]))
    start = page.text.index("GPU stalls the CPU runs ahead")
    first = page.text[start : page.text.index("Where the step goes", start)]
    assert "The step waits for its batch, loaded in the main process (costs 30.0 %)" in first
    assert "Step now" in first
    assert "Step possible 12.0 ms 1.7 × 12.0 ms to 13.0 ms, 1.5 to 1.7 ×" in first
    assert "saves 5.00 ms per step" in first
    assert "saves 3.00 ms per step , after change 1 (without: up to 2.40 ms)" in first
    assert "train. py: 31 in main" in first


def test_one_change_has_one_prediction_everywhere(forms):
    text = Page(render(forms["gaps"])).text
    assert "saves 5.00 ms per step (4.00 ms to 6.00 ms) : 20.0 ms → 15.0 ms" in text
    words = "saves 3.00 ms per step (2.00 ms to 3.00 ms), after data-stall-fix (without: up to 2.40 ms)"
    assert f"{words} : 15.0 ms → 12.0 ms" in text
    assert "14.2 ms" not in text  # what the card had, beside the 15.0 ms of the waterfall


def test_the_page_names_one_step_length(forms):
    for d in (forms["gaps"], forms["no_gpu"]):
        assert "21.3 ms" not in Page(render(replace(d, picture=d.picture._replace(step_ns=21_300_000)))).text


def test_findings_carry_evidence_examples_and_prescriptions(forms):
    text = render(forms["gaps"])
    page = Page(text)
    findings = [a for tag, a in page.tags if tag == "details" and (a.get("class") or "") == "finding"]
    assert len(findings) == 6
    assert ["open" in a for a in findings] == [True, *[False] * 5]
    assert "20 of 20 gaps of this kind lie inside" in page.text
    assert "loader = DataLoader( dataset, batch_size=64" in page.text
    assert text.count('<button type="button" class="copy">') == 3  # of the first card, and of two findings
    assert "vectorized_<wbr>elementwise_<wbr>kernel&lt;<wbr>CUDAFunctor_<wbr>add&gt;" in text
    assert [a["title"] for _, a in page.tags if (a.get("title") or "").startswith("void at::native")]
    assert text.count('class="show"') == 6  # the examples of the step that is drawn


def test_findings_after_the_first_without_a_saving_are_folded(forms):
    d = forms["gaps"]
    none = tuple(replace(f, worth_ns=0.0, title=f"About {f.rule}") for f in d.findings)
    text = render(replace(d, findings=(*d.findings[:2], *none[2:]), waterfall=None))
    shown, _, folded = text.partition('<details class="noted">')
    assert f"<summary>No saving known: {'; '.join(f.title for f in none[2:])}</summary>" in folded
    assert re.findall(r'id="finding-(\d)"', shown) == ["1", "2"]
    assert re.findall(r'id="finding-(\d)"', folded) == ["3", "4", "5", "6"]
    assert '<details class="noted">' not in render(d)
    again = replace(d, findings=none, record_again="Too little was recorded")
    assert '<details class="noted">' not in render(again)


def test_the_change_of_the_first_card_is_folded_in_its_finding_and_the_others_after_it(forms):
    """The card has its code."""
    d = forms["gaps"]
    first = d.prescriptions[0]
    other = replace(first, id="cache-samples", title="Cache the decoded samples", saves_ns=(MS, 2 * MS))
    text = render(replace(d, prescriptions=(other, *d.prescriptions)))
    finding = text[text.index('id="finding-1"') : text.index('id="finding-2"')]
    one, another = re.findall(r'(<details class="also">.*?)?<section class="fix">\s*<h3>(.*?)</h3>', finding, re.DOTALL)
    assert "The change in full:" in one[0]
    assert one[1] == "Load batches in worker processes"
    assert another[1] == "Cache the decoded samples"
    assert re.search(r"<summary>Or: Cache the decoded samples · saves .* per step", another[0])


def test_what_is_closed_is_among_the_details(forms):
    d = forms["gaps"]
    page = render(replace(d, waterfall=None))
    assert page.index('id="details"') < page.index('id="kernels"')  # of a device that waits
    full = render(replace(d, verdict="kernel-bound"))
    assert full.index('id="kernels"') < full.index('id="details"')


def test_a_prescription_without_a_finding_is_still_shown(forms):
    extra = Prescription(
        "small-grid", "x", "Use a larger batch", "", "batch = 128", (0, MS), None, "may change the numbers"
    )
    page = Page(render(replace(forms["gaps"], prescriptions=(extra,))))
    assert "Other changes" in page.text
    assert "Use a larger batch" in page.text


def test_a_healthy_trace_states_what_was_checked(forms):
    page = Page(render(replace(forms["healthy"], checked=("host-sync", "gc-pause"))))
    assert "Nothing to fix: the GPU is busy 98.8 % of each 20.0 ms step" in page.text
    assert "2 checks passed." in page.text
    assert "host-sync, gc-pause" in page.text
    assert "Step possible" not in page.text


def test_low_trust_takes_the_place_of_the_actions(forms):
    again = Prescription(
        "lost-records", "capture-complete-records", "Capture again", "", "diagnose trace --steps 3 train.py", (0, 0),
        None, "", records_again=True,
    )  # fmt: skip
    d = forms["gaps"]
    page = Page(render(replace(d, prescriptions=(again, *d.prescriptions), waterfall=None)))
    assert "Record again first" in page.text
    assert "diagnose trace --steps 3 train.py" in page.text
    assert not [a for tag, a in page.tags if tag == "ol" and a.get("class") == "actions"]
    assert "Seen in this recording 1 The step waits for its batch, loaded in the main process data-stall" in page.text
    assert not [a for tag, a in page.tags if tag == "section" and a.get("class") == "fix"]
    assert "saves" not in page.text


def test_the_reason_to_record_again_is_repeated_only_where_the_headline_shortens_it(forms):
    d = replace(forms["gaps"], record_again="The file is cut off: copy or record it again.")
    text = Page(render(d)).text
    assert (
        "Record again first: the file is cut off The file is cut off: copy or record it again. This recording" in text
    )
    assert "diagnose trace --quick train.py --epochs 1" in text
    again = replace(d, record_again="graphs ran whose work is not in the file")
    assert "Record again first: graphs ran whose work is not in the file This recording" in Page(render(again)).text


def test_the_title_of_the_page_is_the_verdict(forms):
    assert "<title>GPU stalls: train.py --epochs 1</title>" in render(forms["gaps"])


def test_of_a_step_that_recording_makes_twice_as_long_no_possible_step_is_shown(forms):
    page = Page(render(replace(forms["gaps"], profiler_overhead=3.8, recorded_step_ns=96 * MS)))
    assert "Recording added 76.0 ms to a step of 20.0 ms. Savings are uncertain" in page.text
    assert "Step possible" not in page.text
    assert "what-if" not in page.ids()
    assert "what-if" in Page(render(forms["gaps"])).ids()
    assert "Step now 20.0 ms" in page.text


def test_without_a_gpu_the_page_is_about_the_host(forms):
    page = Page(render(forms["no_gpu"]))
    assert "What takes the host's time" in page.text
    assert "work in operators operators 60.0 % 12.0 ms" in page.text
    assert "the step waited for its next batch data-stall 40.0 % 8.00 ms" in page.text
    assert "aten::mkldnn_convolution" in page.text.replace("_ ", "_").replace(":: ", "::")
    assert "Where the step goes" not in page.text
    assert "Queue depth" not in page.text


def test_ranks_and_trials_have_tables(forms):
    text = render(forms["ranks"])
    assert len(re.findall(r'<th scope="row" class="number">[0-3]</th>', text)) == 4
    assert "Steps of 4 ranks and what they lose by cause; rank 3 is slowest." in text
    page = Page(render(forms["trials"]))
    assert "data-stall-fix 1.42 × 1.38 to 1.46 14.1 ms from 20.0 ms 15.0 ms 130 B from 100 B identical" in page.text
    assert "compile-fix not tested: It ended with exit code 1." in page.text
    assert "together, without data-stall-fix" in page.text
    assert "With the gains applied: " in page.text
    assert "measured 20.0 ms → 14.1 ms, 1.42 × (1.38 to 1.46), losses identical" in page.text


def test_a_thousand_ranks_stay_a_page(forms):
    parts, causes = Partition(0.4, 0.1, 0.0, 0.5), {"data-stall": 0.4, "host-sync": 0.1}
    ranks = tuple(RankSummary(r, "gaps", "data-stall", (18 + r % 7) * MS, parts, causes) for r in range(1024))
    text = render(replace(forms["ranks"], ranks=ranks))
    assert len(text) < 600_000
    assert "The 32 slowest of 1,024 ranks; the JSON holds all of them." in text


def test_hostile_strings_stay_text(forms, hostile_text):
    text = render(forms["hostile"])
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert len(page.scripts) == 6
    assert r"</script><img src=x onerror=alert(1)>[red]\x1b[31m\u2028\u202e{{ 7*7 }}" in page.text
    head, _, tail = text.partition('id="data">')
    data = tail[: tail.index("</script>")]
    assert not re.search("[<>&\u2028\u2029]", data)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800-\udfff]", head + data)


def test_what_filled_the_gaps_is_listed_by_cause(forms):
    text = Page(render(forms["gaps"])).text.replace(" ", "")
    assert "data-stallenumerate(DataLoader).__next__–16.00ms" in text
    assert "launch-boundaten::add_–201.16ms" in text


def test_the_waterfall_and_the_path_are_drawn(forms):
    page = Page(render(forms["gaps"]))
    assert "Load in workers data-stall-fix 15.0 ms 14.0 ms to 16.0 ms" in page.text
    assert "With all of them the step is bound by the device's own kernels." in page.text
    text = render(forms["gaps"])
    assert 'class="fall now"><i style="width: 100.00%">' in text
    assert '<b style="left: 70.00%; width: 10.00%">' in text
    assert 'title="compute, 8.00 ms: sm90_gemm&lt;128, 64&gt; (GPU 0 stream 7)"' in text
    assert text.count('class="fall"') == 2
    assert page.data()["combinations"]["steps"][2][0] == 18
    assert "Predicted step after each change" not in Page(render(forms["healthy"])).text


def test_step_times_carry_their_own_numbers_and_no_point_lies_above_the_roof(forms):
    text = render(forms["gaps"])
    assert "<title>step 3: busy 9.00 ms of 20.0 ms</title>" in text
    assert text.count(">drawn</text>") == 1
    d = forms["device"]
    fast = d.roofline.points[0]._replace(tflops=5000.0, achieved=1.0)
    page = render(replace(d, roofline=d.roofline._replace(points=(fast,))))
    assert "989.0 TFLOP/s, &gt; 99 % of the compute bound" in page
    assert (
        "100.0 %" not in Page(page).text[Page(page).text.index("Roofline: achieved") :].partition("Host operators")[0]
    )


def test_memory_by_line_has_bytes_their_share_and_the_time_to_compute_them_again(forms):
    text = Page(render(forms["device"])).text
    assert "a step holds 20 GB at its peak; 9 GB of it the forward pass makes" in text
    assert "model.py:31 in forward 6 GB 30.0 % 12.0 ms" in text
    assert "model.py:40 2 GB 10.0 % –" in text
    assert "train.py:12 3 100 MB" in text
    assert "Memory by line" not in Page(render(forms["gaps"])).text


def test_readings_are_words_not_python(forms):
    d = forms["gaps"]
    samples = {"power": {"p50": 312.123456, "p95": 400}, "slowed_by": ["power", "heat"], "mig": False}
    page = Page(render(replace(d, source=replace(d.source, samples=samples))))
    assert "power p50 312.1, p95 400" in page.text
    assert "slowed by power, heat" in page.text
    assert "mig no" in page.text


def test_without_scripts_the_page_keeps_its_charts(forms):
    page = Page(render(forms["device"], charts=False))
    assert page.scripts == []
    assert len([1 for tag, _ in page.tags if tag == "svg"]) == 3
    assert not [a for tag, a in page.tags if tag == "button"]


def test_what_happens_outside_the_usual_step_is_shown_of_the_run(forms):
    d = forms["gaps"]
    rare = replace(d.findings[0], rule="periodic-stall", title="1 step in 3 saves a checkpoint", share=0.94)
    rare = replace(rare, lost_ns=18.8 * MS, worth_ns=18.8 * MS)
    fix = replace(d.prescriptions[0], rule="periodic-stall", id="save-in-background", predicted_step_ns=None)
    shown = replace(
        d, dominant="periodic-stall", findings=(rare,), prescriptions=(fix,), waterfall=None, watched_steps=155,
        phases={"training": 0.06, "checkpoint": 0.94},
    )  # fmt: skip
    page = Page(render(shown))
    assert "Run stalls" in page.text
    name = d.legends["periodic-stall"].label
    assert f"Step now 20.0 ms {name} 94.0 % the usual steps 6.0 % Usual step" in page.text
    assert "1 step in 3 saves a checkpoint (costs 94.0 % of the run)" in page.text
    assert "saving not predicted" in page.text
    known = replace(fix, saves_ns=(14 * MS, 16 * MS), predicted_step_ns=5 * MS, basis="replay")
    page = Page(render(replace(shown, prescriptions=(known,))))
    assert "saves 15.0 ms per step (14.0 ms to 16.0 ms) : 20.0 ms → 5.00 ms" in page.text


def test_no_picture_is_without_a_description(any_form):
    pictures = [attributes for _, attributes in Page(render(any_form)).tags if attributes.get("role") == "img"]
    assert all(attributes["aria-label"] for attributes in pictures)


def test_the_bar_shows_what_the_device_does(forms):
    d = forms["gaps"]
    parts = "communication not overlapped 5.0 % copies not overlapped 3.0 % idle 54.0 %"
    assert f"Step now 20.0 ms computing 38.0 % {parts}" in Page(render(d)).text
    families = {"gemm": 20.5 / 38, "elementwise": 17.5 / 38}
    full = Page(render(replace(d, verdict="kernel-bound", kernel_families=families))).text
    assert "Step now 20.0 ms idle 54.0 % gemm 20.5 % elementwise 17.5 % communication" in full


def test_a_finding_has_a_bar_of_what_the_step_saves_without_it(forms):
    """Of 20 ms: 6 ms of the second finding count, not the 2.4 ms that it takes; a cold start shows no saving."""
    d = forms["gaps"]
    d = replace(d, findings=(d.findings[0], replace(d.findings[1], worth_ns=6 * MS), *d.findings[2:]))
    for shown, widths in ((d, ["30.00", "30.00"]), (forms["low_trust"], ["0.00", "0.00"])):
        assert re.findall(r'<div class="share"><i style="width: ([\d.]+)%">', render(shown))[:2] == widths

"""One number reads the same everywhere: sentence, three lines, text, JSON and page of every recorded trace."""

import json
import math
import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len

from diagnose.analyzers import META
from diagnose.answer.cards import predictions
from diagnose.answer.screen import MAX_WORDS, SMALL, answer, finding_rows
from diagnose.model.words import english
from diagnose.reports.saving_words import saving
from diagnose.reports.text import render_answer
from diagnose.text.numbers import duration, percent, plural
from tests.pipeline.rendered import forms, part, read

MAX_WORDS_OF_LITTLE = 19  # with the records that are missing and what the step consists of
ROUNDING = 1e-6  # of the step: JSON holds whole nanoseconds and nine digits of a share
HIGHEST = re.compile(r"(?<![\w.])([\d,]+(?:\.\d+)?) ?%")
PARTS = {
    "compute": "computing",
    "exposed_communication": "communication not overlapped",
    "exposed_copy": "copies not overlapped",
    "idle": "idle",
}
OVER = ("longer than steps without the profiler", "% off")  # of what these state there may be more than the whole


def shares(d):
    """Check that parts sum to wholes, and that no part is larger than its whole."""
    if d.partition is not None:
        p = d.partition
        assert math.isclose(p.compute + p.exposed_communication + p.exposed_copy + p.idle, 1, abs_tol=ROUNDING)
        assert math.isclose(sum(d.idle_by_cause.values()), p.idle, abs_tol=ROUNDING)
        assert math.isclose(d.queue.idle_share, p.idle, abs_tol=ROUNDING)
        assert math.isclose(d.queue.busy_share + d.queue.idle_share, 1, abs_tol=ROUNDING)
        assert math.isclose(sum(k.share for k in d.kernels), 1, abs_tol=ROUNDING)
        assert all((k.peak_share or 0) <= 1 for k in d.kernels)
    else:
        assert math.isclose(sum(d.host_by_cause.values()), 1, abs_tol=ROUNDING)
    for finding in d.findings:
        assert 0 <= finding.lost_ns <= d.step_ns * (1 + ROUNDING), finding.rule
        assert 0 <= (finding.relief_ns or 0) <= d.step_ns * (1 + ROUNDING), finding.rule
        if d.partition is not None and META[finding.rule].kind == "idle":
            exposed = d.partition.exposed_communication + d.partition.exposed_copy
            assert finding.lost_ns <= (d.partition.idle + exposed) * d.step_ns * (1 + ROUNDING), finding.rule
    if d.critical_path is not None:
        assert math.isclose(sum(d.critical_path.shares.values()), 1, abs_tol=ROUNDING)


def savings(d):
    """Check that what is saved lies within the step, and that each change of the waterfall gains."""
    for p in d.prescriptions:
        least, most = p.saves_ns
        assert -ROUNDING <= least <= most <= d.step_ns * (1 + ROUNDING), p.id
        if p.predicted_step_ns is not None:
            assert math.isclose(p.predicted_step_ns, d.step_ns - (least + most) / 2, rel_tol=ROUNDING, abs_tol=1), p.id
    if d.waterfall is not None:
        chain = d.waterfall.forecasts
        assert chain[0].step_ns == d.step_ns
        for before, after in pairwise(chain):
            assert 0 <= after.low_ns <= after.step_ns <= after.high_ns <= d.step_ns * (1 + ROUNDING)
            assert after.step_ns < before.step_ns
            assert after.ids[:-1] == before.ids
        assert set(chain[-1].ids) <= {p.id for p in d.prescriptions}


def additions(d):
    """Check what a change adds behind others, and that a recording to be made anew promises nothing."""
    each = predictions(d)
    chain = d.waterfall.forecasts if d.waterfall is not None else ()
    for before, after in pairwise(chain):
        found = each.get(after.ids[-1])
        if found is not None:
            least, most = found.range_ns
            assert 0 <= least <= found.saves_ns * (1 + ROUNDING) + 1
            assert found.saves_ns <= most + 1
            assert most <= max(before.low_ns - after.low_ns, before.high_ns - after.high_ns, found.saves_ns) + 1
    saved = sum(before.step_ns - after.step_ns for before, after in pairwise(chain))
    assert saved <= d.step_ns
    if d.waterfall is None and d.prescriptions and d.prescriptions[0].records_again:
        assert all(p.saves_ns == (0.0, 0.0) for p in d.prescriptions)
    if d.prescriptions and d.prescriptions[0].records_again:
        assert d.waterfall is None
        assert not each


def places(d):
    """Check that costs are of each step only where steps were found, and are parts of the step."""
    if d.source.found_steps_by == "none":
        assert not any(" of each step" in line for f in d.findings for line in f.evidence[:1])
        assert not any(re.search(r"(?<! of) a step\b", line) for f in d.findings for line in f.evidence)
        assert not re.search(r" of each step|saves [\d.,]+ \S+ a step|launch(es)? a step", forms(d).words)
    assert all(found.lost_ns <= d.step_ns * (1 + ROUNDING) for found in d.findings)
    assert sum(f.lost_ns for f in d.findings if META[f.rule].kind == "idle" and d.partition is not None) <= (
        (1 + ROUNDING)
        * d.step_ns
        * (d.partition.idle + d.partition.exposed_communication + d.partition.exposed_copy if d.partition else 1)
    )


def order(d):
    """Check that findings come with the most valuable first, and that changes come in the order of their findings."""
    values = [(-finding.worth_ns, -finding.lost_ns) for finding in d.findings]
    assert values == sorted(values)
    place = {finding.rule: i for i, finding in enumerate(d.findings)}
    places = [place.get(p.rule, len(place)) for p in d.prescriptions if not p.records_again]
    assert places == sorted(places)
    numbers = [card.finding for card in answer(d).cards]
    is_stated = all(card.prediction and card.prediction.is_promise for card in answer(d).cards)
    assert numbers == sorted(set(numbers)) or not is_stated  # else by what each saves at most
    assert d.dominant is None or d.findings[0].rule == d.dominant


def sentences(d):
    """Check that the sentence and the lines state the numbers of the diagnosis."""
    screen = answer(d)
    assert d.headline == english(screen.headline) == d.summary[1]
    assert d.summary[0] == f"{english(screen.pill)}: {english(screen.meaning)}"
    assert len(d.headline.split()) <= (MAX_WORDS if d.dominant or screen.record_again else MAX_WORDS_OF_LITTLE)
    if screen.record_again is not None:
        assert d.headline.startswith("Record again first: ")
        assert len(d.summary) == 2
        return
    if d.dominant is not None:
        first = d.findings[0]
        stated = min(first.worth_ns / d.step_ns if first.share is None else first.share, 1)
        assert percent(stated) in re.findall(r"\((?:costs )?([<>\d.]+ %)", d.headline)
    elif not d.source.accelerator:  # of a device without records nothing is said
        assert duration(d.step_ns) in d.headline
        if d.queue is not None:
            busy = d.verdict == "kernel-bound"
            named = d.queue.busy_share if busy and d.queue.idle_share < SMALL else d.queue.idle_share
            assert percent(named) in d.headline
    first = next(iter(screen.cards), None)
    assert (first is not None) == (len(d.summary) == 3)
    if first is not None:
        assert d.summary[2].startswith(f"First change: {first.prescription.title}")
        if first.prediction is not None:
            saved = first.prediction.saves_ns if first.prediction.is_promise else first.prediction.most_ns
            assert 0 <= saved <= first.prediction.range_ns[1]
            assert f"{duration(saved)})" in d.summary[2]


def queue(d):
    """Check that text, JSON and page state the queue's numbers."""
    text, data, page = forms(d).words, forms(d).json["queue"], forms(d).page
    q = d.queue
    if q is None:
        assert data is None
        return
    for name in ("busy_share", "idle_share", "empty_share", "late_share", "depth_p50", "depth_p90", "busy_depth_p50"):
        value = getattr(q, name)
        assert data[name] == (None if value is None else pytest.approx(value, abs=1e-9)), name
    assert data["launches_per_step"] == pytest.approx(q.launches_per_step, abs=1e-9)
    assert data["delay_p50_ms"] == pytest.approx(q.delay_p50_ns / 1e6, abs=1e-6)
    each = "" if d.source.found_steps_by == "none" else " a step"
    if d.picture is not None and d.picture.step_ns > 0:
        assert (
            f"depth {q.depth_p50:,.0f} at the median, {q.depth_p90:,.0f} at the 90th percentile; empty "
            f"{percent(q.empty_share)}; {plural(q.launches_per_step, 'launch')}{each}, {percent(q.late_share)} of "
            "tasks launched onto an empty device"
        ) in text
    if timeline := read(part(page, 'id="one-step"')):
        depth = q.depth_p50 if q.busy_depth_p50 is None else q.busy_depth_p50
        meanwhile = "" if q.busy_depth_p50 is None else " while the GPU works"
        numbers = f"{q.launches_per_step:,.0f} a step, {percent(q.late_share)} of them onto an empty GPU"
        assert f"{depth:.0f} at the median{meanwhile}, {numbers}" in timeline


def partition(d):
    """Check that text, JSON and page state the parts of the step, and the causes of its idle time, with their times."""
    text, data = forms(d).words, forms(d).json
    rows = [read("<tr" + row) for row in part(forms(d).page, 'id="step"').split("<tr")[2:]]
    causes = d.idle_by_cause if d.partition is not None else d.host_by_cause
    if d.partition is None:
        assert data["partition"] is None
    else:
        assert d.queue is not None
        shown = {name: share for name, share in asdict(d.partition).items() if share > 0}
        assert data["partition"] == {n: pytest.approx(s, abs=1e-9) for n, s in asdict(d.partition).items()}
        for (name, share), row in zip(shown.items(), rows, strict=False):
            assert row.endswith(f"{percent(share)} {duration(share * d.step_ns)}"), name
            assert f"{PARTS[name]} {percent(share)}" in text, name
        rows = rows[len(shown) :]
    of_json = data["idle_by_cause" if d.partition is not None else "host_by_cause"]
    assert of_json == {cause: pytest.approx(share, abs=1e-9) for cause, share in causes.items()}
    ranked = sorted(((cause, share) for cause, share in causes.items() if share > 0), key=lambda row: -row[1])
    assert len(rows) == len(ranked)
    for (cause, share), row in zip(ranked, rows, strict=True):
        assert row.endswith(f"{cause} {percent(share)} {duration(share * d.step_ns)}"), cause
    if d.partition is not None or (d.picture is not None and d.picture.gaps):
        for cause, share in ranked[:6]:
            assert f" {percent(share)} {duration(share * d.step_ns)} {d.legends[cause].label}" in text, cause


def waterfall(d):
    """Check that text, JSON and page state the step after each change, its range, and what bounds it then."""
    text, data, page = forms(d).words, forms(d).json["waterfall"], forms(d).page
    if d.waterfall is None or not answer(d).shows_savings:
        assert (data is None) == (d.waterfall is None)
        assert 'id="what-if"' not in page
        assert "Predicted step time after each change" not in text
        return
    chain = d.waterfall.forecasts
    section = part(page, 'id="what-if"')
    rows = [read("<tr" + row) for row in section.split("<tr")[2:]]
    assert len(rows) == len(data["forecasts"]) == len(chain)
    for found, forecast, row in zip(data["forecasts"], chain, rows, strict=True):
        step, low, high = map(duration, (forecast.step_ns, forecast.low_ns, forecast.high_ns))
        span = f"{low} to {high}"
        assert found["ids"] == list(forecast.ids)
        assert found["step_ms"] == pytest.approx(forecast.step_ns / 1e6, abs=1e-6)
        assert found["range_ms"] == pytest.approx([forecast.low_ns / 1e6, forecast.high_ns / 1e6], abs=1e-6)
        step = step if forecast.is_narrow else "–"
        assert f" {step}" in row
        assert (span in row) == (low != high)
        if not forecast.ids:
            assert f"{step} now" in text
            continue
        assert row.startswith(f"{forecast.title} {forecast.ids[-1]} {step}")
        assert f"{step} {'with' if len(forecast.ids) == 1 else 'and'} {forecast.ids[-1]}" in text
        if forecast.high_ns - forecast.low_ns > 0.005 * d.step_ns:
            assert f" {forecast.ids[-1]} {span}" in text
    assert data["bound_by"] == d.waterfall.bound_by
    assert f"then it is bound by {d.waterfall.bound_by}" in text
    assert f"the step is bound by {d.waterfall.bound_by}" in read(section)


def text(d):
    """Check that the text states the same, and nothing above the whole."""
    shown, words = forms(d).text, " ".join(forms(d).text.split())
    first = answer(d)
    assert words.startswith(f"{english(first.pill)} {english(first.headline)}")
    assert first.after is None or f"step now {duration(d.step_ns)} " in words
    for found in [card.prediction for card in first.cards if card.prediction is not None]:
        assert found.range_ns[1] >= 0.01 * d.step_ns
        assert f"{saving(found)} " in words
    rows = finding_rows(d, first.each)
    for row in rows[:5]:
        if row.saves is None or row.finding.worth_ns:
            assert f"{row.finding.rule} {number(row, d)}" in words
    without = dict.fromkeys(row.finding.rule for row in rows if row.saves is not None and not row.finding.worth_ns)
    assert not without or f"No saving known: {', '.join(without)} (" in words
    if d.partition is not None and (d.verdict == "kernel-bound" or d.dominant is None):
        assert f"{percent(d.kernels[0].share)} {duration(d.kernels[0].time_ns)}" in words
    if not d.findings or d.dominant is None:
        assert f"Checked: {d.checked[0]}, " in words
    for line in shown.splitlines():
        if not any(what in line for what in OVER):
            assert all(float(number.replace(",", "")) <= 100 for number in HIGHEST.findall(line)), line


def lines(d):
    """Check that the answer has at most twenty lines, and that all but commands fit."""
    for width in (80, 100):
        shown = render_answer(d, width=width, written=[Path("diagnose/20260101-000000/report.html")]).splitlines()
        assert len(shown) <= 20, width
        assert max(cell_len(line) for line in shown if not re.match(r" *(\$|>>>) ", line)) <= width


def number(row, d):
    """Return what a finding of the list states: its worth, in a recording to be made again only its title."""
    finding = row.finding
    if answer(d).record_again is not None:
        return " ".join(finding.title.split())
    if not finding.worth_ns:
        return "no saving known"
    if finding.share is not None:
        return f"{duration(finding.worth_ns)} per step ({percent(min(finding.share, 1))} of the run)"
    whole = "the recording" if d.source.found_steps_by == "none" else "the step"
    return f"{duration(finding.worth_ns)} ({percent(min(finding.worth_ns / d.step_ns, 1))} of {whole})"


def as_json(d):
    """Check that the JSON holds the same numbers."""
    data = forms(d).json
    assert data["summary"] == list(d.summary)
    assert (data["verdict"], data["dominant"], data["headline"]) == (d.verdict, d.dominant, d.headline)
    assert data["step_ms"] == pytest.approx(d.step_ns / 1e6, abs=1e-6)
    for found, finding in zip(data["findings"], d.findings, strict=True):
        assert found["rule"] == finding.rule
        assert found["lost_ms"] == pytest.approx(finding.lost_ns / 1e6, abs=1e-6)
        assert found["lost_share"] == pytest.approx(finding.lost_ns / d.step_ns, abs=1e-9)
        assert found["title"] == finding.title
        assert found["evidence"] == list(finding.evidence)
        assert found["relief_ms"] == (
            None if finding.relief_ns is None else pytest.approx(finding.relief_ns / 1e6, abs=1e-6)
        )
    if d.queue is not None:
        assert data["queue"]["idle_share"] == pytest.approx(d.partition.idle, abs=1e-9)
        assert sum(data["partition"].values()) == pytest.approx(1, abs=ROUNDING)
        assert sum(data["idle_by_cause"].values()) == pytest.approx(data["partition"]["idle"], abs=ROUNDING)
        assert sum(kernel["share"] for kernel in data["kernels"]) == pytest.approx(1, abs=ROUNDING)
    for found, p in zip(data["prescriptions"], d.prescriptions, strict=True):
        assert (found["id"], found["rule"], found["title"]) == (p.id, p.rule, p.title)
        assert found["saves_ms"] == pytest.approx([ns / 1e6 for ns in p.saves_ns], abs=1e-6)
        assert (found["predicted_step_ms"] is None) == (p.predicted_step_ns is None)


def as_page(d):
    """Check that the HTML page has the same headline, step, and findings with their time and share, in their order."""
    page = forms(d).page
    heading, *others = re.findall(r"<h1[^>]*>(.*?)</h1>", page, re.DOTALL)
    assert (read(heading), others) == (d.headline, [])
    assert duration(d.step_ns) in read(page)
    _, *parts = re.split(r'<[a-z]+ class="finding" id="finding-\d+"', page)
    assert len(parts) == len(d.findings)
    for piece, finding, row in zip(parts, d.findings, finding_rows(d, answer(d).each), strict=True):
        words = read("<" + piece)
        assert finding.title in words, finding.rule
        assert finding.rule in words
        assert number(row, d) in words
    held = json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    assert held["diagnosis"] == forms(d).json


CHECKS = [
    shares,
    savings,
    additions,
    places,
    order,
    sentences,
    text,
    lines,
    as_json,
    as_page,
    queue,
    partition,
    waterfall,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_one_number_reads_the_same_everywhere(recorded, extent, check):
    failed = {name: why for name in recorded.of(extent, second=True) if (why := disagrees(check, recorded, name))}
    assert failed == {}


def disagrees(check, recorded, name):
    """Return what a check says of a trace, "" where it holds."""
    d = recorded.diagnoses[name]
    try:
        check(d)
    except AssertionError as error:
        return str(error)[:400]
    return ""

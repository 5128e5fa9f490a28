"""How reports show the first screen: they format the answer, and choose nothing."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.answer.cards import Prediction
from diagnose.answer.screen import answer
from diagnose.model.diagnosis import Finding, Forecast, Waterfall
from diagnose.model.job import Job
from diagnose.pipeline.run import analyze_paths
from diagnose.reports.charts import contrast, legible
from diagnose.reports.html import render as page
from diagnose.reports.language import language
from diagnose.reports.markdown import as_markdown, outcome
from diagnose.reports.rule_labels import CATEGORIES, PARTS, PATH, PHASES
from diagnose.reports.saving_words import behind, saving
from diagnose.reports.text import render as text_report
from tests.reports.test_html import Page

MS = 1_000_000
SLOW_DATASET = Path(__file__).parents[2] / "fixtures" / "captures" / "slow_dataset"


@pytest.mark.parametrize("shown", [text_report, page])
def test_the_first_finding_is_the_headline_in_each_language(shown):
    d = analyze_paths([SLOW_DATASET])
    assert "The step waits for the DataLoader, which loads in the main process (" in " ".join(shown(d).split())
    with language("zh"):
        assert "每步在等待主进程内加载数据的 DataLoader（" in "".join(shown(d).split("\n"))


def test_changes_that_are_not_on_the_first_screen_are_named_behind_the_numbers(forms):
    listed = answer(forms["gaps"]).cards
    before = ("data-stall-fix", "host-sync-fix", "other")
    found = Prediction(20 * MS, 15 * MS, 14 * MS, 16 * MS, before, is_replayed=True)
    assert behind(found, listed) == ", after changes 1 and 2 and other"
    more = replace(found, of_ns=4 * MS)
    assert behind(more, listed) == ", after changes 1 and 2 and other (without: up to 4.00 ms)"
    assert behind(replace(more, behind=("data-stall-fix",)), listed) == ", after change 1 (without: up to 4.00 ms)"
    enabled = replace(found, behind=("data-stall-fix", "other"), is_enabled=True)
    assert behind(enabled, listed) == ", only after change 1 and other"
    assert behind(replace(enabled, is_replayed=False), listed) == ", only after change 1 and other"
    assert behind(replace(found, is_replayed=False), listed) == ""


@pytest.mark.parametrize(
    ("now", "after", "low", "high", "words"),
    [
        (20, 12, 12, 13, "20.0 ms → 12.0 ms, 1.7 × (1.5 to 1.7 ×)"),
        (20, 10, 10, 10, "20.0 ms → 10.0 ms, 2.0 ×"),
        (20, 18.5, 18, 19, "20.0 ms → 18.5 ms"),  # less than 1.1 ×
    ],
)
def test_the_outcome_is_stated_with_its_factor_as_far_as_the_range_allows(forms, now, after, low, high, words):
    found = Prediction(now * MS, after * MS, low * MS, high * MS, is_replayed=True)
    assert outcome(replace(answer(forms["gaps"]), now_ns=now * MS, after=found)) == words


@pytest.mark.parametrize(
    ("after", "low", "high", "of_ms", "words"),  # of a step of 20 ms
    [
        (15, 14, 16, None, "saves 5.00 ms per step"),
        (15, 14, 16, 7, "saves 5.00 ms per step"),
        (15, 14, 16, 3, "saves 5.00 ms per step"),
        (17, 14, 20, None, "saves up to 6.00 ms per step"),
        (17, 14, 19.5, 4, "saves up to 4.00 ms per step"),
    ],
)
def test_what_a_change_saves_is_relative_to_its_finding(after, low, high, of_ms, words):
    of_ns = None if of_ms is None else of_ms * MS
    found = Prediction(20 * MS, after * MS, low * MS, high * MS, is_replayed=True, of_ns=of_ns)
    assert saving(found) == words
    with language("zh"):
        assert not saving(found).isascii()
    if of_ms is None:
        assert saving(replace(found, has_steps=False)) == words.removesuffix(" per step")


def test_of_a_recording_that_limits_predictions_each_saving_is_an_upper_bound(forms):
    d = replace(forms["gaps"], source=replace(forms["gaps"].source, world_size=8))
    for text in (text_report(d), text_report(d, verbose=True), Page(page(d)).text, as_markdown(d, answer(d))):
        assert "saves up to 6.00 ms per step" in text
        assert not re.search(r"saves (?!up to |without each)", text)


@pytest.mark.parametrize(("after", "low", "high"), [(5, 1, 10), (16, 12, 19.5)])
def test_of_a_wide_range_neither_the_saving_nor_the_step_afterwards_is_stated(forms, after, low, high):
    d = forms["gaps"]
    ends = [ms * MS for ms in (after, low, high)]
    chain = (Forecast((), "", *[20 * MS] * 3), Forecast(("data-stall-fix",), "", *ends))
    d = replace(d, waterfall=Waterfall(chain, "it", {}), prescriptions=d.prescriptions[:1])
    for shown in (text_report(d), Page(page(d)).text):
        assert "step possible" not in shown.lower()
        assert "20.0 ms →" not in shown
    (step,) = Page(page(replace(d, waterfall=Waterfall(chain, "it", {}, chain)))).data()["combinations"]["steps"][1:]
    assert step == [16.0 if low == 12 else None, low, high]


def test_a_step_that_a_trial_proved_is_called_so(forms):
    assert outcome(answer(forms["trials"])) == "20.0 ms → 14.1 ms, 1.4 × (1.4 to 1.5 ×)"
    assert "step proven     14.1 ms" in text_report(forms["trials"])
    assert "Step proven 14.1 ms" in Page(page(forms["trials"])).text
    fast = replace(forms["trials"].trials[0], speed_up=1.2, interval=(1.02, 1.42))
    wide = replace(forms["trials"], trials=(fast,))
    assert "step proven     16.7 ms" in text_report(wide)
    assert "14.1 ms to 19.6 ms, measured by running the script" in text_report(wide)
    assert "Step proven 16.7 ms" in Page(page(wide)).text


def test_every_colour_stands_out_on_both_pages(forms):
    colours = [legend.colour for legend in forms["gaps"].legends.values()]
    colours += [style.colour for style in (*PARTS.values(), *PHASES.values())]
    for colour in {*colours, *CATEGORIES.values(), *PATH.values()}:
        assert contrast(legible(colour), "#ffffff") >= 3, colour
        assert contrast(legible(colour), "#1b1f25") >= 3, colour


def test_markdown_holds_the_first_screen(forms):
    text = as_markdown(forms["gaps"], answer(forms["gaps"]))
    assert text.startswith("**GPU stalls: The step waits for its batch, loaded in the main process (costs 30.0 %)**")
    assert "20.0 ms → 12.0 ms" in text
    assert "1. **Load batches in worker processes** at" in text
    assert "       num_workers=4," in text
    assert "diagnose trace train.py" in as_markdown(forms["low_trust"], answer(forms["low_trust"]))
    bare = replace(forms["gaps"], prescriptions=(), waterfall=None)
    assert "No known change fits what takes the time at train.py:31: make that line cheaper." in as_markdown(
        bare, answer(bare)
    )
    assert "No known change fits what takes the time at train.py:31: make that line cheaper." not in text


def job_of_four(forms, **fields):
    """Rank 3 is late, for a data-stall of its own; the report shows it."""
    d = forms["ranks"]
    row = d.ranks[3]
    return replace(d, step_ns=row.step_ns, partition=row.partition, job=Job(4, 12, 0.0, (7,), **fields))


def test_the_card_for_a_late_rank_names_it(forms):
    d = job_of_four(forms, late_ranks=(3,), cause="data-stall")
    assert "rank 3  train.py:31  saves" in text_report(d)
    assert "1. **Load batches in worker processes** on rank 3 at" in as_markdown(d, answer(d))
    assert "rank 3 · train. py: 31" in Page(page(d)).text


def test_what_a_rank_that_begins_late_costs_is_an_upper_bound(forms):
    d = job_of_four(forms, begins_late=1, begins_late_ns=4.5 * MS)
    finding = Finding("straggler", "Rank 1 begins its step late", 4.5 * MS, worth_ns=4.5 * MS)
    fix = replace(d.prescriptions[0], rule="straggler", id="even-out-ranks", saves_ns=(0, 4.5 * MS), basis="bound")
    fix = replace(fix, predicted_step_ns=18 * MS)
    d = replace(d, dominant="straggler", findings=(finding, *d.findings), prescriptions=(*d.prescriptions, fix))
    assert "rank 1  saves up to 4.50 ms per step" in text_report(d)


@pytest.mark.parametrize(
    ("found_by", "worth", "saves"),
    [
        ("none", 4, "4.00 ms (20.0 % of the recording)"),
        ("marks", 4, "4.00 ms (20.0 % of the step)"),
        ("marks", 3, "3.00 ms (15.0 % of the step)"),
        ("marks", 0, "no saving known"),
    ],
)
def test_a_finding_saves_what_of_what(forms, found_by, worth, saves):
    d = forms["gaps"]
    finding = Finding("python-stall", "Python", 4 * MS, worth_ns=worth * MS)
    d = replace(d, findings=(finding,), source=replace(d.source, found_steps_by=found_by))
    text = " ".join(text_report(d, verbose=not worth).replace("\u00a0", " ").split())
    assert f"python-stall {saves} Python" in text
    shown = Page(page(d)).text
    assert f"1 Python {saves}" in shown
    assert "python-stall · high confidence · measured 4.00 ms per step" in shown


@pytest.mark.parametrize(
    ("basis", "words"),
    [("replay", "saves 5.80 ms per step (4.00 ms to 5.80 ms)"), ("bound", "saves up to 5.80 ms per step")],
)
def test_what_was_not_replayed_is_not_called_so(forms, basis, words):
    d = forms["gaps"]
    one = replace(d.prescriptions[0], basis=basis)
    d = replace(d, prescriptions=(one,), waterfall=None)
    text = " ".join(text_report(d).split())
    assert f"fix Load batches in worker processes {words}" in text
    assert "step possible" not in text
    assert "Simulated from this recording" not in page(d)

"""Changes that were tried: their findings and the first screen state what was measured, not what was predicted."""

import re
from dataclasses import replace

import pytest

from diagnose.answer.screen import answer
from diagnose.model.diagnosis import Trial
from diagnose.reports.html import render as page
from diagnose.reports.markdown import as_markdown
from diagnose.reports.saving_words import certainty_words
from diagnose.reports.text import render
from tests.reports.test_html import Page

MS = 1_000_000
SLOWER = "measured 28.2 ms → 33.3 ms, 0.87 × (0.74 to 1.03), probably slower, not certain, losses identical"


def trial(name, speed_up, interval, steps_ms=(28.2, 33.3)):
    return Trial(name, (steps_ms[0],), (steps_ms[1],), speed_up, interval, "identical", ids=(name,))


def tried(d, *trials):
    return replace(d, trials=trials, after=None)


def words(text):
    return " ".join(text.replace("\u00a0", " ").split())


def finding(text, rule):
    """Return the block of a finding in the text report."""
    findings = text.partition("Findings  by what the step saves without each")[2].partition("\n\n")[0]
    blocks = re.split(r"\n  (?=\d )", findings)
    return words(next(block for block in blocks if block[1:].strip().startswith(f"{rule}  ")))


@pytest.fixture
def slower(forms):
    return tried(forms["gaps"], trial("data-stall-fix", 0.87, (0.74, 1.03)))


def test_a_change_that_made_the_step_longer_is_no_fix_of_its_finding(slower):
    block = finding(render(slower), "data-stall")
    assert f"tried Load batches in worker processes {SLOWER}" in block
    assert "saves" not in block
    assert "fix" not in block


def test_the_fix_of_a_finding_is_then_the_next_change(slower):
    other = replace(slower.prescriptions[0], id="other", title="Cache the samples")
    block = finding(render(replace(slower, prescriptions=(*slower.prescriptions, other))), "data-stall")
    assert "fix Cache the samples saves" in block
    assert f"tried Load batches in worker processes {SLOWER}" in block
    also = replace(slower, prescriptions=(other,), also_possible=slower.prescriptions[:1])
    block = finding(render(also), "data-stall")
    assert "tried Load batches" in block
    assert "also possible" not in block


def test_a_change_that_was_measured_names_no_prediction_in_its_finding(forms):
    d = tried(forms["gaps"], trial("host-sync-fix", 1.0, (0.95, 1.05), (28.2, 28.2)))
    block = finding(render(d), "host-sync")
    assert "measured alone 28.2 ms → 28.2 ms, 1.00 × (0.95 to 1.05), not certain, losses" in block
    assert "saves" not in block


def test_the_page_offers_no_saving_of_a_change_that_made_the_step_longer(slower):
    text = Page(page(slower).split('<section class="fix">')[1]).text.partition("host-sync")[0]
    assert SLOWER in text
    assert "saves" not in text
    assert "Saving" not in text


def test_the_page_names_a_prediction_as_one_beside_what_was_measured(forms):
    d = tried(forms["gaps"], trial("data-stall-fix", 1.2, (1.1, 1.3), (20.0, 16.7)))
    assert (
        "predicted: saves 5.00 ms per step (4.00 ms to 6.00 ms)"
        in Page(page(d).partition('<section class="fix">')[2]).text
    )


def test_where_only_slower_changes_are_left_the_page_does_not_call_them_unpredicted(slower):
    first = replace(slower, prescriptions=slower.prescriptions[:1], findings=slower.findings[:1], waterfall=None)
    shown = Page(page(first)).text
    assert "No change is known" not in shown
    assert "A change that was tried made the step longer; no other is known for it." in shown
    even = replace(first, trials=())
    assert "made the step longer" not in Page(page(even)).text


def test_a_change_measured_alone_is_not_compared_with_its_saving_after_others(forms):
    d = tried(forms["gaps"], trial("host-sync-fix", 1.0, (0.95, 1.05), (28.2, 28.2)))
    shown = words(render(d).partition("Findings")[0])
    assert "predicted: saves 3.00 ms per step" in shown
    assert "after change 1 (without: up to 2.40 ms) · may change the numbers measured alone 28.2 ms → 28.2 ms" in shown
    assert "measured alone 28.2 ms" in Page(page(d)).text
    words_of_it = "predicted: saves 3.00 ms per step, after change 1 (without: up to 2.40 ms); measured alone 28.2 ms"
    assert words_of_it in as_markdown(d, answer(d))
    first = tried(forms["gaps"], trial("data-stall-fix", 1.2, (1.1, 1.3), (28.2, 23.5)))
    assert "measured alone" not in render(first) + page(first)


@pytest.mark.parametrize(
    ("speed_up", "interval", "said"),
    [
        (0.87, (0.74, 1.03), "probably slower, not certain"),
        (1.14, (0.97, 1.34), "probably faster, not certain"),
        (0.99, (0.90, 1.10), "not certain"),
        (1.0, (1.0, 1.0), "no difference"),
        (1.01, (0.99, 1.034), "no difference"),
        (1.02, (0.99, 1.05), "probably faster, not certain"),
        (1.02, (1.01, 1.03), ""),
        (1.2, (1.1, 1.3), ""),
        (0.8, (0.7, 0.9), ""),
    ],
)
def test_a_trial_states_when_no_difference_is_certain_and_where_the_middle_lies(forms, speed_up, interval, said):
    d = tried(forms["gaps"], trial("host-sync-fix", speed_up, interval))
    line = render(d).partition("Trials")[2].strip().partition("  numbers")[0]
    expected = f"{speed_up:.2f} × ({interval[0]:.2f} to {interval[1]:.2f})  host-sync-fix"
    assert words(line) == words(expected + (f" {said}" if said else ""))
    proof = Page(page(d).partition('id="proof"')[2].partition("</section>")[0]).text
    assert said in proof
    assert ("not certain" in proof) is bool(said)  # the legend has it for all of them


def test_a_narrow_interval_shows_no_difference_unless_nothing_is_certain():
    one = replace(trial("sham", 1.01, (1.0, 1.02)), doubt="noise not known")
    assert certainty_words(one) == "not certain"
    assert certainty_words(replace(one, doubt="")) == "no difference"

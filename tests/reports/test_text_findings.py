"""The findings in a terminal: what the step saves without each, and the change that it offers."""

import re
from dataclasses import replace

import pytest

from diagnose.model.diagnosis import Prescription
from diagnose.reports.text import render


def test_the_finding_of_a_card_is_printed_wherever_it_stands(forms):
    d = forms["gaps"]
    last = replace(d.findings[1], title="The host waits")
    others = [replace(d.findings[0], rule=f"rule-{n}") for n in range(6)]
    fix = replace(d.prescriptions[1], title="Stop waiting")
    text = render(replace(d, findings=(*others, last), dominant="rule-0", prescriptions=(fix,), waterfall=None))
    assert "\n  7 host-sync" in text
    assert "fix Stop waiting" in text
    assert "and 1 smaller finding, which --verbose" in text


def test_findings_are_ranked_with_line_and_fix(forms):
    text = render(forms["gaps"])
    rules = re.findall(r"^  (\d) ([a-z-]+)  ", text, re.MULTILINE)
    assert rules == [
        ("1", "data-stall"), ("2", "host-sync"), ("3", "launch-bound"), ("4", "exposed-copy"), ("5", "python-stall"),
    ]  # fmt: skip
    assert "  1 data-stall  6.00 ms (30.0 % of the step)\n" in text
    assert "/home/ada/project/train.py:42 in train_step" in text
    assert "fix Load batches in worker processes  saves 5.00 ms per step (4.00 ms to 6.00 ms)" in text
    assert "│     num_workers=4," in text
    assert "and 1 smaller finding, which --verbose, JSON and HTML show" in text


def test_only_the_first_prescription_of_a_rule_is_shown(forms):
    second = Prescription("data-stall", "second", "Cache the decoded samples", "", "", (0, 1e6), None, "same numbers")
    d = replace(forms["gaps"], prescriptions=(*forms["gaps"].prescriptions, second))
    assert "Cache the decoded samples" not in render(d)


def test_a_replay_that_finds_nothing_says_so(forms):
    gaps = forms["gaps"]
    none = replace(gaps.prescriptions[0], saves_ns=(0.0, 0.0), basis="replay")
    text = render(replace(gaps, prescriptions=(none,), waterfall=None))
    assert "\n    fix Load batches in worker processes  no saving predicted\n" in text
    unknown = replace(gaps.findings[0], worth_ns=0.0)  # a replay shows that it saves, but no edit is known to do so
    gains = replace(gaps.prescriptions[0], basis="replay")
    text = render(replace(gaps, findings=(unknown,), prescriptions=(gains,), waterfall=None), verbose=True)
    assert "\n    try Load batches in worker processes\n" in text


def test_verbose_lists_every_finding_with_its_evidence(forms):
    text = render(forms["gaps"], verbose=True)
    assert len(re.findall(r"^  \d [a-z-]+  ", text, re.MULTILINE)) == 6
    assert "    20 of 20 gaps of this kind lie inside aten::item" in text
    assert "    step 3 at 2.00 ms: 6.00 ms" in text
    assert "step 3 at" not in render(forms["gaps"])


def test_where_nothing_was_found_it_names_what_was_checked(forms):
    d = replace(forms["gaps"], findings=(), dominant=None, checked=("host-sync", "gc-pause"))
    text = render(replace(d, not_checked={"slow-kernel": "shapes", "off-cpu": "samples", "at-roofline": "shapes"}))
    assert "  Checked: host-sync, gc-pause.\n" in text
    assert "  Not checked, for lack of shapes: slow-kernel, at-roofline.\n" in text
    assert "  Not checked, for lack of samples: off-cpu.\n" in text


@pytest.mark.parametrize(
    ("worth", "words"),
    [
        (2e6, "2.00 ms (10.0 % of the step)"),
        (8e6, "8.00 ms (40.0 % of the step)"),
        (0.0, "no saving known"),
    ],
)
def test_a_finding_states_what_the_step_saves_without_it(forms, worth, words):
    """It takes 6 ms, which is not stated."""
    first, *others = forms["gaps"].findings
    text = render(replace(forms["gaps"], findings=(replace(first, worth_ns=worth), *others)), verbose=True)
    assert f"1 data-stall {words} The step waits" in " ".join(text.split())
    assert ("try Load batches" in text) == (not worth)


def test_findings_without_a_known_saving_share_one_line(forms):
    d = forms["gaps"]
    first, second, third, *_ = d.findings
    d = replace(d, findings=(first, replace(second, worth_ns=0.0), replace(third, worth_ns=0.0)))
    text = render(d)
    assert re.findall(r"^  (\d) ([a-z-]+)  ", text, re.MULTILINE) == [("1", "data-stall")]
    assert "\n  No saving known: host-sync, launch-bound (--verbose shows them)\n" in text
    assert "smaller finding" not in text
    assert "No saving known" not in render(forms["gaps"])
    whole = render(d, verbose=True)
    assert len(re.findall(r"^  \d [a-z-]+  ", whole, re.MULTILINE)) == 3
    assert "No saving known:" not in whole


def test_an_answer_without_a_change_is_followed_by_that(forms):
    d = forms["gaps"]
    assert "No known change" not in render(d)
    other = render(replace(d, prescriptions=d.prescriptions[1:], waterfall=None))
    words = "No known change fits what takes the time at train.py:31: make that line cheaper."
    assert f" {words} Changes for smaller findings: 1 Load" in " ".join(other.split())
    none = render(replace(d, prescriptions=(), waterfall=None))
    assert f"\n  {words}\n" in none


def test_a_recording_to_be_made_again_lists_its_findings_without_numbers_and_changes(forms):
    d = forms["low_trust"]
    d = replace(d, findings=(d.findings[0], replace(d.findings[1], worth_ns=0.0), *d.findings[2:]))
    text = render(d)
    assert f"Seen in this recording\n  1 warm-up\n    {d.findings[0].title}\n" in text
    assert f"\n  2 data-stall\n    {d.findings[1].title}\n" in text
    assert "No saving known" not in text
    assert not re.search(r"^ +(fix|try|or|also) ", text, re.MULTILINE)
    assert "saves" not in text
    assert "Findings" not in text


def test_a_change_that_pays_only_after_another_is_marked(forms):
    d = forms["gaps"]
    first, fix = d.prescriptions[0], replace(d.prescriptions[1], saves_ns=(1e4, 2e4), basis="replay")
    text = " ".join(render(replace(d, prescriptions=(first, fix))).split())
    assert "saves 3.00 ms per step (2.00 ms to 3.00 ms), only after data-stall-fix" in text
    assert "saves 10.0 µs" not in text

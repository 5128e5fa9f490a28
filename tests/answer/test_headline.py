"""The headline: the first finding and what it is worth in at most sixteen words, or how little there is to gain."""

from dataclasses import replace

import pytest

from diagnose.answer.screen import MAX_WORDS, answer, with_words
from diagnose.model.charts import FlopUtilisation
from diagnose.model.diagnosis import Finding
from diagnose.model.job import Job
from diagnose.model.words import english

MS = 1_000_000


def headline(d):
    return english(answer(d).headline)


def test_it_has_at_most_sixteen_words(any_form):
    assert 2 <= len(headline(any_form).split()) <= MAX_WORDS


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("the host waits.", "The host waits (costs 30.0 % of the step)"),
        ("The step waits for its batch, loaded in the main process",
         "The step waits for its batch, loaded in the main process (costs 30.0 %)"),
        ("One two three four five six seven, eight nine ten eleven, twelve",
         "One two three four five six seven, eight nine ten eleven, twelve (costs 30.0 %)"),
        ("One two three four five six seven eight nine ten, eleven twelve thirteen fourteen fifteen",
         "One two three four five six seven eight nine ten (30.0 %)"),
        (" ".join(["word"] * 20), "Word " + " ".join(["word"] * 13) + "… (30.0 %)"),
    ],
)  # fmt: skip
def test_of_a_long_title_the_share_gets_shorter_then_clauses_go_then_words(forms, title, words):
    d = forms["gaps"]
    assert headline(replace(d, findings=(replace(d.findings[0], title=title),))) == words


@pytest.mark.parametrize(
    ("lost", "worth", "fields", "found_by", "words"),
    [
        (6.0, 6.0, {}, "marks", "30.0 % of the step"),
        (6.0, 5.2, {}, "marks", "26.0 % of the step"),  # what the step saves, whatever it costs
        (0.0, 8.0, {}, "marks", "40.0 % of the step"),
        (6.0, 60.0, {}, "marks", "100.0 % of the step"),  # no more than the step
        (6.0, 4.0, {"share": 0.3}, "marks", "30.0 % of the run"),
        (6.0, 6.0, {}, "none", "30.0 % of the recording"),
    ],
)
def test_it_states_what_the_finding_is_worth(forms, lost, worth, fields, found_by, words):
    """Of a step of 20 ms."""
    d = forms["gaps"]
    one = replace(d.findings[0], title="It waits", lost_ns=lost * MS, worth_ns=worth * MS, **fields)
    d = replace(d, findings=(one,), source=replace(d.source, found_steps_by=found_by))
    assert headline(d) == f"It waits (costs {words})"


def test_a_finding_without_worth_has_no_share(forms):
    d = forms["gaps"]
    d = replace(d, findings=(replace(d.findings[0], title="It waits", worth_ns=0.0),))
    assert headline(d) == "It waits"


@pytest.mark.parametrize(
    ("worth", "fields", "words"),  # of a step of 20 ms
    [
        (1.82, {}, "It waits (costs 9.1 % of the step)"),
        (1.81, {}, "Small gains only: it waits (costs 9.0 % of the step)"),  # 20 / 18.19 is less than 1.1
        (1.0, {"share": 0.05}, "It waits (costs 5.0 % of the run)"),
        (0.0, {}, "It waits"),
    ],
)
def test_less_than_a_tenth_faster_is_a_small_gain(forms, worth, fields, words):
    d = forms["gaps"]
    d = replace(d, findings=(replace(d.findings[0], title="It waits", worth_ns=worth * MS, **fields),))
    assert headline(d) == words
    one_rank = replace(d, source=replace(d.source, world_size=8))
    assert headline(one_rank).startswith("On this rank (1 of 8): it waits")  # one lead is enough


@pytest.mark.parametrize(
    ("late", "words"),
    [
        ((3,), "Rank 3 is late: the step waits for the DataLoader's workers (costs 30.0 %)"),
        ((3, 17), "Ranks 3 and 17 are late: the step waits for the DataLoader's workers (costs 30.0 %)"),
        ((3, 5, 17), "Ranks 3, 5 and 17 are late: the step waits for the DataLoader's workers (30.0 %)"),
        ((3, 5, 8, 17), "4 ranks are late: the step waits for the DataLoader's workers (costs 30.0 %)"),
        ((), "The step waits for the DataLoader's workers (costs 30.0 % of the step)"),
    ],
)
def test_late_ranks_are_named_where_the_finding_is_their_own(forms, late, words):
    d = forms["gaps"]
    one = replace(d.findings[0], title="The step waits for the DataLoader's workers")
    job = Job(36, 12, 0.0, (7, 8), late_ranks=late, cause="data-stall")
    d = replace(d, findings=(one, *d.findings[1:]), job=job)
    assert headline(d) == words
    assert headline(replace(d, job=job._replace(cause="host-sync"))).startswith("The step waits for the DataLoader's")


def test_a_rank_that_begins_late_is_named_with_its_time(forms):
    finding = Finding("straggler", "58 % of the waiting is in the first collective", 4.52 * MS)
    job = Job(36, 12, 0.0, (7, 8), begins_late=7, begins_late_ns=4.52 * MS)
    d = replace(forms["ranks"], dominant="straggler", findings=(finding,), job=job)
    assert headline(d) == "The ranks wait for rank 7, which begins its step 4.52 ms late"


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("The file is cut off: copy or record it again.", "the file is cut off"),
        ("graphs ran whose work is not in the file", "graphs ran whose work is not in the file"),
    ],
)
def test_a_recording_that_carries_no_answer_is_to_be_made_again(forms, why, words):
    assert headline(replace(forms["gaps"], record_again=why)) == f"Record again first: {words}"


@pytest.mark.parametrize(
    ("verdict", "busy", "mfu", "words"),
    [
        ("kernel-bound", 0.988, None, "the GPU is busy 98.8 % of each 20.0 ms step"),
        ("kernel-bound", 0.988, 0.44, "the GPU is busy 98.8 % of each 20.0 ms step"),
        ("gaps", 0.6, 0.44, "the GPU idles 40.0 % of each 20.0 ms step, none avoidable"),
    ],
)
def test_little_to_gain_is_stated_with_what_the_device_does(forms, verdict, busy, mfu, words):
    d = forms["healthy"]
    d = replace(d, verdict=verdict, queue=d.queue._replace(busy_share=busy, idle_share=1 - busy))
    if mfu is not None:
        d = replace(d, flops=FlopUtilisation(mfu, 1e12, 400.0, 1.0, "H100"))
    assert headline(d) == f"Nothing to fix: {words}"
    assert headline(replace(d, findings=forms["gaps"].findings[-1:])) == f"Little to gain: {words}"
    named = f"{words}, MFU 44 %" if mfu and verdict == "kernel-bound" else words
    assert headline(replace(d, to_try=("fuse-kernels",))) == f"No waste found: {named}"


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"operators": 0.93}, "Nothing found: operators take 93 % of the 20.0 ms step, none of it known waste"),
        ({"outside-operators": 0.58, "operators": 0.42},
         "Nothing found: 58 % of the 20.0 ms step lies between operators, cause not recorded"),
        ({"operators": 0.3}, "Nothing to fix: no rule found avoidable time in the 20.0 ms step"),
    ],
)  # fmt: skip
def test_without_a_device_nothing_is_called_needed_or_unavoidable(forms, shares, words):
    d = replace(forms["healthy"], verdict="no-gpu", queue=None, host_by_cause=shares)
    assert headline(d) == words
    few = replace(d, findings=forms["gaps"].findings[-1:])
    small = "Little to gain: small savings only in the 20.0 ms step"
    assert headline(few) == (words.replace("Nothing found", "Little found") if "found:" in words else small)


def test_a_healthy_run_states_what_was_checked(forms):
    d = replace(forms["healthy"], checked=("host-sync", "gc-pause"), not_checked={"slow-kernel": "shapes"})
    checked = "2 checks passed. 1 could not run (missing: shapes)."
    assert english(answer(d).checked) == checked
    small = replace(forms["gaps"].findings[-1], worth_ns=0.1 * MS)
    d = replace(d, findings=(small, replace(small, rule="slow-kernel", lost_ns=8 * MS, worth_ns=0.0)))
    assert english(answer(d).checked) == checked  # of a step of 20 ms
    d = replace(d, findings=(replace(small, worth_ns=0.2 * MS), *d.findings[1:]))
    found = " Largest finding: the usual pause between two queued kernels (costs 1.0 %)."
    assert english(answer(d).checked) == checked + found
    assert answer(replace(d, checked=())).checked is None


def test_the_diagnosis_carries_the_headline_and_three_lines(forms):
    d = with_words(forms["gaps"])
    assert d.headline == "The step waits for its batch, loaded in the main process (costs 30.0 %)"
    assert d.summary == (
        "GPU stalls: the CPU runs ahead of the GPU except for a few long gaps",
        d.headline,
        "First change: Load batches in worker processes (saves 5.00 ms)",
    )

"""Why to record again, and what limits the numbers of the first screen."""

from dataclasses import replace

import pytest

from diagnose.answer.screen import answer
from diagnose.model.diagnosis import IgnoredFinding, PlainSteps, Prescription, Where
from diagnose.model.job import Job
from diagnose.model.words import english
from diagnose.reports.format import said
from diagnose.reports.language import language

MS = 1_000_000


def cautions(d):
    return [english(caution) for caution in answer(d).cautions]


def test_a_diagnosis_without_limits_has_no_caution(forms):
    assert cautions(forms["gaps"]) == []


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        (23.9, ""),
        (24.1, "Recording added 4.10 ms per step, which all numbers leave out."),
        (39.9, "Recording added 19.9 ms per step, which all numbers leave out."),
        (40, "Recording added 20.0 ms to a step of 20.0 ms. Savings are uncertain, so no predicted step is shown."),
    ],
)  # fmt: skip
def test_what_recording_cost_is_stated_if_it_was_much(forms, recorded, words):
    d = replace(forms["gaps"], recorded_step_ns=recorded * MS, profiler_overhead=recorded / 20 - 1)
    assert cautions(d) == ([words] if words else [])
    a = answer(d)
    assert a.now_ns == 20 * MS
    assert (a.after is None) == a.is_limited == (not a.shows_savings) == (recorded >= 40)
    assert len(a.cards) == 2
    assert a.record_again is None


def test_a_step_proven_by_a_trial_is_shown_however_much_recording_cost(forms):
    d = replace(forms["trials"], recorded_step_ns=60 * MS, profiler_overhead=2.0)
    assert answer(d).after.after_ns == pytest.approx(20 * MS / 1.42)


@pytest.mark.parametrize(
    ("verdict", "share", "found_by", "words"),
    [
        ("gaps", 0.2, "marks", "Up to 20 % of the step is the profiler's own CPU time: savings are upper bounds."),
        ("gaps", 0.2, "none", "Up to 20 % of the CPU's time is the profiler's own: savings are upper bounds."),
        ("gaps", 0.19, "marks", ""),
        ("kernel-bound", 0.2, "marks", ""),
    ],
)
def test_what_recording_may_take_of_the_host_stands_beside_an_answer_about_the_host(
    forms, verdict, share, found_by, words
):
    d = replace(forms["gaps"], verdict=verdict, recording_estimate=share, profiler_overhead=None)
    d = replace(d, source=replace(d.source, found_steps_by=found_by))
    assert cautions(d) == ([words] if words else [])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (45.7, 37.4, "20.0 ms to 45.7 ms"),
        (45.7, None, "20.0 ms to 45.7 ms"),
        (None, 37.4, "20.0 ms to 42.1 ms"),
    ],
)
def test_steps_that_differ_before_and_after_the_recording_are_stated(forms, before, after, words):
    times = [None if ms is None else ms * MS for ms in (before, 42.1, after)]
    d = replace(forms["gaps"], plain_steps=PlainSteps(*times, None, 30, agree=False))
    assert cautions(d) == [f"Unstable timing: steps took {words} within this run. Record again on an idle machine."]
    assert cautions(replace(d, plain_steps=d.plain_steps._replace(agree=True))) == []


@pytest.mark.parametrize(("step", "is_stated"), [(20, False), (27, False), (40, True), (8, True)])
def test_trials_whose_steps_are_no_longer_than_half_or_twice_the_recorded_one_are_stated_beside_it(
    forms, step, is_stated
):
    """They take 20 ms without a change, one of them 20.1 ms."""
    d = replace(forms["trials"], step_ns=step * MS)
    assert {t.steps_ms[0] for t in d.trials if t.steps_ms and t.kind != "without"} == {20.0, 20.1}
    found = [text for text in cautions(d) if text.startswith("Trials without a change took 20.")]
    assert len(found) == is_stated
    with language("zh"):
        assert any("未作改动的试运行" in said(text) for text in answer(d).cautions) == is_stated


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.19, None),
        (0.2, "20 % of the time, which all times and savings include."),
        (0.5, "50 % of the time, so savings are upper bounds. First record again on an idle machine."),
    ],
)
def test_waiting_for_a_core_is_stated_and_half_of_the_time_leaves_no_step_predicted(forms, share, words):
    """No sentence speaks against the changes above it."""
    d = replace(forms["gaps"], cpu_wait=share)
    start = "CPU overloaded: training waited for a core "
    assert cautions(d) == ([start + words] if words else [])
    several = replace(d, source=replace(d.source, setup={"num_threads": 2}))
    assert ("machine, or with OMP_NUM_THREADS=1." in " ".join(cautions(several))) == (share == 0.5)
    a = answer(d)
    is_uncertain = share == 0.5
    assert (a.after is None) == english(a.headline).startswith("Uncertain: ") == is_uncertain
    assert all(card.prediction.is_promise != is_uncertain for card in a.cards)


def test_one_rank_of_several_is_stated(forms):
    d = replace(forms["gaps"], source=replace(forms["gaps"].source, world_size=8))
    assert cautions(d) == [
        "Only 1 of 8 ranks, and another may limit the step. First analyze the traces of all ranks together: diagnose "
        "analyze FOLDER"
    ]
    a = answer(d)
    assert english(a.headline).startswith("On this rank (1 of 8): the ")
    assert a.cards
    assert a.after is None
    assert answer(forms["gaps"]).after is not None


@pytest.mark.parametrize(
    ("ratio", "estimate", "words"),
    [
        (1.0, 0.0, "Uncertain: "),
        (0.99, 0.0, ""),
        (None, 0.5, "Uncertain: "),
        (None, 0.19, ""),
    ],
)
def test_recording_over_half_of_the_step_leads_the_answer_and_no_possible_step_is_shown(forms, ratio, estimate, words):
    d = forms["gaps"]
    recorded = d.step_ns * (1 + (ratio or 0.0))
    a = answer(replace(d, profiler_overhead=ratio, recorded_step_ns=recorded, recording_estimate=estimate))
    assert english(a.headline).startswith(words)
    assert (a.after is None) == bool(words)
    assert english(a.headline).startswith("Uncertain") == bool(words)


def test_what_limits_a_recording_without_an_answer_is_the_only_start_of_its_headline(forms):
    d = replace(forms["healthy"], verdict="no-gpu", queue=None, host_by_cause={"operators": 0.93}, profiler_overhead=1)
    assert english(answer(d).headline) == "Uncertain: operators take 93 % of the 20.0 ms step, none of it known waste"
    one = replace(forms["healthy"], source=replace(forms["healthy"].source, world_size=8))
    assert english(answer(one).headline).startswith("On this rank (1 of 8): the GPU ")


@pytest.mark.parametrize(("verdict", "is_known"), [("gaps", False), ("kernel-bound", True)])
def test_of_an_unmeasured_step_that_recording_may_lengthen_savings_are_upper_bounds(forms, verdict, is_known):
    d = replace(forms["gaps"], verdict=verdict, profiler_overhead=None, recording_estimate=0.2)
    a = answer(d)
    assert [card.prediction.is_promise for card in a.cards] == [is_known, is_known]
    assert (a.after is not None) == is_known
    assert not english(a.headline).startswith("Uncertain")


@pytest.mark.parametrize(("steps", "words"), [((7,), "recorded step"), ((7, 8), "2 recorded steps")])
def test_why_a_rank_begins_late_is_not_in_the_recording(forms, steps, words):
    job = Job(4, 12, 0.0, steps, begins_late=1, begins_late_ns=4.5 * MS)
    d = replace(forms["ranks"], dominant="straggler", job=job)
    assert cautions(d) == [f"The cause of rank 1's late start is outside the {words}. Record more steps on all ranks."]
    assert cautions(replace(d, job=job._replace(late_ranks=(1,)))) == []


def test_an_answer_of_low_confidence_is_called_so(forms):
    first, *others = forms["gaps"].findings
    d = replace(forms["gaps"], findings=(replace(first, confidence="low", doubt="one step was recorded"), *others))
    assert cautions(d) == ["Low confidence: one step was recorded."]
    assert cautions(replace(d, dominant="host-sync")) == []


def test_what_was_left_out_as_asked_is_stated(forms):
    first, second, *_ = forms["gaps"].findings
    line = replace(first, where=(Where("/home/ada/project/train.py", 31),))
    d = replace(forms["gaps"], ignored=(IgnoredFinding(line, "comment"), IgnoredFinding(second, "option")))
    assert cautions(d) == [
        "Left out as asked: 2 findings: data-stall (6.00 ms per step, by the comment at train.py:31), "
        "host-sync (2.40 ms per step, by an option or setting)."
    ]


def test_a_file_that_carries_no_answer_has_no_cards_and_a_command(forms):
    a = answer(replace(forms["gaps"], record_again="The file is cut off: copy or record it again."))
    assert english(a.record_again) == "The file is cut off: copy or record it again."
    assert a.command == "diagnose trace --quick train.py --epochs 1"
    assert (a.cards, a.after, a.each, a.parts, a.checked, a.to_try) == ((), None, {}, (), None, None)
    assert (english(a.pill), a.shows_savings, a.no_change) == ("No diagnosis", False, None)


def test_of_a_cold_start_the_finding_gives_the_reason_and_the_change_the_command(forms):
    a = answer(forms["low_trust"])
    assert english(a.record_again) == "The recording is of a cold start"
    assert english(a.headline) == "Record again first: the recording is of a cold start"
    assert a.command == "diagnose trace train.py --epochs 1"
    assert a.cards == ()


def test_a_recording_that_holds_too_little_is_not_named_for_the_programs_finding(late):
    late.op("aten::mm", 0, 10)
    d = late.diagnosis()
    assert (d.findings[0].rule, d.prescriptions[0].records_more) == ("python-stall", True)
    assert english(answer(d).headline) == "Record again first: only a few device tasks are in this recording"


def test_a_change_that_records_again_is_only_asked_for_if_it_comes_first(forms):
    again = Prescription("warm-up", "x", "Again", "", "diagnose trace x.py", (0, 0), None, "", records_again=True)
    d = forms["gaps"]
    assert answer(replace(d, prescriptions=(*d.prescriptions, again))).record_again is None
    assert answer(replace(d, prescriptions=(again, *d.prescriptions))).command == "diagnose trace x.py"


@pytest.mark.parametrize("why", ["The file is cut off: copy or record it again.", ""])
def test_the_reason_to_record_again_is_in_the_language_that_is_shown(forms, why):
    d = replace(forms["gaps"], record_again=why)
    again = Prescription("other", "x", "Again", "", "diagnose trace x.py", (0, 0), None, "", records_again=True)
    a = answer(d if why else replace(d, prescriptions=(again,)))
    with language("zh"):
        shown = "文件不完整（被截断）" if why else "本次录制中的设备任务过少"
        assert said(a.headline) == f"请先重新录制：{shown}"
        assert said(a.record_again).startswith(shown)

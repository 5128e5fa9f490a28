"""The first screen: a headline that is read at a glance, and one prediction for one change."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from diagnose.reports.answer import Prediction, answer, predictions
from diagnose.reports.headline import MAX_WORDS

from diagnose.model.diagnosis import Finding
from diagnose.model.forecast import Forecast, Waterfall
from diagnose.model.job import Job
from diagnose.pipeline.run import analyze_paths
from diagnose.reports.colours import contrast, legible
from diagnose.reports.format import duration
from diagnose.reports.html import render as page
from diagnose.reports.language import language
from diagnose.reports.markdown import as_markdown, outcome
from diagnose.reports.rule_labels import CATEGORIES, PARTS, PATH, PHASES
from diagnose.reports.saving_words import behind
from diagnose.reports.text import render as text_report
from diagnose.text.titles import LARGEST_AVOIDABLE

MS = 1_000_000
SLOW_DATASET = Path(__file__).parents[2] / "fixtures" / "captures" / "slow_dataset"


def test_a_headline_has_at_most_sixteen_words(any_form):
    assert 2 <= len(answer(any_form).headline.split()) <= MAX_WORDS


@pytest.mark.parametrize("shown", [text_report, page])
def test_a_headline_states_that_necessary_work_takes_longer(shown):
    """Of 179 ms operators take 68.5 %, which no change avoids, and the DataLoader 28.4 %."""
    d = analyze_paths([SLOW_DATASET])
    assert "Largest avoidable cost: the step waits for the DataLoader (28.4 %)" in " ".join(shown(d).split())
    with language("zh"):
        assert "最大的可避免代价：每步在等待主进程内加载数据的 DataLoader" in "".join(shown(d).split("\n"))
    d = analyze_paths([SLOW_DATASET.parents[1] / "traces" / "slow_dataset-planted"])  # 88.6 %
    assert "Largest avoidable" not in shown(d)


@pytest.mark.parametrize(
    ("title", "headline"),
    [
        (
            "AdamW updates parameters one by one",
            "Largest avoidable cost: AdamW updates parameters one by one (30.0 % of the step)",
        ),
        ("The " + "very " * 12 + "long wait", "Largest avoidable cost: the " + "very " * 9 + "very… (30.0 %)"),
        (
            "The step waits, which is long, and longer than it seems to be at first",
            "Largest avoidable cost: the step waits, which is long (30.0 %)",
        ),
    ],
)
def test_the_words_of_the_largest_avoidable_cost_stay(forms, title, headline):
    d = forms["gaps"]
    one = replace(d.findings[0], title=title, lost_ns=0.3 * d.step_ns)
    d = replace(d, findings=(one,), headline=f"The GPU is idle; {LARGEST_AVOIDABLE}: {title}.")
    assert answer(d).headline == headline


@pytest.mark.parametrize(
    ("title", "headline"),
    [
        ("The host waits", "The host waits (30.0 % of the step)"),
        ("The step waits for the DataLoader, which loads in the main process",
         "The step waits for the DataLoader, which loads in the main process (30.0 %)"),
        ("One two three four five six seven eight nine ten, eleven twelve thirteen fourteen fifteen sixteen",
         "One two three four five six seven eight nine ten (30.0 %)"),
        (" ".join(["word"] * 20), "Word " + " ".join(["word"] * 13) + "… (30.0 %)"),
    ],
)  # fmt: skip
def test_a_long_title_loses_clauses_then_words(forms, title, headline):
    d = forms["gaps"]
    assert answer(replace(d, findings=(replace(d.findings[0], title=title),))).headline == headline


def test_the_savings_of_a_report_add_up_to_its_step_then(forms):
    each = predictions(forms["gaps"])
    assert [(p.before_ns / MS, p.after_ns / MS, p.behind) for p in each.values()] == [
        (20, 15, ()), (15, 12, ("data-stall-fix",)),
    ]  # fmt: skip
    a = answer(forms["gaps"])
    assert a.now_ns - sum(action.prediction.saves_ns for action in a.actions) == a.after.after_ns
    assert outcome(a) == "20.0 ms → 12.0 ms, 1.7 × (1.5 to 1.7 ×)"


def test_changes_that_are_not_on_the_first_screen_are_named_behind_the_numbers(forms):
    listed = answer(forms["gaps"]).actions
    found = Prediction(20 * MS, 15 * MS, 14 * MS, 16 * MS, ("data-stall-fix", "host-sync-fix", "other"))
    assert behind(found, listed) == ", after changes 1 and 2 and other"
    assert behind(replace(found, behind=("data-stall-fix", "other"), is_enabled=True), listed) == (
        ", only after change 1 and other"
    )


def test_a_step_that_may_vanish_has_a_factor_without_an_upper_end(forms):
    a = answer(forms["gaps"])
    found = replace(a, now_ns=20 * MS, after=Prediction(20 * MS, 4 * MS, 0, 10 * MS))
    assert outcome(found) == "20.0 ms → 4.00 ms, 5.0 × (2.0 × or more)"


def test_an_action_gains_a_hundredth_of_the_step_at_least(forms):
    d = forms["gaps"]
    small = Forecast(("data-stall-fix",), "x", 19.9 * MS, 19.9 * MS, 19.9 * MS)
    a = answer(
        replace(d, waterfall=Waterfall((d.waterfall.forecasts[0], small), "it", {}), prescriptions=d.prescriptions[:1])
    )
    assert a.actions == ()
    assert a.after is None


def test_the_three_that_save_most_are_shown_in_the_order_in_which_they_build_on_each_other(forms):
    d = forms["gaps"]
    ids = ("a", "b", "c", "d")
    fixes = tuple(replace(d.prescriptions[0], id=name, rule=f"rule-{name}") for name in ids)
    steps = (20, 18, 17.5, 13, 9)
    chain = tuple(Forecast(ids[:i], "", step * MS, step * MS, step * MS) for i, step in enumerate(steps))
    a = answer(replace(d, prescriptions=fixes, waterfall=Waterfall(chain, "it", {})))
    assert [action.prescription.id for action in a.actions] == ["a", "c", "d"]
    assert a.num_changes == 4


@pytest.mark.parametrize(
    ("saved_ms", "listed"),
    [(12, ["gc", "a", "b"]), (3, ["a", "gc", "b"]), (1, ["a", "b", "gc"]), (0.1, ["a", "b"])],
)
def test_a_change_for_what_comes_in_some_steps_only_stands_where_its_share_of_the_run_has_it_stand(
    forms, saved_ms, listed
):
    d = forms["gaps"]
    a, b, gc = (replace(d.prescriptions[0], id=name, rule=f"rule-{name}") for name in ("a", "b", "gc"))
    gc = replace(gc, saves_ns=(0.5 * saved_ms * MS, 1.5 * saved_ms * MS), mean_step_ns=25 * MS)
    chain = tuple(
        Forecast(("a", "b")[:i], "", step * MS, step * MS, step * MS) for i, step in enumerate((20.0, 15.0, 13.8))
    )
    shown = answer(replace(d, prescriptions=(a, b, gc), waterfall=Waterfall(chain, "it", {})))
    assert [action.prescription.id for action in shown.actions] == listed
    assert [action.prediction is None for action in shown.actions] == [name == "gc" for name in listed]


def test_without_a_combination_only_the_best_single_change_is_promised(forms):
    d = forms["gaps"]
    a = answer(replace(d, waterfall=None))
    assert [action.prediction.saves_ns / MS for action in a.actions] == [pytest.approx(5.8), pytest.approx(2.2)]
    assert a.after.after_ns == pytest.approx(14.2 * MS)


def test_what_was_measured_takes_the_place_of_what_was_predicted(forms):
    a = answer(forms["trials"])
    assert a.is_measured
    assert outcome(a) == "20.0 ms → 14.1 ms, 1.4 × (1.4 to 1.5 ×)"
    assert [action.prescription.id for action in a.actions] == [
        "data-stall-fix"
    ]  # the other one was measured to be slower
    assert not answer(replace(forms["trials"], trials=forms["trials"].trials[1:3])).is_measured


def test_collectives_that_dominate_make_it_communication_bound(forms):
    d = forms["gaps"]
    p = replace(d.partition, exposed_communication=0.5, idle=0.1, compute=0.37)
    assert answer(replace(d, partition=p)).pill == "Communication-bound"
    assert answer(d).pill == "GPU stalls"


def test_a_healthy_run_states_what_was_checked(forms):
    d = replace(forms["healthy"], checked=("host-sync", "gc-pause"), not_checked={"slow-kernel": "shapes"})
    assert answer(d).checked == ("2 rules checked, none matched 1 % of the step or more; 1 rule lacked data.")
    small = replace(d, findings=forms["gaps"].findings[-1:])
    assert answer(small).headline == "Little to gain: the GPU is busy 98.8 % of each 20.0 ms step"
    assert (
        answer(small).checked == "2 rules checked, the largest finding takes 1.0 %: kernel-latency; 1 rule lacked data."
    )


def test_a_number_that_is_none_promises_nothing(forms):
    d = forms["gaps"]
    unknown = replace(d.prescriptions[0], saves_ns=(math.nan, math.inf))
    assert predictions(replace(d, prescriptions=(unknown,), waterfall=None)) == {}


def test_every_colour_stands_out_on_both_pages(forms):
    colours = [legend.colour for legend in forms["gaps"].legends.values()]
    colours += [style.colour for style in (*PARTS.values(), *PHASES.values())]
    for colour in {*colours, *CATEGORIES.values(), *PATH.values()}:
        assert contrast(legible(colour), "#ffffff") >= 3, colour
        assert contrast(legible(colour), "#1b1f25") >= 3, colour


def test_markdown_holds_the_first_screen(forms):
    text = as_markdown(forms["gaps"], answer(forms["gaps"]))
    assert text.startswith(
        "**GPU stalls: The step waits for its batch, loaded in the main process (30.0 % of the step)**"
    )
    assert "20.0 ms → 12.0 ms" in text
    assert "1. **Load batches in worker processes** at" in text
    assert "       num_workers=4," in text
    assert "diagnose trace train.py" in as_markdown(forms["low_trust"], answer(forms["low_trust"]))


def job_of_four(forms, **fields):
    """Rank 3 is late, for a data-stall of its own; the report shows it."""
    d = forms["ranks"]
    row = d.ranks[3]
    return replace(d, step_ns=row.step_ns, partition=row.partition, job=Job(4, 12, 0.0, (7,), **fields))


def test_the_late_ranks_change_stands_first_and_names_its_rank(forms):
    d = job_of_four(forms, late_ranks=(3,), cause="host-sync")
    d = replace(d, dominant="host-sync", prescriptions=d.prescriptions[::-1])
    first, second = answer(d).actions
    assert (first.prescription.id, first.rank) == ("host-sync-fix", 3)
    assert (second.prescription.id, second.rank) == ("data-stall-fix", None)
    assert "rank 3  train.py:42  saves" in text_report(d)
    assert "1. **Load batches in worker processes** on rank 3 at" in as_markdown(d, answer(d))


def test_a_change_for_a_rank_that_begins_late_stands_before_those_of_the_shown_rank(forms):
    d = job_of_four(forms, begins_late=1, begins_late_ns=4.5 * MS)
    finding = Finding("straggler", "Rank 1 begins its step late", 4.5 * MS)
    fix = replace(
        d.prescriptions[0], rule="straggler", id="even-out-ranks", title="Balance work", saves_ns=(0, 4.5 * MS)
    )
    fix = replace(fix, basis="bound", predicted_step_ns=18 * MS)
    d = replace(d, dominant="straggler", findings=(finding, *d.findings), prescriptions=(*d.prescriptions, fix))
    a = answer(d)
    assert [(action.prescription.id, action.rank) for action in a.actions] == [
        ("even-out-ranks", 1), ("data-stall-fix", None), ("host-sync-fix", None),
    ]  # fmt: skip
    assert "rank 1  saves up to 4.50 ms a step" in text_report(d)
    assert a.cautions[-1] == (
        "Why rank 1 begins late lies before the recorded step: record more of every rank to see whether it recurs."
    )


def test_a_report_of_a_job_states_whose_step_and_changes_it_shows(forms):
    d = job_of_four(forms, late_ranks=(3,))
    assert answer(d).view == "Step and changes are those of rank 3, which the other 3 wait for."
    two = replace(d, ranks=d.ranks[-2:])
    assert answer(two).view == "Step and changes are those of rank 3, which the other one waits for."
    assert answer(job_of_four(forms)).view == "Step and changes are those of rank 3, the slowest of 4."
    assert answer(forms["gaps"]).view == ""


def test_what_a_change_adds_behind_others_is_not_as_open_as_they_are(forms):
    d = forms["gaps"]
    chain = tuple(
        Forecast(("data-stall-fix", "launch-bound-fix")[:i], "", step * MS, low * MS, high * MS)
        for i, (low, step, high) in enumerate([(20, 20, 20), (12, 15, 18), (10.5, 14, 17.5)])
    )
    fixes = tuple(replace(d.prescriptions[0], id=name) for name in chain[-1].ids)
    each = predictions(replace(d, prescriptions=fixes, waterfall=Waterfall(chain, "it", {})))
    assert each["data-stall-fix"].range_ns == (2 * MS, 8 * MS)
    assert each["launch-bound-fix"].range_ns == (0.5 * MS, 1.5 * MS)


@pytest.mark.parametrize(
    ("found_by", "relief_ns", "words"),
    [
        ("none", None, "4.00 ms (20.0 %) of the recording"),
        ("marks", None, "4.00 ms (20.0 %) of each step"),
        ("marks", 2 * MS, "runs under the device's own work; without it the step is 2.00 ms shorter"),
        ("marks", 0.1 * MS, "costs no time by itself"),
    ],
)
def test_a_finding_costs_what_of_what(forms, found_by, relief_ns, words):
    d = forms["gaps"]
    lost_ns = 4 * MS if relief_ns is None else 0.0
    finding = Finding("python-stall", "Python", lost_ns, relief_ns=relief_ns)
    d = replace(d, findings=(finding,), source=replace(d.source, found_steps_by=found_by))
    assert f"python-stall {words}" in " ".join(text_report(d).replace("\u00a0", " ").split())


def test_a_recording_that_holds_too_little_is_not_named_for_the_programs_finding(late):
    late.op("aten::mm", 0, 10)
    d = late.diagnosis()
    assert (d.findings[0].rule, d.prescriptions[0].records_more) == ("python-stall", True)
    assert answer(d).headline == "Record again first: too little of the device's work is in this recording"


@pytest.mark.parametrize(
    ("verdict", "share", "words"),
    [("gaps", 0.2, "up to 20 % of the step"), ("gaps", 0.19, ""), ("kernel-bound", 0.2, "")],
)
def test_what_recording_may_take_of_the_host_stands_beside_an_answer_about_the_host(forms, verdict, share, words):
    cautions = answer(replace(forms["gaps"], verdict=verdict, recording_estimate=share)).cautions
    assert any("Recording takes the host" in caution for caution in cautions) == bool(words)
    assert words in " ".join(cautions)


def test_time_between_operators_without_a_known_cause_is_not_called_unavoidable(forms):
    d = replace(forms["no_gpu"], dominant=None, host_by_cause={"outside-operators": 0.58, "operators": 0.42})
    share = f"58 % of the {duration(d.step_ns)} step lies between operators, cause not recorded"
    assert answer(d).headline == f"Little found: {share}"


@pytest.mark.parametrize(("basis", "words"), [("replay", "as a replay"), ("bound", "it was not replayed")])
def test_what_was_not_replayed_is_not_called_so(forms, basis, words):
    d = forms["gaps"]
    one = replace(d.prescriptions[0], basis=basis)
    d = replace(d, prescriptions=(one,), waterfall=None)
    assert words in " ".join(text_report(d).split())
    assert ("not replayed, with 1 change" in page(d)) == (basis == "bound")

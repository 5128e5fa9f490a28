"""What the first screen states of a step that steps and trials without the profiler do not bear out."""

from dataclasses import replace

import pytest
from diagnose.reports.answer import answer

from diagnose.model.plain_steps import PlainSteps
from diagnose.reports.factors import factor_range, factor_words
from diagnose.reports.language import language
from diagnose.reports.text import render

MS = 1_000_000


@pytest.mark.parametrize(("step", "is_stated"), [(20, False), (27, False), (40, True), (8, True)])
def test_trials_whose_steps_are_no_longer_than_half_or_twice_the_recorded_one_are_stated_beside_it(
    forms, step, is_stated
):
    """They take 20 ms without a change, one of them 20.1 ms."""
    d = replace(forms["trials"], step_ns=step * MS)
    assert {t.steps_ms[0] for t in d.trials if t.steps_ms and t.kind != "without"} == {20.0, 20.1}
    said = [text for text in answer(d).cautions if text.startswith("Trials without a change took 20.")]
    assert len(said) == is_stated
    with language("zh"):
        assert any("未作改动的试运行" in text for text in answer(d).cautions) == is_stated


@pytest.mark.parametrize(("mean", "of_mean", "is_stated"), [(24, True, True), (24, False, False), (21, True, False)])
def test_a_mean_that_a_change_is_stated_of_stands_on_the_first_screen(forms, mean, of_mean, is_stated):
    """The recorded step takes 20 ms; a sixth more is stated where the change states the mean."""
    d = forms["gaps"]
    first = replace(d.prescriptions[0], mean_step_ns=mean * MS if of_mean else None)
    plain = PlainSteps(20.0 * MS, 20.0 * MS, 20.0 * MS, float(mean * MS), 100, agree=True)
    d = replace(d, prescriptions=(first, *d.prescriptions[1:]), plain_steps=plain, profiler_overhead=0.0)
    assert d.step_ns == 20 * MS
    assert any("the run's mean step is" in text for text in answer(d).cautions) == is_stated
    assert (f"run's mean {mean}.0 ms" in render(d)) == is_stated


def test_an_upper_end_of_several_times_the_predicted_factor_is_left_out():
    assert factor_words((1.0, 2.0, 37.3)) == "2.0 × (1.0 × or more)"
    assert factor_words((1.3, 1.9, 4.0)) == "1.9 × (1.3 to 4.0 ×)"
    assert factor_range((1.0, 2.0, 6.0)) == "1.0 to 6.0 ×"
    assert factor_range((1.0, 2.0, 6.1)) == "1.0 × or more"


@pytest.mark.parametrize(
    ("facts", "found_by", "is_stated"),
    [
        ({"phase": "rollout", "regular": True, "period": 4}, "optimizer", True),
        ({"phase": "rollout", "regular": False, "period": 4}, "optimizer", False),
        ({"phase": "checkpoint", "regular": True, "period": 4}, "optimizer", False),
        ({"phase": "rollout", "regular": True, "period": 4}, "marker", False),
    ],
)
def test_what_a_step_is_stands_on_the_first_screen_where_several_follow_each_rollout(forms, facts, found_by, is_stated):
    d = forms["gaps"]
    found = replace(d.findings[0], facts=facts)
    d = replace(d, findings=(found, *d.findings[1:]), source=replace(d.source, found_steps_by=found_by))
    words = "A step is one optimizer.step(); 4 of them follow each rollout."
    assert answer(d).view == (words if is_stated else "")
    assert (words in render(d)) == is_stated

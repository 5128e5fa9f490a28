"""A symptom yields to the finding that names what of its time is wasted, and keeps the rest."""

import pytest

from diagnose.analyzers.common.avoidable import IN_LONG_STEP
from diagnose.analyzers.common.idioms import CallCause
from diagnose.model.diagnosis import Finding, Where
from diagnose.pipeline.symptoms import counted_once

MS = 1_000_000
STEP_NS = 10.0 * MS
CALL = CallCause("self.rng.choice() adds up the same weights each time", "It goes through them.", ("train.py", 39))


def at(*lines):
    return tuple(Where("train.py", line) for line in lines)


def stall(share, phase="inference"):
    return Finding("periodic-stall", "1 step in 10", share * STEP_NS, share=share, where=at(97), facts={"phase": phase})


def waste(share, rule="computed-again", line=74):
    return Finding(rule, "again", share * STEP_NS, share=share, where=at(line), facts={IN_LONG_STEP: True})


def recorded(rule, share, *lines, **facts):
    return Finding(rule, "as recorded", share * STEP_NS, where=at(*lines), facts=facts)


def left(*found):
    return {f.rule: round(f.lost_ns / STEP_NS, 3) for f in counted_once(found, STEP_NS, 0.1)}


@pytest.mark.parametrize(
    ("phase", "whole", "wasted", "rest"),
    [
        ("inference", 0.4, 0.15, None),  # it is wanted, and what is left is not most of the run
        ("inference", 0.8, 0.1, 0.7),
        ("inference", 0.48, 0.03, 0.45),  # what is wasted would be no answer
        ("inference", 0.26, 0.03, None),
        ("checkpoint", 0.3, 0.2, 0.1),
        ("checkpoint", 0.3, 0.3, None),
    ],
)
def test_of_a_long_step_the_rest_is_named(phase, whole, wasted, rest):
    named = {} if rest is None else {"periodic-stall": rest}
    assert left(stall(whole, phase), waste(wasted)) == {**named, "computed-again": wasted}


def test_a_long_step_without_waste_stays_as_it_is():
    assert counted_once([stall(0.4)], STEP_NS, 0.1) == [stall(0.4)]


def test_what_python_takes_at_a_line_is_less_by_what_is_wasted_there():
    (rest, cause) = counted_once([recorded("python-stall", 0.5, 97), waste(0.3, "saved-view", 97)], STEP_NS, 0.1)
    assert rest.lost_ns == pytest.approx(0.2 * STEP_NS)
    assert rest.evidence == ("3.00 ms of it is counted in other findings.",)
    assert cause.lost_ns == 0.3 * STEP_NS


def test_a_rest_at_the_same_line_that_is_no_answer_is_not_named():
    assert left(recorded("python-stall", 0.35, 97), waste(0.3, "saved-view", 97)) == {"saved-view": 0.3}


def test_time_at_another_line_is_another_finding():
    assert left(recorded("python-stall", 0.05, 40), waste(0.3, "saved-view", 97)) == {
        "python-stall": 0.05,
        "saved-view": 0.3,
    }


def test_a_wait_explained_by_the_call_that_the_cause_names_is_the_same_finding():
    wait = recorded("data-stall", 0.17, 39, idiom={"share": 1.0, "share_around": 1.0}, call_cause=CALL)
    assert left(wait, recorded("wasted-sample", 0.4, 39)) == {"wasted-sample": 0.4}
    assert left(wait, recorded("wasted-sample", 0.4, 50)) == {"data-stall": 0.17, "wasted-sample": 0.4}


def test_a_wait_at_the_line_of_the_cause_is_named_if_it_is_an_answer_by_itself():
    cause = recorded("wasted-sample", 0.3, 37, 38)
    assert left(recorded("data-stall", 0.15, 38), cause) == {"data-stall": 0.15, "wasted-sample": 0.3}
    assert left(recorded("data-stall", 0.08, 38), cause) == {"wasted-sample": 0.3}


def test_long_steps_that_were_recorded_count_as_the_run_has_them():
    python = Finding(
        "python-stall", "Python, in 1 step of 10", 0.26 * STEP_NS, share=0.26, where=at(97), facts={IN_LONG_STEP: True}
    )
    assert left(python, stall(0.26, "checkpoint"), waste(0.17, "saved-view", 97)) == {
        "periodic-stall": 0.09,
        "saved-view": 0.17,
    }


def test_the_same_rule_has_one_finding_of_long_steps():
    assert left(waste(0.2), waste(0.24), stall(0.4)) == {"computed-again": 0.24}


def test_the_one_long_step_of_a_window_costs_what_all_long_steps_of_the_run_do(recording, run_steps):
    """Every 20th step saves for 50 ms; the ten recorded ones hold one of them."""
    r, now = recording(devices=()), 0.0
    for number, ms in enumerate([10, 10, 10, 10, 60, 10, 10, 10, 10, 10]):
        r.step(number + 1, now, now + 1000 * ms)
        r.op("aten::mm", now, now + 10_000)
        if ms > 10:
            r.frame("train.py(97): save", now + 10_100, now + 59_900)
        now += 1000 * ms
    took = [60.0 if i % 20 == 19 else 10.0 for i in range(100)]
    r.run = run_steps(took, state=[0] * 14 + [3] + [1] * 10 + [3] + [0] * 74)
    r.with_info(light_ms=(10.0,) * 10, unprofiled_ms=(10.0,) * 10, settled_after=2)
    found = {f.rule: f for f in r.diagnosis().findings}
    finding = found["python-stall"]
    assert finding.title == "Python between operators delays the step, in 1 step of 20"
    assert finding.share == pytest.approx(0.2, rel=0.1)  # of about 12.5 ms; of the ten recorded ones it is a third
    assert finding.evidence[0].startswith("It lies in steps that are long now and then: by all of these, 2.")
    assert "periodic-stall" not in found

"""How far what a finding costs may be off: few steps were recorded, and recording took time. Times in µs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose.model.diagnosis import Finding
from diagnose.pipeline.find import build_tables
from diagnose.pipeline.savings import replay_savings
from diagnose.replay.effects import MAX_ERROR, MAX_GAIN, MAX_GAIN_MOVED, REST_GAINS, cost_error

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
REST = REST_GAINS * 100 / 400  # of steps that load for 400 and compute for 100
EVENT = 2 * 2 / 400  # what recording the step's mark and the loading may have taken of it
MEAN_OF_FOUR = 3.182 / 4**0.5  # of standard deviations: Student's quantile for four values, 95 %


def loads(recording, *loading, devices=()):
    """Return steps that load for so long, each followed by an operator of 100."""
    r, at = recording(devices=devices), 0
    for number, took in enumerate(loading, 1):
        r.step(number, at, at + took + 100)
        r.annotation(NEXT, at, at + took)
        r.op("aten::mm", at + took, at + took + 100)
        at += took + 100
    return r


def error_of(r):
    t, finding = r.tables(), r.find("data-stall")
    return cost_error(t, finding, "loading", t.steps.step_ns)


def test_equal_steps_may_only_gain_beside(recording):
    assert error_of(loads(recording, 400, 400, 400, 400)) == pytest.approx((EVENT, REST))


@pytest.mark.parametrize(("loading", "gone", "moved"), [(400, REST, MAX_GAIN_MOVED), (100, MAX_GAIN, MAX_GAIN_MOVED)])
def test_the_rest_gains_as_much_as_is_gone_and_less_where_it_is_only_moved(recording, loading, gone, moved):
    r = loads(recording, *[loading] * 4)
    t, finding = r.tables(), r.find("data-stall")
    for is_moved, more in ((False, gone), (True, moved)):
        error = cost_error(t, finding, "loading", t.steps.step_ns, is_moved=is_moved)
        assert error == pytest.approx((2 * 2 / loading, more))


def test_a_cost_of_many_recorded_operators_may_be_their_recording_unless_that_was_taken_out(recording):
    r = recording(devices=())
    for step in range(3):
        at = 1000 * step
        r.step(step + 1, at, at + 1000)
        r.annotation(NEXT, at, at + 400)
        for i in range(99):
            r.op("aten::add", at + 4 * i, at + 4 * i + 3)
        r.op("aten::mm", at + 400, at + 1000)
    t, finding = r.tables(), r.find("data-stall")
    assert cost_error(t, finding, "loading", 1e6).less == pytest.approx(101 * 2 / 400)
    known = replace(t.capture, event_cost_ns=1000)
    without = build_tables(known, known.trace)
    assert cost_error(without, finding, "loading", 1e6).less == 0


def test_unequal_steps_are_a_sample(recording):
    # 300, 400, 400 and 500 have a standard deviation of 81.6; of the mean of four it is half.
    error = error_of(loads(recording, 300, 400, 400, 500))
    sampled = MEAN_OF_FOUR * 81.65 / 400
    assert error == pytest.approx((sampled, sampled + REST), rel=1e-3)


def test_of_two_steps_nothing_is_known(recording):
    assert error_of(loads(recording, 300, 500)) == pytest.approx((EVENT, REST))


def test_device_tasks_are_a_sample_too(recording):
    r = recording()
    for number, took in enumerate((300, 400, 400, 500)):
        at = 1000 * number
        r.step(number + 1, at, at + 1000)
        r.op("aten::mm", at, at + 90)
        r.kernel("gemm", at + 10, at + 10 + took, launched=(at + 1, at + 5))
    t = r.tables()
    finding = Finding("slow-kernel", "", 100_000)
    assert cost_error(t, finding, "tasks", t.steps.step_ns) == (0, 0)
    tasks = Finding("slow-kernel", "", 100_000, tasks=np.arange(4))
    assert cost_error(t, tasks, "tasks", t.steps.step_ns) == pytest.approx(2 * (MEAN_OF_FOUR * 81.65 / 400,), rel=1e-3)


def test_what_comes_in_one_step_of_many_costs_at_most_twice_as_much(recording):
    assert error_of(loads(recording, *[0] * 9, 5000)) == pytest.approx((MAX_ERROR, MAX_ERROR + REST_GAINS * 100 / 500))


def timed(recording, run_steps, plain_ms):
    """Return steps of 0.5 ms of which loading takes 0.4, beside plain ones of 0.5 ms of which it takes so much."""
    r = loads(recording, 400, 400, 400, 400)
    r.run = run_steps([0.5] * 20, state=[0] * 16 + [1] * 4, loading=[plain_ms] * 16 + [0.4] * 4, backwards=[1] * 20)
    return r


@pytest.mark.parametrize(("plain_ms", "less", "more"), [(0.45, 0, 0.125), (0.36, 0.1, 0), (0.4, 0, 0)])
def test_loading_is_timed_in_steps_without_the_profiler_too(recording, run_steps, plain_ms, less, more):
    assert error_of(timed(recording, run_steps, plain_ms)) == pytest.approx((max(less, EVENT), more + REST))


def test_a_stated_range_holds_what_plain_steps_lose(recording, run_steps):
    # Recorded steps lose 0.4 of 0.5 ms, plain ones 0.45: that the change takes away as well.
    d = timed(recording, run_steps, 0.45).diagnosis()
    cheaper = next(p for p in d.prescriptions if p.rule == "data-stall")
    assert cheaper.saves_ns[1] >= 450_000
    assert cheaper.saves_ns[1] <= d.step_ns


def test_a_stated_range_holds_what_steps_like_those_recorded_lose(recording):
    # The mean of 300, 400, 400 and 500 is 400 ± 130, and no step is shorter than nothing.
    r = loads(recording, 300, 400, 400, 500)
    finding = r.find("data-stall")
    t = r.tables()
    change = r.prescribe("data-stall")[0]
    (after,) = replay_savings(t, [finding], [change]).prescriptions
    # 100 µs of the step are not loading, and 30 of them stay for certain.
    assert after.saves_ns[1] == pytest.approx(change.saves_ns[1] + 0.7 * 100_000)

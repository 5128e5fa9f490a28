"""What changes save, alone and together, and the path that the step's length follows from. Times in µs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import span
from diagnose.pipeline.find import build_tables
from diagnose.replay import (
    Effect,
    critical_path,
    drop_waits,
    predict,
    replay_base,
    scale_host,
    scale_kernels,
    shares,
    simulate,
)
from diagnose.replay import unchanged as measured
from diagnose.replay.effects import effect_of_tasks, limit_of
from diagnose.replay.predict import least_step_ns, path_shares, predict_bound


@pytest.fixture
def stalled(recording):
    """A step in which Python runs from 110 to 390 with the device idle from 100 to 410, then a kernel to 500."""
    r = recording()
    r.step(1, 0, 500)
    r.op("aten::mm", 0, 30)
    r.kernel("a", 20, 100, launched=(10, 15))
    r.op("aten::mm", 390, 500)
    r.kernel("b", 410, 500, launched=(400, 405))
    return r.tables()


def without(start_us, end_us, factor=0.0):
    return partial(scale_host, intervals=span(start_us * 1000, end_us * 1000), factor=factor)


def after(t, *changes):
    state = measured(t)
    for change in changes:
        state = predict(t, state, Effect(change, change))
    return state.step_ns


def test_no_change_is_the_measured_step(stalled):
    assert after(stalled) == stalled.steps.step_ns == 500_000


def test_host_work_under_the_device_is_uncovered_when_the_rest_goes(stalled):
    # Of 390 µs between the launches 380 run on: b starts when a has ended, 310 µs earlier, though 360 were removed.
    assert after(stalled, without(30, 390)) == pytest.approx(190_000)


def test_no_step_is_shorter_than_the_mean_work_of_the_device(recording):
    """Four steps of 100, each with work of 60 but for the first, which has 90: the replay goes from step to step."""
    r = recording()
    for i in range(4):
        r.step(i + 1, 100 * i, 100 * i + 100)
        r.op("aten::mm", 100 * i, 100 * i + 99)
        r.kernel("a", 100 * i + 5, 100 * i + (95 if i == 0 else 65), launched=(100 * i + 2, 100 * i + 3))
    t = r.tables()
    state = predict(t, measured(t), Effect(scale_all := without(0, 400), scale_all))
    assert state.low_ns >= least_step_ns(t, replay_base(t).graph) == pytest.approx(67_500, rel=0.02)


def test_changes_are_replayed_together_not_added(stalled):
    shorter = partial(scale_kernels, trace=stalled.trace, pattern="^a$", factor=0.5)
    # Alone a shorter a saves nothing, for the launch of b is late.
    assert after(stalled, shorter) == 500_000
    # Together: b is launched at 40, starts at 60 when a has ended, and takes 90.
    assert after(stalled, without(30, 390), shorter) == pytest.approx(150_000)
    assert after(stalled, shorter, without(30, 390)) == pytest.approx(150_000)


def test_the_prediction_is_the_middle_of_its_range(stalled):
    found = predict(stalled, measured(stalled), Effect(without(100, 390, 0.5), without(100, 390)))
    assert (found.low_ns, found.step_ns, found.high_ns) == pytest.approx((210_000, 282_500, 355_000))


@pytest.mark.parametrize(
    ("limit_us", "low_us", "high_us"),
    [
        (290, 134.125, 290),  # as replayed, and a twentieth of the middle apart
        (200, 92.5, 200),  # between both ends
        (100, 46.25, 100),  # below both ends: still a range, since the replay leaves open what is saved
    ],
)
def test_only_the_upper_end_of_a_range_is_held_to_the_limit(stalled, limit_us, low_us, high_us):
    effect = Effect(without(100, 390, 0.5), without(100, 390), limit_us * 1000)
    found = predict(stalled, measured(stalled), effect)
    assert (500_000 - found.high_ns, 500_000 - found.low_ns) == pytest.approx((low_us * 1000, high_us * 1000))


def test_where_both_replays_agree_the_range_is_what_a_replay_misses_by(stalled):
    effect = Effect(without(100, 390), without(100, 390), 300_000)  # 290 µs, less or more by a twentieth
    found = predict(stalled, measured(stalled), effect)
    assert (500_000 - found.high_ns, 500_000 - found.low_ns) == pytest.approx((275_500, 300_000))
    asked = predict(stalled, measured(stalled), Effect(without(100, 390), without(100, 390)))
    assert asked.low_ns == asked.high_ns == pytest.approx(210_000)


def test_a_change_with_a_limit_never_makes_the_step_longer(stalled):
    longer = partial(scale_kernels, trace=stalled.trace, pattern="^b$", factor=2.0)
    assert predict(stalled, measured(stalled), Effect(longer, longer, 100_000)).step_ns == 500_000
    assert predict(stalled, measured(stalled), Effect(longer, longer)).step_ns == pytest.approx(590_000)


def test_bounds_are_not_added_for_certain(stalled):
    first = predict_bound(measured(stalled), (100_000, 200_000), 500_000)
    both = predict_bound(first, (50_000, 400_000), 500_000)
    assert (first.low_ns, first.high_ns) == (300_000, 400_000)
    # Added they would leave nothing; alone the second leaves 100 µs, of which seven tenths may go.
    assert (both.low_ns, both.high_ns) == pytest.approx((30_000, 400_000))


def test_the_path_tiles_the_window_and_names_what_it_consists_of(stalled):
    graph = replay_base(stalled).graph
    path = critical_path(graph, simulate(graph))
    # The host to the launch of b at 400, its delay of 10, and b: a is not on the path.
    assert [stalled.name(int(row)) for row in graph.row[path.node]] == ["cudaLaunchKernel", "cudaLaunchKernel", "b"]
    assert path.duration_ns.sum() + path.delay_ns.sum() == 500_000
    found = shares(stalled, graph, path)
    assert found == pytest.approx({"host": 0.8, "compute": 0.18, "communication": 0, "copy": 0, "latency": 0.02})
    assert path_shares(stalled, measured(stalled)) == pytest.approx(found)


@pytest.mark.parametrize(
    ("loader", "whole"), [("_SingleProcessDataLoaderIter", True), ("_MultiProcessingDataLoaderIter", False)]
)
def test_a_faster_host_saves_no_more_where_it_waits_for_workers(recording, loader, whole):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 20, 100, launched=(10, 15))
    r.annotation(f"enumerate(DataLoader)#{loader}.__next__", 100, 600)
    r.kernel("b", 620, 1000, launched=(610, 615))
    t = r.tables()
    found = Finding("python-stall", "", 100_000)
    assert limit_of(t, found, frees_host=True) == (1_000_000 if whole else 100_000)
    assert limit_of(t, Finding("data-stall", "", 100_000), frees_host=True) == 1_000_000


def test_a_saving_is_a_mean_of_the_same_steps_as_the_cost(recording):
    r = recording()
    for number, (start, loaded, end) in enumerate([(0, 0, 100), (100, 1000, 1100), (1100, 2000, 2100)]):
        r.step(number, start, end)
        r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, loaded)
        r.op("aten::mm", loaded, loaded + 90)
        r.kernel("gemm", loaded + 10, end, launched=(loaded + 1, loaded + 5))
    found = {f.rule: f for f in r.diagnosis().findings}
    assert found["data-stall"].lost_ns == pytest.approx(600_000, rel=0.01)
    assert found["data-stall"].relief_ns == pytest.approx(600_000, rel=0.01)  # not 630: 90 % of the mean step


def test_what_a_replay_may_miss_by_does_not_undercut_the_device(recording):
    # Without 890 of each 1000 µs of the host the device's 100 are left: 5 % of the saving would leave it half of them.
    r = recording()
    for i in range(5):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.op("aten::mm", at + 890, at + 900)
        r.kernel("gemm", at + 900, at + 1000, launched=(at + 892, at + 896))
    t = r.tables()
    gone = partial(scale_host, intervals=span(0, 5_000_000), factor=0.0)
    found = predict(t, measured(t), Effect(gone, gone, t.steps.step_ns))
    assert found.low_ns >= 0.95 * 100_000
    assert found.high_ns >= 1.05 * found.low_ns


def test_a_device_that_hid_what_recording_costs_leaves_more_to_save(recording):
    """Each step: 20 launches of 30 µs, whose 0.92 ms of kernels the host waits for; without these it is the limit."""

    def steps(**info):
        r = recording()
        r.with_info(**info)
        for step in range(4):
            begin = 1000 * step
            r.step(step, begin, begin + 1000)
            for number in range(20):
                at = begin + 30 * number
                r.op("aten::mm", at, at + 28)
                done = begin + 75 + 46 * number
                r.kernel("gemm", done - 46, done, launched=(at + 10, at + 20))
            r.runtime("cudaDeviceSynchronize", begin + 600, begin + 998)
        return r.tables()

    def most(t):
        tasks = np.arange(len(t.tasks.row))
        length = (t.tasks.end - t.tasks.start).astype(float)
        effect = effect_of_tasks(t, Finding("slow-kernel", "", 950_000.0), tasks, (0 * length, length), "")
        return predict(t, measured(t), effect).low_ns

    hidden = {"light_ms": [1.0] * 4, "unprofiled_ms": [1.0] * 4}
    assert most(steps()) == pytest.approx(600_000, rel=0.1)
    assert most(steps(**hidden)) < 0.9 * most(steps())


@pytest.fixture
def waiting(recording):
    """Four steps of 20 launches, whose 600 µs of kernels the host waits for, and of 300 µs of operators behind that."""
    r = recording()
    for step in range(4):
        begin = 950 * step
        r.step(step, begin, begin + 950)
        for number in range(20):
            at = begin + 20 * number
            r.op("aten::mm", at, at + 18)
            r.kernel("gemm", begin + 20 + 30 * number, begin + 50 + 30 * number, launched=(at + 5, at + 10))
        r.runtime("cudaStreamSynchronize", begin + 410, begin + 630)
        for number in range(20):
            r.op("aten::copy", begin + 640 + 15 * number, begin + 650 + 15 * number)
    return r.tables()


def least_saved(t, cost_us=0.0, error_us=0.0):
    """Return what a step saves at least without its waits, where so much was taken out for each recorded event."""
    capture = replace(t.capture, event_cost_ns=1000 * cost_us, event_cost_error_ns=1000 * error_us)
    t = build_tables(capture, capture.trace)
    wait = t.host_rows(Kind.RUNTIME)
    wait = wait[t.trace.events.end[wait] - t.trace.events.start[wait] > 100_000]
    unwaited = partial(drop_waits, calls=wait)
    return t.steps.step_ns - predict(t, measured(t), Effect(unwaited, unwaited, t.steps.step_ns)).high_ns


def test_less_is_saved_for_certain_where_less_of_the_host_may_have_been_recording(waiting):
    # As measured 700 µs of the host and 600 of the device: 250 less. With 2 µs more for each of 100 events 900 of 990.
    assert least_saved(waiting, 5.0) == pytest.approx(230_000, rel=0.1)
    assert least_saved(waiting, 5.0, 2.0) == pytest.approx(70_000, rel=0.35)


def test_a_segment_gets_no_more_back_than_recording_was_taken_from_it(waiting):
    # Of every segment the least was left, for 200 µs an event as for 400: the host is the same for both.
    assert least_saved(waiting, 400.0, 200.0) == least_saved(waiting, 400.0)


def test_host_work_that_a_change_takes_away_gets_nothing_back(waiting):
    """All of it goes, so only the device's 600 µs are left, whatever recording cost the host."""
    cost = replace(waiting.capture, event_cost_ns=55_000, event_cost_error_ns=50_000)
    t = build_tables(cost, cost.trace)
    gone = partial(scale_host, intervals=span(0, 4_000_000), factor=0.0)
    ends = [predict(made, measured(made), Effect(gone, gone, made.steps.step_ns)).high_ns for made in (waiting, t)]
    assert ends[1] == pytest.approx(ends[0], rel=0.02)

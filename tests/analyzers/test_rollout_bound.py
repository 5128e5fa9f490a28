"""rollout-bound: gradients are off for a fifth of the run, in most steps. Times in ms."""

from dataclasses import replace

import pytest

from diagnose.analyzers import rollout_bound
from diagnose.pipeline.find import build_tables
from tests.dataflow.table import Table


@pytest.fixture
def running(recording, run_steps):
    def make(phase, times, backwards=1):
        r = recording()
        r.step(1, 0, 10_000)
        r.op("aten::mm", 0, 10_000)
        r.run = run_steps([10.0] * len(times), backwards=[backwards] * len(times), **{phase: times})
        return r

    return make


def test_a_rollout_of_two_thirds_is_the_answer(running):
    r = running("rollout", [6.6] * 20)
    finding = r.find("rollout-bound")
    assert (finding.share, finding.lost_ns, finding.count) == (pytest.approx(0.66), pytest.approx(6.6e6), 20)
    d = r.diagnosis()
    assert d.dominant == "rollout-bound"
    assert dict(d.phases) == {"rollout": pytest.approx(0.66), "training": pytest.approx(0.34)}


def test_it_costs_a_share_of_the_runs_mean_step_and_not_of_the_recorded_one(recording, run_steps):
    r = recording(devices=())
    r.step(1, 0, 10_000)
    r.op("aten::mm", 0, 10_000)
    took = [10.0] * 10 + [10.0] * 4 + [70.0] * 10  # episodes become longer behind the recording
    r.run = run_steps(
        took, state=[0] * 10 + [1] * 4 + [0] * 10, backwards=[1] * 24, rollout=[0.66 * each for each in took]
    )
    r.with_info(light_ms=(10.0,) * 4, unprofiled_ms=(10.0,) * 10)
    mean_ms = r.diagnosis().plain_steps.mean_ns / 1e6
    finding = r.find("rollout-bound")
    assert mean_ms > 30
    assert (finding.share, finding.lost_ns / 1e6) == (pytest.approx(0.66), pytest.approx(0.66 * mean_ms))


@pytest.mark.parametrize(
    ("phase", "times", "backwards"),
    [
        ("rollout", [1.9] * 20, 1),  # less than a fifth
        ("rollout", [9.0] * 9 + [0.0] * 11, 1),  # in less than half of the steps
        ("rollout", [6.6] * 20, 0),  # nothing is trained
        ("evaluation", [6.6] * 20, 1),
    ],
)
def test_what_is_no_rollout(running, phase, times, backwards):
    assert running(phase, times, backwards).find("rollout-bound") is None


def test_a_moving_average_without_gradients_is_no_rollout(running):
    r = running("inference", [6.6] * 20)
    r.op("aten::linear", 0, 100, sequence=1)
    r.op("aten::copy_", 200, 300)
    r.op("aten::lerp_", 300, 400)
    r.rows = [row for row in r.rows if row.name != "aten::mm"]
    assert r.find("rollout-bound") is None


@pytest.mark.parametrize(("growing", "found"), [(0, True), (1, False)])
def test_calls_that_compute_a_growing_prefix_anew_are_generation(running, growing, found):
    r = running("inference", [6.6] * 20)
    r.rows = [row for row in r.rows if row.name != "aten::mm"]
    for call in range(6):
        r.frame("nn.Module: Net_0", 1000 * call, 1000 * call + 900)
        r.op("aten::linear", 1000 * call + 100, 1000 * call + 800, shapes=f"[[4, {64 + growing * call}, 8], [8, 8]]")
    r.op("aten::linear", 9000, 9900, sequence=1)
    r.op("autograd::engine::evaluate_function: MmBackward0", 9900, 9990)
    assert (r.find("rollout-bound") is not None) is found


@pytest.mark.parametrize(("calls", "found"), [(1, False), (6, True)])
def test_a_model_that_is_called_once_a_step_is_a_teacher(running, calls, found):
    r = running("inference", [6.6] * 20)
    r.rows = [row for row in r.rows if row.name != "aten::mm"]
    for call in range(calls):
        r.frame("nn.Module: Net_0", 1000 * call, 1000 * call + 900)
        r.op("aten::linear", 1000 * call + 100, 1000 * call + 800)
    r.op("aten::linear", 9000, 9900, sequence=1)
    assert (r.find("rollout-bound") is not None) is found


@pytest.mark.parametrize(("calls", "found"), [(1, False), (6, True)])
def test_a_policy_may_be_called_with_gradients_on(running, calls, found):
    r = running("rollout", [6.6] * 20)
    r.rows = [row for row in r.rows if row.name != "aten::mm"]
    for call in range(calls):
        r.frame("nn.Module: Policy_0", 1000 * call, 1000 * call + 900)
        r.op("aten::linear", 1000 * call + 100, 1000 * call + 800, sequence=call)
    r.op("aten::lerp_", 9000, 9900)
    assert (r.find("rollout-bound") is not None) is found


@pytest.mark.parametrize(("content", "found"), [("", True), ("y", False)])
def test_calls_that_compute_the_same_again_are_named_as_that(running, content, found):
    r = running("inference", [6.6] * 20)
    r.rows = [row for row in r.rows if row.name != "aten::mm"]
    table = Table()
    x = table.value(4, 4)
    for call in range(6):
        r.frame("nn.Module: Net_0", 1000 * call, 1000 * call + 900)
        r.op("aten::addmm", 1000 * call + 100, 1000 * call + 800)
        table.op("addmm", x, content=content)
    r.op("aten::linear", 9000, 9900, sequence=1)
    capture = replace(r.capture(attribution=r), dataflow=table.graph().flow)
    assert bool(rollout_bound.find(build_tables(capture, capture.trace))) is found


@pytest.mark.parametrize(("calls", "share"), [(6, 0.59), (1, 0.0)])
def test_of_the_time_without_gradients_what_the_data_flow_shows_of_the_model_counts(running, calls, share):
    r = running("inference", [6.6] * 20)
    r.rows = [row for row in r.rows if row.name != "aten::mm"]
    table = Table()
    weight = table.value(4, 4)
    for call in range(6):
        name = "addmm" if call < calls else "gelu"
        r.op(f"aten::{name}", 1000 * call, 1000 * call + 900)
        table.op(name, table.value(4, 4), line=5)
    for k in range(4):
        r.op("aten::lerp_", 6000 + 700 * k, 6000 + 700 * k + 600)
        table.op("lerp_", into=weight, line=60)
    r.op("aten::mm", 9000, 9900, sequence=1)
    table.op("mm", weight, line=7, module="student", sequence_nr=1)
    capture = replace(r.capture(attribution=r), dataflow=table.graph().flow)
    found = rollout_bound.find(build_tables(capture, capture.trace))
    assert [each.share for each in found] == ([pytest.approx(share, abs=0.01)] if share else [])

"""When the next step comes that takes longer than the others, and that step as a program. Times in ms."""

import json
import time

import numpy as np
import pytest
import torch
from torch import nn

from diagnose.capture import capture_steps
from diagnose.capture.record.long_steps import Due, LongSteps
from diagnose.capture.record.measurements import Measurements, PlanHooks
from diagnose.capture.record.recording import FlowSteps
from diagnose.trace_reader.folders import open_captures

MS = 1_000_000


def due(lengths, states=None, first=2):
    seen = LongSteps()
    for i, ms in enumerate(lengths):
        seen.add(round(ms * MS), (states or {}).get(i, "plain"))
    return seen.due(first)


def every_tenth(num, long=40.0, usual=10.0):
    return [long if i % 10 == 9 else usual for i in range(num)]


@pytest.mark.parametrize(("num", "left"), [(33, 6), (38, 1), (39, 0), (40, 9)])
def test_the_next_long_step_is_known_by_its_period(num, left):
    assert due(every_tenth(num)) == Due(left, 10, 30.0 * MS)


def test_three_have_to_come():
    assert due(every_tenth(29)) is None


def test_steps_of_a_busy_machine_hide_no_period():
    noise = np.random.default_rng(1).lognormal(0, 0.3, 60)
    assert due([ms * each for ms, each in zip(every_tenth(60), noise, strict=True)])[:2] == (9, 10)


def test_equal_steps_have_none():
    assert due([10.0] * 60) is None
    noise = np.random.default_rng(2).lognormal(0, 0.2, 60)
    assert due(10 * noise) is None


def test_what_takes_little_of_the_time_is_not_waited_for():
    assert due(every_tenth(60, long=14.0)) is None


def test_steps_in_which_a_recording_begins_count_for_nothing():
    lengths = every_tenth(45)
    lengths[24], lengths[29] = 300.0, 10.0
    assert due(lengths, {24: "edge", 29: "edge"})[:2] == (4, 10)


def test_recorded_steps_are_compared_with_recorded_ones():
    lengths = [ms * (3 if 10 <= i < 22 else 1) for i, ms in enumerate(every_tenth(45))]
    assert due(lengths, dict.fromkeys(range(10, 22), "light"))[:2] == (4, 10)


@pytest.fixture
def recorded(tmp_path):
    """Return what comes of two steps of which the second is expected to be longer by 30 ms."""
    nothing = lambda *_: 0
    hooks = PlanHooks(
        folder=tmp_path, prefix="rank0", num_ranks=1, report=nothing, other_active=lambda: False,
        undecided=lambda: False, compiled=nothing, look=nothing, converged=nothing, sampling=nothing,
        wrote=nothing, stepped=nothing,
    )  # fmt: skip

    def record(*lengths):
        measured = Measurements()
        steps = FlowSteps(hooks, measured).record_long(Due(1, 10, 30.0 * MS))
        next(steps)
        for ms in lengths:
            torch.ones(3).sum().item()
            try:
                steps.send(ms * MS)
            except StopIteration:
                return measured
        steps.close()
        return measured

    return record


def test_a_long_step_is_written_with_the_one_before(recorded, tmp_path):
    measured = recorded(100, 140)
    assert (measured.long_step_file, measured.long_step_every) == ("rank0.long.dataflow.json.gz", 10)
    assert (tmp_path / measured.long_step_file).exists()
    assert measured.dataflow_file == ""
    assert json.dumps(measured.notes) == "[]"


def test_a_step_that_is_not_long_is_given_up_with_a_sentence(recorded):
    measured = recorded(100, 105)
    assert measured.long_step_file == ""
    assert measured.notes == ["1 step in 10 was much longer than the others; the one that was recorded for it was not."]


def test_a_script_that_ends_in_the_window_leaves_none(recorded):
    assert recorded(100).long_step_file == ""


def make_step():
    """Return a step of which every eighth evaluates the same twice, its weights, and how often it was called."""
    torch.manual_seed(3)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held, called = torch.randn(4000, 64), [0]

    def step():
        called[0] += 1
        if called[0] % 8 == 0:
            with torch.no_grad():
                for _ in range(2):
                    for _ in range(20):
                        model(held).square().mean().item()
        optimizer.zero_grad()
        model(torch.randn(8, 64)).mean().backward()
        optimizer.step()
        time.sleep(0.004)

    return step, model.weight, called


def test_a_run_records_one_and_goes_on_as_without_it(tmp_path):
    step, weight, called = make_step()
    (capture,) = open_captures([capture_steps(step, output=tmp_path / "capture")])
    assert capture.info.long_step_every == 8
    usual, long = ([one for one in capture.long_step.operators if one.step == number] for number in (0, 1))
    assert len(long) > 2 * len(usual)
    drawn = torch.rand(1)
    other, expected, _ = make_step()
    for _ in range(called[0]):
        other()
    assert torch.equal(weight, expected)
    assert torch.equal(torch.rand(1), drawn)

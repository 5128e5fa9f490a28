"""The steps that are replayed, and the time from one to the next. Times in µs."""

import pytest

from diagnose.replay.build import build, step_subset
from diagnose.replay.simulate import owners, period_ns, simulate


def test_a_few_steps_stand_for_all(recording):
    r = recording()
    for i in range(20):
        r.step(i + 1, 100 * i, 100 * i + 100)
        r.op("aten::mm", 100 * i, 100 * i + 20)
        r.kernel("a", 100 * i + 20, 100 * i + 60, launched=(100 * i + 10, 100 * i + 12))
    t = r.tables()
    part = step_subset(t, max_tasks=4)
    assert part.steps.num == 4
    assert len(part.tasks.row) == 4
    assert part.steps.step_ns == pytest.approx(t.steps.step_ns, rel=0.02)
    assert step_subset(t).steps.num == 10
    assert step_subset(t, max_tasks=0).steps.num == 1


def test_few_steps_are_taken_whole(late):
    t = late.tables()
    assert step_subset(t) is t


def test_a_step_is_the_time_from_end_to_end(recording):
    """The device is 50 behind at the end: that is no part of a step, though it is of the window."""
    r = recording()
    for i in range(10):
        r.step(i + 1, 100 * i, 100 * i + 100)
        r.kernel("a", 100 * i + 60, 100 * i + 150, launched=(100 * i + 10, 100 * i + 12))
    t = r.tables()
    graph = build(t)
    assert t.steps.step_ns == 105_000
    assert period_ns(graph, simulate(graph), owners(t, graph)) == pytest.approx(100_000)


def test_work_queued_before_the_chosen_steps_is_left_out(recording):
    """A device a whole step behind the host: the window is the time in which it works on what they launched."""
    r = recording()
    for i in range(10):
        r.step(i + 1, 100 * i, 100 * i + 100)
        r.kernel("a", 100 * i + 130, 100 * i + 230, launched=(100 * i + 10, 100 * i + 12))
    t = r.tables()
    part = step_subset(t, max_tasks=2)
    assert part.steps.num == 2
    assert part.steps.step_ns == pytest.approx(100_000)

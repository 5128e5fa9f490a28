"""rollout-bound: gradients are off for a fifth of the run, in most steps. Times in ms."""

import pytest


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

"""unexplained-device and unexplained-host: what no rule accounts for is said, and nothing is prescribed for it."""

import pytest


def test_queued_work_that_does_not_start(queued):
    r = queued(300, 400)
    assert r.booked() == {"unexplained-device": 100_000}
    finding = r.find("unexplained-device")
    assert (finding.lost_ns, finding.count, finding.confidence) == (100_000, 1, "low")
    assert r.prescribe("unexplained-device") == []


def test_a_task_without_a_launch_in_the_file(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.kernel("relu", 400, 1000)
    assert r.booked() == {"unexplained-host": 100_000}
    assert r.find("unexplained-host").title == "The device is idle, and the file holds no launch that shows why"


@pytest.mark.parametrize(("gap", "rule"), [(9, "kernel-latency"), (10, "launch-bound")])
def test_where_most_tasks_have_no_launch_longer_gaps_are_the_hosts(recording, gap, rule):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.kernel("gemm", 0, 200, launched=(-20, -15))
    r.kernel("gemm", 200, 300)
    r.kernel("relu", 300 + gap, 1000)
    assert r.booked() == {rule: gap * 1000}


def test_without_any_launch_nothing_is_the_hosts(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.kernel("gemm", 0, 300)
    r.kernel("relu", 500, 1000)
    assert r.booked() == {"unexplained-host": 200_000}


@pytest.mark.parametrize("pause", [9, 10])
def test_ten_us_and_more_are_not_latency(queued, pause):
    assert ("unexplained-device" in queued(300, 300 + pause).booked()) == (pause == 10)


def silent(recording):
    """Return a recording without marks, frames or samples whose host does nothing for 380 µs."""
    r = recording()
    r.kernel("gemm", 0, 300, launched=(-300, -295))
    r.kernel("relu", 700, 1000, launched=(690, 695))
    r.op("aten::relu", 690, 1000)
    return r


def test_a_host_that_recorded_nothing(recording):
    r = silent(recording)
    assert r.booked() == {"unexplained-host": 390_000, "launch-bound": 10_000}
    finding = r.find("unexplained-host")
    assert (finding.lost_ns, finding.count, finding.confidence) == (390_000, 1, "low")
    assert finding.examples[0].host == "between operators"
    assert r.prescribe("unexplained-host") == []


@pytest.mark.parametrize("shown_by", ["step", "frame"])
def test_a_mark_or_a_frame_shows_that_it_was_python(recording, shown_by):
    r = silent(recording)
    if shown_by == "step":
        r.step(1, 0, 1000)
    else:
        r.frame("train.py(3): main", 0, 1000)
    assert "unexplained-host" not in r.booked()
    assert r.booked()["python-stall"] == 390_000

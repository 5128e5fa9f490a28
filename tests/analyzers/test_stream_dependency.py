"""stream-dependency: queued work behind a task of another stream."""


def test_a_task_that_starts_after_one_on_another_stream(queued):
    r = queued(300, 350, stream_before=20)
    assert r.booked() == {"stream-dependency": 50_000}
    finding = r.find("stream-dependency")
    assert (finding.lost_ns, finding.count, finding.confidence) == (50_000, 1, "medium")
    assert (finding.examples[0].before, finding.examples[0].after) == ("gemm", "relu")


def test_what_was_waited_for_has_ended_where_the_gap_begins(queued):
    assert queued(300, 351, stream_before=20).booked() == {"unexplained-device": 51_000}


def test_the_same_stream_is_none(queued):
    assert queued(300, 400).booked() == {"unexplained-device": 100_000}


def test_a_late_launch_waited_for_the_host(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.kernel("gemm", 0, 300, stream=20, launched=(-20, -15))
    r.kernel("relu", 400, 1000, stream=7, launched=(390, 395))
    assert r.booked() == {"launch-bound": 100_000}


def test_an_unknown_launch_does_not_show_that_it_was_queued(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, stream=20, launched=(-20, -15))
    r.kernel("relu", 400, 1000, stream=7)
    assert r.booked() == {"unexplained-host": 100_000}


def test_a_collective_before_it_is_communication(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("ncclDevKernel_AllReduce", 0, 300, stream=20, launched=(-20, -15))
    r.kernel("relu", 350, 1000, stream=7, launched=(-10, -5))
    assert r.booked() == {"exposed-communication": 50_000}


def test_it_comes_before_latency(queued):
    assert queued(300, 305, stream_before=20).booked() == {"stream-dependency": 5_000}


def test_the_wait_is_moved_to_the_use(queued):
    (p,) = queued(300, 340, stream_before=20).prescribe("stream-dependency")
    assert p.id == "wait-later"
    assert p.title == "Wait for the other stream just before its result is used"
    assert p.before.index("wait_stream") < p.before.index("block(x)")
    assert p.after.index("block(x)") < p.after.index("wait_stream")
    assert p.saves_ns == (0.0, 40_000)


def test_the_task_that_ended_last_is_the_one_waited_for(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("early", 0, 200, stream=7, launched=(-40, -35))
    r.kernel("last", 0, 300, stream=20, launched=(-30, -25))
    r.kernel("relu", 340, 1000, stream=7, launched=(-10, -5))
    assert r.find("stream-dependency").examples[0].before == "last"
    assert r.booked() == {"stream-dependency": 40_000}


def test_of_two_that_end_together_the_own_stream_needs_no_wait(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("own", 0, 300, stream=7, launched=(-40, -35))
    r.kernel("side", 0, 300, stream=20, launched=(-30, -25))
    r.kernel("relu", 305, 1000, stream=7, launched=(-10, -5))
    assert r.booked() == {"kernel-latency": 5_000}

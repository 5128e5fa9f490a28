"""Queue depth: launched on the host and not yet finished on the device."""

import pytest

from diagnose.tables.queue import depth_over_time


def two_kernels(recording):
    """Return a step of 1000 µs: 50 µs with one task launched, 250 with two, 200 with one, 500 with none."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 100, 300, launched=(0, 10))
    r.kernel("b", 300, 500, launched=(50, 60))
    return r


def depths(r):
    t = r.tables()
    time, depth = depth_over_time(t.trace, t.tasks, t.steps.window, t.launch_latency)
    return list(zip((time // 1000).tolist(), depth.tolist(), strict=True))


def test_depth_rises_with_a_launch_and_falls_with_an_end(recording):
    assert depths(two_kernels(recording)) == [(0, 1), (50, 2), (300, 1), (500, 0)]


def test_figures_are_weighted_by_time(recording):
    q = two_kernels(recording).tables().queue
    assert (q.depth_p50, q.depth_p90) == (0, 2)  # 500 µs at 0, 250 at 1, 250 at 2
    assert (q.busy_share, q.idle_share, q.empty_share) == (0.4, 0.6, 0.5)
    assert q.launches_per_step == 2
    assert q.delay_p50_ns == 165_000  # 90 and 240
    assert q.late_share == 0.5  # the first: nothing ran before its launch
    assert q.busy_depth_p50 == 1  # 200 µs at 1, 200 at 2
    assert q.launch_latency_ns is None  # one launch is too few


def test_the_upper_percentile_is_the_ninetieth(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 100, 350, launched=(0, 10))
    r.kernel("b", 350, 500, launched=(200, 210))
    assert r.tables().queue.depth_p90 == 2  # 500 µs at 0, 350 at 1, 150 at 2


def test_what_was_queued_before_the_window_is_there_at_its_start(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(3):
        r.kernel("a", 100 * i, 100 * i + 100, launched=(-50 + i, -49 + i))
    assert depths(r) == [(0, 3), (100, 2), (200, 1), (300, 0)]


def test_a_task_that_starts_before_its_launch_counts_from_its_start(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 100, 300, launched=(150, 160))
    assert depths(r) == [(0, 0), (100, 1), (300, 0)]
    assert r.tables().queue.delay_p50_ns == 0


def test_a_task_without_launch_counts_while_it_runs(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 100, 300)
    assert depths(r) == [(0, 0), (100, 1), (300, 0)]
    q = r.tables().queue
    assert (q.launches_per_step, q.delay_p50_ns) == (0, 0)


def test_one_launch_of_many_kernels_counts_once(recording):
    r = recording()
    r.step(1, 0, 1000)
    nodes = [r.kernel("node", 100 * i, 100 * i + 100) for i in range(1, 4)]
    r.runtime("cudaGraphLaunch", 10, 20, launches=nodes)
    assert r.tables().queue.launches_per_step == 1
    assert depths(r) == [(0, 0), (10, 1), (400, 0)]
    assert r.tables().queue.busy_depth_p50 == 1


@pytest.mark.parametrize(("launched", "late"), [(99, 0.5), (100, 1.0)])
def test_late_tasks_are_launched_when_all_before_have_finished(recording, launched, late):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 50, 100, launched=(10, 20))
    r.kernel("b", 300, 400, launched=(launched, launched + 5), stream=20)
    assert r.tables().queue.late_share == late


def test_depth_is_over_the_time_in_which_the_device_works(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(10):  # 10 unfinished at first, then one less every 10 µs
        r.kernel("a", 100 + 10 * i, 110 + 10 * i, launched=(i, i + 1))
    q = r.tables().queue
    assert (q.depth_p50, q.busy_depth_p50) == (0, 5)


def on_empty_device(recording, latency, num=6):
    """Return a step in which the device waits for each launch, and each task starts so many µs after its launch."""
    r = recording()
    r.step(1, 0, 200 * num)
    for i in range(num):
        r.kernel("a", 200 * i + 10 + latency, 200 * i + 150, launched=(200 * i, 200 * i + 10))
    return r


def test_launch_latency_is_the_median_onto_an_empty_device(recording):
    q = on_empty_device(recording, 20).tables().queue
    assert (q.launch_latency_ns, q.late_share) == (20_000, 1.0)
    assert on_empty_device(recording, 20, num=4).tables().queue.launch_latency_ns is None


@pytest.mark.parametrize(("latency", "bound"), [(3, 10_000), (20, 30_000), (100, 150_000)])
def test_a_pause_belongs_to_the_launch_up_to_one_and_a_half_of_the_latency(recording, latency, bound):
    r = on_empty_device(recording, latency)
    assert r.tables().gaps.latency_ns == bound
    assert {"kernel-latency", "unexplained-device"}.isdisjoint(r.booked())


def pipelined(recording, *, drift=0):
    """Return a step in which a task starts 100 µs after its launch, each by ``drift`` µs later than the one before."""
    r = recording()
    r.step(1, 100, 100 + 40 * (25 + drift))
    r.op("aten::mm", 0, 100 + 40 * (25 + drift))
    for i in range(40):
        start = (25 + drift) * i + 100
        r.kernel("a", start, start + 10, launched=(25 * i - 5, 25 * i))
    return r


def test_launches_in_flight_are_no_queue_and_their_latency_is_the_hosts(recording):
    r = pipelined(recording)
    q = r.tables().queue
    assert (q.launch_latency_ns, q.busy_depth_p50) == (100_000, 1)
    assert {"kernel-latency", "unexplained-device"}.isdisjoint(r.booked())


def test_tasks_that_begin_at_any_time_after_their_launches_show_no_latency(recording):
    assert pipelined(recording, drift=20).tables().queue.launch_latency_ns is None


def test_where_most_tasks_have_no_launch_a_pause_before_them_stands_for_lateness(recording):
    r = recording()
    r.step(1, 0, 1000)
    for start in (0, 110, 219, 330):  # pauses of 10, 9 and 11 µs
        r.kernel("a", start, start + 100)
    assert r.tables().queue.late_share == 0.5


def test_a_step_in_which_the_device_did_nothing(recording):
    r = recording()
    r.kernel("a", -500, -400, launched=(-520, -510))
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    q = r.tables().queue
    assert (q.busy_share, q.idle_share, q.empty_share, q.late_share) == (0, 1, 1, 0)
    assert r.diagnosis().partition.idle == 1

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
    time, depth = depth_over_time(t.trace, t.tasks, t.steps.window)
    return list(zip((time // 1000).tolist(), depth.tolist(), strict=True))


def test_depth_rises_with_a_launch_and_falls_with_an_end(recording):
    assert depths(two_kernels(recording)) == [(0, 1), (50, 2), (300, 1), (500, 0)]


def test_figures_are_weighted_by_time(recording):
    q = two_kernels(recording).tables().queue
    assert (q.depth_p50, q.depth_p90) == (0, 2)  # 500 µs at 0, 250 at 1, 250 at 2
    assert (q.busy_share, q.idle_share, q.empty_share) == (0.4, 0.6, 0.5)
    assert q.launches_per_step == 2
    assert q.delay_p50_ns == 165_000  # 90 and 240
    assert q.late_share == 0


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
    assert depths(r)[1] == (10, 3)


@pytest.mark.parametrize(("delay", "late"), [(9.999, 1.0), (10, 0.0)])
def test_late_tasks_start_less_than_10_us_after_their_launch(recording, delay, late):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 100 + delay, 300, launched=(90, 100))
    assert r.tables().queue.late_share == late


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

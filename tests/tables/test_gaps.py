"""Idle regions: what stands around them, and where the host's part ends."""

import pytest


def gap(r, i=0):
    """Return one gap in µs: (start, queued_at, end), the names of its neighbours, whether it was launched late."""
    t = r.tables()
    gaps = t.gaps
    start, queued_at, end = (int(column[i]) / 1000 for column in (gaps.start, gaps.queued_at, gaps.end))
    before, after = (t.name(t.tasks.row[row]) if row >= 0 else None for row in (gaps.before[i], gaps.after[i]))
    return (start, queued_at, end), (before, after), bool(gaps.late[i])


def between(recording, start=300, end=700, *, launched=None):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 0, start, launched=(0, 0))
    r.kernel("b", end, 1000, launched=launched)
    return r


@pytest.mark.parametrize(
    ("launched", "queued_at", "late"),
    [
        ((-20, -15), 300, False),  # queued long before: all of it is the device's
        ((290, 300), 300, False),  # the call returned just as the gap began
        ((290, 340), 340, False),  # in flight: the host's until it returned
        ((300, 340), 340, False),  # called just as the gap began
        ((301, 340), 350, True),  # late: 10 µs of latency are the launch's own
        ((400, 685), 695, True),
        ((400, 690), 700, True),
        ((400, 695), 700, True),  # no further than the gap
        ((695, 705), 700, True),  # a task that starts before its launch returned
        ((705, 710), 700, True),  # and one that starts before it was launched
        (None, 300, False),  # nobody knows: half of the tasks have a launch, so this one is an exception
    ],
)
def test_where_the_hosts_part_ends(recording, launched, queued_at, late):
    assert gap(between(recording, launched=launched)) == ((300, queued_at, 700), ("a", "b"), late)


@pytest.mark.parametrize(
    ("launched", "launch_start"),
    [((-20, -15), 300), ((290, 340), 300), ((400, 685), 400), ((705, 710), 700), (None, 300)],
)
def test_launch_start_within_the_gap(recording, launched, launch_start):
    assert between(recording, launched=launched).tables().gaps.launch_start.tolist() == [launch_start * 1000]


def test_the_parts_of_a_gap_meet(recording):
    gaps = between(recording, launched=(290, 340)).tables().gaps
    assert [part.tolist() for part in gaps.host_part()] == [[300_000], [340_000]]
    assert [part.tolist() for part in gaps.device_part()] == [[340_000], [700_000]]
    none = gaps.late
    assert len(gaps.host_part(none).start) == len(gaps.device_part(none).start) == 0


def test_at_the_windows_edges_a_neighbour_is_missing(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("only", 400, 500, launched=(380, 385))
    assert len(r.tables().gaps.start) == 2
    assert gap(r, 0) == ((0, 395, 400), (None, "only"), True)
    assert gap(r, 1) == ((500, 1000, 1000), ("only", None), True)


def test_a_task_that_reaches_into_the_window_leaves_no_gap_before(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("early", -500, 300, launched=(-520, -510))
    assert r.tables().tasks.start.tolist() == [0]
    assert gap(r) == ((300, 1000, 1000), ("early", None), True)


def test_the_task_before_is_the_one_that_ended_last(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("long", 0, 300, stream=7, launched=(-50, -45))
    r.kernel("short", 100, 200, stream=20, launched=(-40, -35))
    r.kernel("next", 700, 1000, launched=(-30, -25))
    assert gap(r)[1] == ("long", "next")


def test_tasks_of_other_devices_are_not_asked(recording):
    r = between(recording, launched=(-20, -15))
    r.kernel("elsewhere", 300, 700, device=1, launched=(-10, -5))
    assert r.tables().device_id == 0
    assert gap(r) == ((300, 300, 700), ("a", "b"), False)


def test_a_task_without_duration_does_not_end_a_gap(recording):
    r = between(recording, launched=(-20, -15))
    r.kernel("nothing", 500, 500, launched=(-10, -5))
    assert len(r.tables().gaps.start) == 1
    assert gap(r) == ((300, 300, 700), ("a", "b"), False)


def test_a_busy_window_has_no_gaps(recording):
    assert len(between(recording, 500, 500, launched=(-20, -15)).tables().gaps.start) == 0


def test_without_a_device_the_whole_window_is_the_hosts(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    assert gap(r) == ((0, 1000, 1000), (None, None), True)


@pytest.mark.parametrize(("unlinked", "late"), [(2, False), (3, True)])
def test_where_most_tasks_have_no_launch_long_gaps_are_taken_for_the_hosts(recording, unlinked, late):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 0, 300, launched=(-50, -45))
    r.kernel("a", 0, 300, launched=(-40, -35))
    for _ in range(unlinked):
        r.kernel("b", 700, 1000)
    assert gap(r) == ((300, 700 if late else 300, 700), ("a", "b"), late)

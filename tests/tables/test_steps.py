"""Which intervals of a trace are its steady steps."""

import pytest


def steps(r):
    return r.tables().steps


def test_marks_give_the_steps(recording):
    r = recording()
    r.step(3, 0, 1000)
    r.step(4, 1000, 2000)
    r.kernel("gemm", 100, 200, launched=(50, 60))
    found = steps(r)
    assert found.start.tolist() == [0, 1_000_000]
    assert found.end.tolist() == [1_000_000, 2_000_000]
    assert found.number.tolist() == [3, 4]
    assert (found.window, found.num, found.step_ns) == ((0, 2_000_000), 2, 1_000_000)
    assert found.marked
    assert found.notes == ()


def test_a_small_hole_belongs_to_the_step_before(recording):
    r = recording()
    r.step(3, 0, 990)
    r.step(4, 1000, 1990)
    assert steps(r).end.tolist() == [1_000_000, 1_990_000]


def test_a_pause_of_the_thread_between_short_steps_parts_nothing(recording):
    r = recording()
    for number, start in ((3, 0), (4, 300), (5, 1600), (6, 21_000)):
        r.step(number, start, start + 290)
    assert steps(r).number.tolist() == [3, 4, 5, 6]


def test_old_files_have_marks_among_the_operators(recording):
    r = recording()
    r.op("ProfilerStep#7", 0, 1000)
    assert steps(r).number.tolist() == [7]


@pytest.mark.parametrize("name", ["ProfilerStep", "ProfilerStep#", "MyProfilerStep#1", "ProfilerStep#1 (copy)"])
def test_other_names_are_no_marks(recording, name):
    r = recording()
    r.annotation(name, 0, 1000)
    assert not steps(r).marked


def test_marks_of_the_thread_that_has_most(recording):
    r = recording()
    for i in range(3):
        r.step(i, 1000 * i, 1000 * i + 1000, thread="train")
    r.step(9, 0, 5000, thread="other")
    assert steps(r).number.tolist() == [0, 1, 2]
    assert r.tables().main == r.thread_names.index("train")


@pytest.mark.parametrize(("launched", "end"), [((900, 910), 2300), ((999, 1005), 2300), ((1000, 1005), 1000)])
def test_the_window_reaches_to_the_last_task_that_a_step_launched(recording, launched, end):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("first", 0, 100, launched=(-20, -15))
    r.kernel("gemm", 2000, 2300, launched=launched)
    assert steps(r).window == (0, end * 1000)


@pytest.mark.parametrize("earlier", [(-520, -510), None], ids=["launched before the step", "before the recording"])
@pytest.mark.parametrize(("launched", "start"), [(290, 300), (300, 0)], ids=["queued behind it", "found it done"])
def test_where_the_device_is_behind_from_the_start_the_window_begins_when_it_is_done(
    recording, earlier, launched, start
):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("before", -500, 300, launched=earlier)
    r.kernel("gemm", 310, 900, launched=(launched, launched + 5))
    r.kernel("gemm", 900, 1500, launched=(950, 955))
    assert steps(r).window == (start * 1000, 1_500_000)


def test_another_stream_that_is_behind_moves_no_window(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", -500, 300, launched=(-520, -510))
    r.copy("Memcpy HtoD (Pinned -> Device)", 400, 700, stream=20, launched=(200, 205))
    assert steps(r).window == (0, 1_000_000)


@pytest.mark.parametrize(("task", "start"), [(110, 0), (111, 111)])
def test_where_the_first_task_waited_long_the_device_was_at_unrecorded_work(recording, task, start):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", task, 900, launched=(5, 10))  # it waited for 100 or for 101 µs
    assert steps(r).window == (start * 1000, 1_000_000)


@pytest.mark.parametrize("launched", [(-40, -30), None], ids=["launched before", "launch not recorded"])
def test_before_the_first_recorded_task_nothing_is_idle_if_it_was_queued(recording, launched):
    """For 300 µs the device did what is not in the file; the 100 µs between the tasks are idle."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("zero", 300, 310, launched=launched)
    r.kernel("gemm", 410, 700, launched=(390, 405))
    r.kernel("gemm", 700, 1000, launched=(420, 425))
    assert steps(r).window == (300_000, 1_000_000)
    assert sum(r.booked().values()) == 100_000


def test_recorded_work_before_it_shows_why_the_first_task_waited(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("before", -500, 300, launched=(-520, -510))
    r.kernel("gemm", 300, 900, launched=(5, 10))
    assert steps(r).window == (300_000, 1_000_000)


@pytest.mark.parametrize(("start", "end"), [(999, 2300), (1000, 1000)])
def test_a_task_without_launch_belongs_to_the_step_it_starts_in(recording, start, end):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", start, 2300)
    assert steps(r).window == (0, end * 1000)


def test_only_the_last_profiling_cycle_counts(recording):
    r = recording()
    for number, at in ((2, 0), (3, 1000), (12, 50_000), (13, 51_000)):
        r.step(number, at, at + 1000)
    assert steps(r).number.tolist() == [12, 13]
    assert steps(r).window == (50_000_000, 52_000_000)


def test_a_hole_of_one_unrecorded_step_parts_cycles_too(recording):
    r = recording()
    for number, at in ((2, 0), (3, 1000), (5, 2900), (6, 3900)):  # step 4 ran unrecorded, and so a little faster
        r.step(number, at, at + 1000)
    assert steps(r).number.tolist() == [5, 6]


def cold(recording, *, first=1500, call="cudaLaunchKernel", took=1001, others=2):
    r = recording()
    r.step(0, 0, first)
    r.runtime(call, 100, 100 + took)
    for i in range(others):
        r.step(i + 1, first + 1000 * i, first + 1000 * (i + 1))
    return r


@pytest.mark.parametrize("call", ["cudaLaunchKernel", "cuModuleLoadData", "hipModuleLoad"])
def test_a_first_step_that_loads_code_is_left_out_and_it_is_said(recording, call):
    found = steps(cold(recording, call=call))
    assert found.number.tolist() == [1, 2]
    assert found.window == (1_500_000, 3_500_000)
    assert [note.rule for note in found.notes] == ["warm-up"]
    assert cold(recording, call=call).diagnosis().trust[0] == found.notes[0]


@pytest.mark.parametrize(
    "change",
    [{"first": 1499}, {"took": 249}, {"others": 1}, {"call": "cudaStreamSynchronize"}],
    ids=["short", "quick", "two steps", "waiting"],
)
def test_a_first_step_that_stays(recording, change):
    found = steps(cold(recording, **change))
    assert found.number[0] == 0
    assert found.notes == ()


def test_a_first_step_that_copies_for_long_is_not_cold(recording):
    """3000 µs: a checkpoint is copied for 2000 of them, in a call that waits for it."""
    r = recording()
    r.step(0, 0, 3000)
    r.copy("Memcpy DtoH (Device -> Pageable)", 900, 2900, launched=(900, 2900))
    for i in range(3):
        r.step(i + 1, 3000 + 1000 * i, 4000 + 1000 * i)
    found = steps(r)
    assert found.number.tolist() == [0, 1, 2, 3]
    assert found.notes == ()


def test_what_nothing_shows_to_be_loading_is_not_called_that(recording):
    r = recording()
    r.step(0, 0, 2000)
    for i in range(3):
        r.step(i + 1, 2000 + 1000 * i, 3000 + 1000 * i)
    found = steps(r)
    assert found.number.tolist() == [1, 2, 3]
    assert [note.text for note in found.notes] == [
        "The first step was left out: it took at least twice as long as each of the others."
    ]


def test_a_first_step_whose_launches_together_take_half_of_the_excess_is_left_out(recording):
    r = recording()
    r.step(0, 0, 1500)
    for i in range(5):  # 250 of 500 µs
        r.runtime("cudaLaunchKernel", 100 + 100 * i, 150 + 100 * i)
    for i in range(3):
        r.step(i + 1, 1500 + 1000 * i, 2500 + 1000 * i)
    assert steps(r).number.tolist() == [1, 2, 3]


def test_without_marks_the_window_runs_from_the_first_launch_to_the_last_task(recording):
    r = recording()
    r.op("aten::mm", 0, 2000)
    r.kernel("gemm", 120, 300, launched=(100, 110))
    r.kernel("relu", 400, 1500, launched=(310, 320))
    found = steps(r)
    assert (found.window, found.num, found.marked, found.thread) == ((100_000, 1_500_000), 1, False, -1)
    assert [note.text for note in found.notes] == [
        "The trace has no step marks: the whole recording is taken as one step."
    ]


@pytest.mark.parametrize(("returned", "start"), [(20, 10), (19, 120)])
def test_what_was_queued_long_before_begins_with_its_task(recording, returned, start):
    r = recording()
    r.kernel("gemm", 120, 300, launched=(10, returned))  # it waited for 100 or for 101 µs
    assert steps(r).window == (start * 1000, 300_000)


def test_without_marks_and_device_it_is_what_the_host_recorded(recording):
    r = recording(devices=())
    r.op("aten::mm", 10, 500)
    r.frame("train.py(1): main", 5, 400)
    assert steps(r).window == (5_000, 500_000)


def test_a_window_is_never_empty(recording):
    r = recording(devices=())
    r.op("aten::mm", 10, 10)
    assert steps(r).window == (10_000, 10_001)


@pytest.mark.parametrize("task", [(0, 0), (-10, -5)], ids=["no duration", "before its launch"])
def test_a_task_that_is_over_as_its_step_begins(recording, task):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", *task, launched=(0, 5))
    assert steps(r).window == (0, 1_000_000)


@pytest.mark.parametrize(("before", "start"), [(9, 5_000_000), (200, 0)])
def test_work_that_was_queued_before_the_recording_is_no_idle_time(recording, before, start):
    """The first task of stream 7 waits for 5 ms although nothing runs; all that ran before is ``before`` µs."""
    r = recording()
    r.kernel("fill", 0, before, stream=20, launched=(-20, -15))
    r.kernel("gemm", 5000, 15_000, stream=7, launched=(20, 25))
    r.kernel("gemm", 15_000, 16_000, stream=7, launched=(30, 35))
    window = steps(r).window
    assert window == ((start, 16_000_000) if start else (-20_000, 16_000_000))


def test_a_side_stream_that_waits_for_another_is_not_cropped(recording):
    r = recording()
    r.kernel("fill", 0, 9, stream=20, launched=(-20, -15))
    r.kernel("gemm", 10, 1000, stream=7, launched=(0, 5))
    r.kernel("side", 1010, 15_000, stream=9, launched=(20, 25))
    assert steps(r).window == (-20_000, 15_000_000)


def test_of_the_first_launch_of_an_unmarked_recording_counts_what_launches_usually_take(recording):
    r = recording()
    r.kernel("gemm", 100, 200, launched=(50, 90))
    for i in range(2):
        r.kernel("gemm", 200 + 100 * i, 300 + 100 * i, launched=(95 + 5 * i, 98 + 5 * i))
    assert r.tables().steps.window[0] == 87_000


def test_a_stream_may_have_any_number(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", -500, 300, stream=2_000_000_000, launched=(-520, -510))
    r.kernel("gemm", 300, 900, stream=2_000_000_000, launched=(5, 10))
    assert steps(r).window == (300_000, 1_000_000)


def behind(recording, num=4, at=980):
    """Return steps of 1000 µs on the host, which each launch 500 µs of work at a time of the step."""
    r = recording()
    for i in range(num):
        r.step(i, 1000 * i, 1000 * i + 1000)
        r.kernel("gemm", 1000 * i + at + 20, 1000 * i + at + 520, launched=(1000 * i + at, 1000 * i + at + 10))
    return r


def test_a_first_step_that_only_leads_in_is_left_out(recording):
    t = behind(recording).tables()
    assert t.steps.number.tolist() == [1, 2, 3]
    assert t.steps.window == (1_500_000, 4_500_000)
    assert (t.steps.step_ns, t.queue.busy_share) == (1_000_000, pytest.approx(0.5))
    assert t.steps.notes[0].text.startswith("The first step was left out: the device had no work yet")


@pytest.mark.parametrize("change", [{"num": 2}, {"at": 400}])
def test_a_first_step_like_the_others_stays(recording, change):
    assert steps(behind(recording, **change)).number[0] == 0


@pytest.mark.parametrize(("lost", "num"), [(0, 4), (9, 4), (10, 3), (20, 2)])
def test_steps_behind_the_end_of_the_devices_records_are_left_out(recording, lost, num):
    r = recording()
    for i in range(4):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        for k in range(10):
            begin = at + 100 * k
            if 10 * i + k < 40 - lost:
                r.kernel("gemm", begin + 10, begin + 95, launched=(begin, begin + 5))
            else:
                r.runtime("cudaLaunchKernel", begin, begin + 5)
    found = steps(r)
    assert found.num == num
    assert found.window == (0, num * 1_000_000)
    assert [note.rule for note in found.notes] == ["lost-records"] * (num < 4)

"""What rows of a long run show, with rows whose numbers can be read off."""

import pytest

from diagnose.monitor.step_rows import Block, Readings, Row, read_rows
from diagnose.monitor.trends import GrowthDetector, SlowdownDetector, observe, trend

MS = 1_000_000


def row(step, p50_ms, *, p99_ms=None, rss=None, phases=None, epochs=0, epoch_ms=0.0):
    p99 = p99_ms or p50_ms
    return Row(
        step, 0.0, 10, p50_ms * MS, p50_ms * MS, p50_ms * MS, p99 * MS, p99 * MS,
        phases or {}, epochs, epoch_ms * MS, Readings(rss_mb=rss),
    )  # fmt: skip


def rows(medians, **more):
    return [row(10 * (i + 1), each, **more) for i, each in enumerate(medians)]


def slowdowns(medians, share=0.2):
    detector = SlowdownDetector(share)
    return [str(found) for each in rows(medians) if (found := detector.add(each)) is not None]


def test_steps_that_become_slower_are_reported_once_at_the_second_slow_row():
    detector = SlowdownDetector(0.2)
    found = [detector.add(each) for each in rows([99, 10, 10, 10, 10, 10, 15, 15, 15, 15, 15, 15, 15])]
    assert [each is not None for each in found] == [False] * 7 + [True] + [False] * 5
    assert (found[7].step, found[7].ratio) == (61, 1.5)
    assert str(found[7]) == "steps take 50.0 % more than before: 10.0 ms until step 60, then 15.0 ms"


def test_one_slow_row_and_noise_within_the_reference_are_no_slowdown():
    assert slowdowns([99, 10, 10, 10, 10, 15, 10, 10, 15, 10]) == []
    assert slowdowns([99, 10, 14, 10, 14, 10, 14, 15, 15]) == []


def test_a_second_slowdown_and_one_after_a_recovery_are_reported_too():
    assert len(slowdowns([9, 10, 10, 10, 10, 15, 15, 15, 15, 15, 20, 20])) == 2
    assert len(slowdowns([9, 10, 10, 10, 10, 5, 5, 5, 5, 5, 8, 8])) == 1


def test_a_creep_that_never_jumps_is_seen_over_the_whole_run():
    assert [each.kind for each in observe(rows([10] + [10 + i / 20 for i in range(20)]), 0.2)] == ["creep"]
    assert observe(rows([10, *([10, 10.1] * 10)]), 0.2) == []


def test_the_growth_and_the_score_of_a_trend_are_those_of_the_books():
    assert trend([1, 2, 3, 4]) == (3, pytest.approx(5 / (4 * 3 * 13 / 18) ** 0.5))
    assert trend([2, 2, 2, 2]) == (0, 0.0)


def test_memory_that_grows_is_named_with_its_rate():
    growing = [row(10 * (i + 1), 10, rss=1000 + 100 * i) for i in range(11)]
    (found,) = observe(growing, 0.2)
    assert found.text == "Memory of this process grows: 1,100 MB to 2,000 MB, 1e+04 MB per 1,000 steps."
    assert observe([row(10 * (i + 1), 10, rss=1000 + i) for i in range(11)], 0.2) == []


def test_growing_memory_is_looked_at_each_time_that_the_rows_have_doubled():
    growing = [row(10 * (i + 1), 10, rss=1000 + 100 * i) for i in range(40)]
    detector = GrowthDetector()
    found = {num: text for num in range(1, 41) if (text := detector.look(growing[:num]))}
    assert list(found) == [9, 17, 33]
    assert found[9] == "Memory of this process grows: 1,100 MB to 1,800 MB, 1e+04 MB per 1,000 steps."
    assert GrowthDetector().look([row(10, 10, rss=1000)] * 9) == ""


def test_a_tail_that_grows_is_named():
    found = observe([*rows([10] * 9, p99_ms=12), *rows([10] * 8, p99_ms=30)], 0.2)
    assert [each.kind for each in found] == ["tail"]


def test_evaluation_and_the_begin_of_epochs_are_shares_of_the_run():
    found = observe(rows([10] * 4, phases={"evaluation": 20 * MS}, epochs=1, epoch_ms=30), 0.2)
    assert [each.text for each in found] == [
        "20.0 % of the run is evaluation.",
        "The start of an epoch costs 30.0 ms each time, 30.0 % of the run.",
    ]


def test_a_row_is_read_back_and_a_line_that_was_cut_off_is_left_out():
    from diagnose.capture.steps.phases import PhaseTimes

    block = Block()
    block.add(10, PhaseTimes(loading=4, backwards=1, work=9), begins_epoch=False)
    block.add(30, PhaseTimes(), begins_epoch=True)
    made = block.row(2, 5.0, Readings(rss_mb=7.0))
    assert (made.p50_ns, made.max_ns, made.phases, made.epochs, made.epoch_ns) == (20, 30, {"loading": 4}, 1, 10)
    text = made.to_json().decode()
    assert read_rows(f"{text}\n{text[:40]}\n[]\n{text}") == [made, made]

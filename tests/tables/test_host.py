"""The host's nesting, and which of its threads matter."""

import numpy as np
import pytest

from diagnose.model.events import Kind
from diagnose.tables.host import host_rows, layers, outermost


def nesting(r, *kinds):
    """Return the names in each layer, outermost first."""
    trace = r.trace
    rows = host_rows(trace, 0, *(kinds or (Kind.OP,)))
    found, counted = layers(trace, rows), layers(trace, rows, deep=True)
    for one, other in zip((*found.rows, *found.start), (*counted.rows, *counted.start), strict=True):
        assert np.array_equal(one, other)
    return [[trace.names[trace.events.name[row]] for row in rows] for rows in found.rows], found, trace


def test_children_lie_a_layer_deeper(recording):
    r = recording()
    r.op("outer", 0, 100)
    r.op("child", 10, 40)
    r.op("grandchild", 20, 30)
    r.op("second child", 40, 100)
    r.op("next", 100, 150)
    assert nesting(r)[0] == [["outer", "next"], ["child", "second child"], ["grandchild"]]


def test_steps_that_overlap_a_moment_lie_side_by_side(recording):
    r = recording()
    for i in range(40):
        r.op(f"step {i}", 100 * i, 100 * i + 100)
        r.op(f"update {i}", 100 * i + 50, 100 * i + 101)  # ends in the next step
    assert [len(names) for names in nesting(r)[0]] == [40, 40]


@pytest.mark.parametrize("seed", range(20))
def test_where_events_cross_the_next_outermost_begins_when_the_one_before_has_ended(recording, seed):
    random, r = np.random.default_rng(seed), recording()
    for start in random.integers(0, 3_000, 60).tolist():
        r.op("any", start, start + int(random.integers(0, 120)))
    rows = host_rows(r.trace, 0, Kind.OP)
    expected, ended = [], 0
    for row in rows.tolist():
        if r.trace.events.start[row] >= ended:
            expected.append(row)
            ended = int(r.trace.events.end[row])
    assert outermost(r.trace, rows).tolist() == expected


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [3, 64])
def test_counted_layers_are_those_peeled_off_one_by_one(recording, seed, most):
    random, r = np.random.default_rng(seed), recording()

    def nest(start, end, depth):
        times = np.sort(random.integers(start, end, 6, endpoint=True)).tolist()  # instants and shared ends among them
        for first, last in zip(times[::2], times[1::2], strict=True):
            r.op(f"depth {depth}", first, last)
            if depth < 7 and random.random() < 0.8:
                nest(first, last, depth + 1)

    nest(0, 10_000, 0)
    rows = host_rows(r.trace, 0, Kind.OP)
    peeled, counted = layers(r.trace, rows, most), layers(r.trace, rows, most, deep=True)
    assert len(peeled.rows) == len(counted.rows) > 2
    for one, other in zip((*peeled.rows, *peeled.start), (*counted.rows, *counted.start), strict=True):
        assert np.array_equal(one, other)


def test_of_two_with_one_start_the_longer_is_the_parent(recording):
    r = recording()
    r.op("short", 0, 10)
    r.op("long", 0, 100)
    assert nesting(r)[0] == [["long"], ["short"]]


def test_of_two_with_the_same_times_one_lies_in_the_other(recording):
    r = recording()
    r.op("first", 0, 100)
    r.op("second", 0, 100)
    assert nesting(r)[0] == [["first"], ["second"]]


def test_an_instant_at_an_end_is_no_child(recording):
    r = recording()
    r.op("outer", 0, 100)
    r.op("instant", 100, 100)
    assert nesting(r)[0] == [["outer", "instant"]]


def test_what_is_open_at_a_time(recording):
    r = recording()
    r.op("outer", 0, 100)
    r.op("child", 10, 40)
    _, found, trace = nesting(r)

    def names(time):
        return [trace.names[trace.events.name[row]] for row in found.at(time * 1000)]

    assert names(9) == ["outer"]
    assert names(10) == names(39) == ["outer", "child"]
    assert names(40) == ["outer"], "an end is not inside"
    assert names(100) == names(-1) == []


def test_open_in_answers_for_many_times(recording):
    r = recording()
    r.op("outer", 0, 100)
    r.op("child", 10, 40)
    _, found, _ = nesting(r)
    times = np.array([5, 10, 40, 100], np.int64) * 1000
    assert (found.open_in(0, times) >= 0).tolist() == [True, True, True, False]
    assert (found.open_in(1, times) >= 0).tolist() == [False, True, False, False]
    assert (found.open_in(9, times) >= 0).tolist() == [False] * 4


def test_the_main_thread_has_the_marks_and_launching_threads_count_beside_it(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(60):
        r.kernel("forward", 10 * i, 10 * i + 5, launched=(10 * i - 5, 10 * i - 4))
    for i in range(60, 99):
        r.kernel("backward", 10 * i, 10 * i + 5, launched=(10 * i - 5, 10 * i - 4), thread="autograd")
    r.op("aten::mm", 0, 1000, thread="monitor")
    r.op("autograd::engine", 0, 5000, thread="autograd")  # busier, but without marks
    t = r.tables()
    assert t.main == 0
    assert [r.thread_names[i] for i in t.threads] == ["main", "autograd"]


def test_a_thread_with_less_than_a_hundredth_of_the_launches_does_not_count(recording):
    r = recording()
    r.step(1, 0, 2000)
    for i in range(150):
        thread = "other" if i == 0 else "main"
        r.kernel("a", 10 * i, 10 * i + 5, launched=(10 * i - 5, 10 * i - 4), thread=thread)
    t = r.tables()
    assert [r.thread_names[i] for i in t.threads] == ["main"]


def test_without_marks_the_busiest_launching_thread_is_the_main_one(recording):
    r = recording()
    r.op("aten::mm", 0, 100, thread="main")
    r.op("aten::mm", 0, 900, thread="autograd")
    r.op("aten::mm", 0, 5000, thread="monitor")
    r.kernel("a", 100, 200, launched=(10, 20), thread="main")
    r.kernel("b", 200, 300, launched=(50, 60), thread="autograd")
    t = r.tables()
    assert r.thread_names[t.main] == "autograd"
    assert {r.thread_names[i] for i in t.threads} == {"main", "autograd"}

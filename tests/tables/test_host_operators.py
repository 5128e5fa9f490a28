"""What takes the host's time: operators by self time."""

import pytest

from diagnose.pipeline.code_times import MAX_HOST_OPERATORS, host_operators


def by_name(r):
    return {op.name: op for op in host_operators(r.tables())}


@pytest.fixture
def r(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.step(2, 1000, 2000)
    return r


def test_self_time_leaves_the_children_out(r):
    r.op("aten::linear", 0, 100)
    r.op("aten::t", 10, 30)
    r.op("aten::transpose", 15, 25)
    r.op("aten::addmm", 30, 90)
    found = by_name(r)
    assert {name: op.self_ns * 2 for name, op in found.items()} == {
        "aten::linear": 20_000,  # 100 less 20 and 60
        "aten::t": 10_000,
        "aten::transpose": 10_000,
        "aten::addmm": 60_000,
    }
    assert found["aten::linear"].total_ns * 2 == 100_000
    assert next(iter(found)) == "aten::addmm"


def test_self_times_add_up_to_the_time_inside_operators(r):
    for i in range(5):
        r.op("outer", 100 * i, 100 * i + 90)
        r.op("inner", 100 * i, 100 * i + 90)
        r.op("leaf", 100 * i + 20, 100 * i + 30)
    assert sum(op.self_ns for op in host_operators(r.tables())) * 2 == 5 * 90_000


def test_calls_are_counted_a_step_with_their_commonest_shapes(r):
    for at, shapes in ((0, "[[8, 4]]"), (100, "[[2, 2]]"), (1100, "[[8, 4]]")):
        r.op("aten::mm", at, at + 50, shapes=shapes)
    op = by_name(r)["aten::mm"]
    assert (op.calls_per_step, op.self_ns, op.shapes) == (1.5, 75_000, "[[8, 4]]")


def test_of_shapes_that_are_equally_common_the_first_stands(r):
    for at, shapes in ((0, "[[2, 2]]"), (100, "[[8, 4]]"), (200, "[[8, 4]]"), (1100, "[[2, 2]]")):
        r.op("aten::mm", at, at + 50, shapes=shapes)
    assert by_name(r)["aten::mm"].shapes == "[[2, 2]]"


def test_only_the_window_and_the_threads_that_matter_count(r):
    r.op("before", -100, -50)
    r.op("after", 2000, 2100)
    r.op("elsewhere", 0, 500, thread="monitor")
    r.op("here", 0, 10)
    assert set(by_name(r)) == {"here"}


def test_annotations_are_no_operators(r):
    r.annotation("forward", 0, 500)
    assert host_operators(r.tables()) == ()


def test_the_most_expensive_are_kept(r):
    for i in range(MAX_HOST_OPERATORS + 3):
        r.op(f"op{i}", 50 * i, 50 * i + i + 1)
    found = host_operators(r.tables())
    assert [op.name for op in found] == [f"op{i}" for i in range(MAX_HOST_OPERATORS + 2, 2, -1)]

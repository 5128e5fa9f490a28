"""Growth from step to step, values that pile up, and graphs of earlier steps."""

import pytest

from diagnose.dataflow.growth import copied_again, growing_work, kept_graph, piled_up
from tests.dataflow.table import Table


def test_a_tensor_that_each_step_makes_longer_is_growing():
    t = Table()
    history = t.value(100, 4, role="state")
    for t.step in range(2):
        history = t.op("cat", history, t.value(10, 4), shape=(110 + 10 * t.step, 4), line=7, ns=30)
        t.op("mean", history, shape=(4,), line=8, ns=70)
    found = growing_work(t.graph())
    assert [(each.work.line.line, each.first_elements, each.last_elements) for each in found] == [
        (8, 440, 480),
        (7, 440, 480),
    ]


def test_a_list_of_results_that_is_stacked_is_growing():
    t = Table()
    losses = [t.value(1, role="state") for _ in range(3)]
    for t.step in range(2):
        losses.append(t.op("mean", t.value(4), shape=(1,), line=6))
        t.op("stack", *losses, shape=(len(losses),), line=7)
    (found,) = growing_work(t.graph())
    assert (found.work.line.line, found.first_elements, found.last_elements) == (7, 4, 5)


def test_a_longer_batch_is_not():
    t = Table()
    table = t.value(100, 4, role="constant")
    for t.step in range(2):
        t.op("add", t.value(10 + t.step, 4), table, line=7)
    assert growing_work(t.graph()) == ()


def test_a_longer_batch_that_was_loaded_a_step_ahead_is_not():
    t = Table()
    batches = [t.op("_to_copy", t.op("lift_fresh", shape=(4, 10), line=3), line=4)]
    for t.step in range(2):
        batches.append(t.op("_to_copy", t.op("lift_fresh", shape=(4, 20), line=3), line=4))
        t.op("exp", batches[t.step], line=7)
    assert growing_work(t.graph()) == ()


def test_a_longer_part_of_the_same_table_is_not():
    t = Table()
    table = t.value(100, 4, role="constant")
    for t.step in range(2):
        part = type(table)(table.value, (10 + t.step, 4), (4, 1), 0, "float32")
        t.op("add", part, t.value(10 + t.step, 4), line=7)
    assert growing_work(t.graph()) == ()


def test_results_of_each_step_that_are_held_pile_up():
    t = Table()
    for t.step in range(2):
        t.roots.add(t.op("mean", t.value(8), shape=(8,), line=6).value)
        t.op("mul", t.value(8), line=7)
    t.roots.add(t.op("exp", t.value(8), line=8).value)
    (found,) = piled_up(t.graph())
    assert (found.line.line, found.num_values, found.num_bytes) == (6, 1, 32)


def test_backward_through_the_step_before_is_a_kept_graph():
    t = Table()
    state = t.value(4, role="state")
    for t.step in range(2):
        forward = len(t.operators)
        state = t.op("tanh", state, line=3, sequence_nr=10 + t.step)
        t.op("tanh_backward", state, phase="backward", forward=forward, ns=25)
    assert kept_graph(t.graph()) == ()
    t.op("tanh_backward", state, phase="backward", forward=0, ns=40)
    t.op("tanh_backward", state, phase="backward", sequence_nr=7, ns=25)
    (found,) = kept_graph(t.graph())
    assert (found.work.share, found.num_operators, found.value_line.line) == (0.65, 3, 3)


def test_calls_that_each_step_adds_are_growing_if_they_compute_the_same_again():
    def found(content: str):
        t = Table()
        for t.step in range(2):
            out = t.op("relu", t.value(4), line=5)
            for call in range(3 + t.step):
                t.op("std", out, shape=(), line=7, content=content or f"{t.step} {call}")
        return [(each.work.line.line, each.first_calls, each.last_calls) for each in growing_work(t.graph())]

    assert found("same") == [(7, 3, 4)]
    assert found("") == []


def test_other_pieces_of_what_is_stored_that_are_longer_by_chance_are_not():
    t = Table()
    stored = [t.value(10 + n, role="constant") for n in range(6)]
    for t.step in range(2):
        t.op("cat", *stored[2 * t.step : 4], shape=(20,), line=7)  # of two, then of others
        t.op("exp", stored[4 + t.step], line=8)
        t.op("stack", *stored[: 2 + t.step] if t.step == 0 else stored[3:6], shape=(2,), line=9)
    assert growing_work(t.graph()) == ()


def joined(*, first: int = 90, piece: int = 2, with_gradients: bool = False, line: int = 5, name: str = "cat"):
    """Return what is copied again where four pieces are put one by one to what the step makes."""
    t = Table()
    for t.step in range(2):
        whole = t.op("exp", t.value(first), line=1)
        for number in range(4):
            size = whole.shape[0] + piece
            whole = t.op(name, whole, t.value(piece), shape=(size,), line=line + number * (line == 9))
            if with_gradients:
                t.op("slice", whole, phase="backward", forward=len(t.operators) - 1)
    return [(each.work.line.line, each.whole, len(each.work.operators)) for each in copied_again(t.graph())]


def test_what_a_line_has_joined_is_copied_for_each_further_piece():
    assert joined() == [(5, (96,), 3)]


@pytest.mark.parametrize("more", [{"with_gradients": True}, {"line": 9}, {"piece": 400}, {"name": "add"}])
def test_parts_of_like_size_and_what_gradients_pass_through_are_not_copied_again(more):
    assert joined(**more) == []

"""Results of which most is not read."""

from dataclasses import replace

import pytest

from diagnose.dataflow.unread import unread_results
from tests.dataflow.table import Table


def found(t: Table) -> dict[int, float]:
    graph = t.graph()
    return {i: unread for i, _, unread in unread_results(graph, graph.of_step(graph.last_step))}


def last(use, num: int = 1):
    """Return a view of the last positions."""
    return replace(use, shape=(use.shape[0], num, *use.shape[2:]), offset=use.shape[1] - num)


@pytest.mark.parametrize(("num", "unread"), [(1, {0: 0.9}), (5, {0: 0.5}), (6, {})])
def test_what_a_slice_leaves_out_is_computed_in_vain(num, unread):
    t = Table()
    t.op("sum", last(t.op("mm", t.value(2, 10, 4)), num))
    assert found(t) == unread


def test_parts_that_are_read_one_by_one_add_up():
    t = Table()
    product = t.op("mm", t.value(3, 4))
    for at in range(3):
        t.op("sum", replace(product, shape=(1, 4), offset=4 * at))
    assert found(t) == {}


def test_what_a_pointwise_operator_makes_in_vain_it_reads_in_vain():
    t = Table()
    t.op("sum", last(t.op("relu", t.op("mm", t.value(2, 10, 4)))))
    assert found(t) == {0: 0.9, 1: 0.9}
    t = Table()
    t.op("sum", last(t.op("_softmax", t.op("mm", t.value(2, 10, 4)))))
    assert found(t) == {}


def test_the_backward_pass_of_a_result_reads_no_more_of_it():
    t = Table()
    rows = t.op("sort", t.value(8, 100))
    t.op("sum", replace(rows, shape=(8, 5)))
    t.op("scatter", rows, phase="backward", forward=0)
    assert found(t) == {0: 0.95}
    t.op("scatter", rows, phase="backward", forward=1)
    assert found(t) == {}


@pytest.mark.parametrize("use", ["root", "in place", "nothing"])
def test_what_lives_on_changes_or_is_not_read_at_all_is_left_out(use):
    t = Table()
    product = t.op("mm", t.value(2, 10, 4))
    if use != "nothing":
        t.op("sum", last(product))
    if use == "root":
        t.roots.add(product.value)
    if use == "in place":
        t.op("add_", into=product)
    assert found(t) == {}

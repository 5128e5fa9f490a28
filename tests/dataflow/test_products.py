"""Which side of a product combines rows in fewer columns."""

import pytest

from diagnose.dataflow.products import product_order
from tests.dataflow.table import Table


def passed_on(t, rows, *, width, ns):
    """Gather, scale and add up rows of 40 edges among 10 nodes."""
    source, target = (t.value(40, role="constant", dtype="int64") for _ in range(2))
    messages = t.op("index.Tensor", rows, source, shape=(40, width), line=2, ns=ns)
    messages = t.op("mul.Tensor", messages, t.value(40, 1), shape=(40, width), line=2, ns=ns)
    zeros = t.op("zeros_like", shape=(10, width), line=3)
    more = {"attributes": "dim=0", "facts": {"storage": 900 + len(t.values), "version": 0}}
    return t.op("index_add", zeros, target, messages, shape=(10, width), line=3, ns=ns, **more)


def first(t, *, columns=96, fewer=32, between=""):
    summed = passed_on(t, t.value(10, columns), width=columns, ns=100)
    if between:
        summed = t.op(between, summed, line=4)
    weights = t.value(columns, fewer, role="parameter")
    return t.op("mm", summed, weights, shape=(10, fewer), line=5, ns=30)


def test_rows_that_a_product_makes_narrower_are_combined_after_it():
    t = Table()
    first(t)
    (found,) = product_order(t.graph())
    assert (found.columns, found.fewer, found.is_first) == (96, 32, True)
    assert found.avoidable == pytest.approx(2 / 3)
    assert [stack[0].line for stack in found.row_stacks] == [2, 2, 3]
    assert found.product_stack[0].line == 5


def test_rows_that_a_product_makes_wider_are_combined_before_it():
    t = Table()
    wide = t.op("mm", t.value(10, 16), t.value(16, 64, role="parameter"), shape=(10, 64), line=5, ns=30)
    passed_on(t, wide, width=64, ns=100)
    (found,) = product_order(t.graph())
    assert (found.columns, found.fewer, found.is_first) == (64, 16, False)


def test_a_chain_of_two_products_goes_by_its_shapes():
    t = Table()
    scores = t.op("mm", t.value(512, 16), t.value(16, 512), shape=(512, 512), line=2, ns=100)
    t.op("mm", scores, t.value(512, 16), shape=(512, 16), line=3, ns=100)
    (found,) = product_order(t.graph())
    assert found.is_first
    assert found.avoidable > 0.9


@pytest.mark.parametrize("options", [{"columns": 32, "fewer": 96}, {"fewer": 96}, {"between": "relu"}])
def test_the_cheaper_order_and_what_is_not_linear_are_silent(options):
    t = Table()
    first(t, **options)
    assert product_order(t.graph()) == ()


def test_rows_that_something_else_reads_too_stay():
    t = Table()
    summed = passed_on(t, t.value(10, 96), width=96, ns=100)
    t.op("mm", summed, t.value(96, 32, role="parameter"), shape=(10, 32), line=5, ns=30)
    t.op("mean", summed, shape=(), line=6)
    assert product_order(t.graph()) == ()


def test_a_bias_is_not_combined():
    t = Table()
    bias, weights = t.value(64, role="parameter"), t.value(16, 64, role="parameter")
    wide = t.op("addmm", bias, t.value(10, 16), weights, shape=(10, 64), line=5, ns=30)
    passed_on(t, wide, width=64, ns=100)
    assert product_order(t.graph()) == ()


def test_a_layer_that_becomes_longer_is_counted_against_one_that_becomes_shorter():
    t = Table()
    first(t)
    first(t, columns=48, fewer=64)
    (found,) = product_order(t.graph())
    assert not found.is_always


def test_what_is_multiplied_from_the_left_may_be_transposed():
    t = Table()
    queries, keys, values = t.value(2, 512, 16), t.value(2, 512, 16), t.value(2, 512, 16)
    turned = keys._replace(shape=(2, 16, 512), stride=(8192, 1, 16))
    scores = t.op("bmm", queries, turned, shape=(2, 512, 512), line=2, ns=100)
    t.op("bmm", scores, values, shape=(2, 512, 16), line=3, ns=100)
    (found,) = product_order(t.graph())
    assert (found.columns, found.fewer, found.is_first) == (512, 16, True)


def test_a_vector_is_one_column():
    t = Table()
    matrix = t.op("mm", t.value(64, 32), t.value(32, 128), shape=(64, 128), line=2, ns=100)
    t.op("mv", matrix, t.value(128), shape=(64,), line=3, ns=10)
    (found,) = product_order(t.graph())
    assert (found.columns, found.fewer) == (128, 1)

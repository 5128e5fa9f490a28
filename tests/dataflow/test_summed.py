"""Products of which only sums are read."""

import pytest

from diagnose.dataflow.summed import summed_products
from tests.dataflow.table import Table


def head(t, *, name="mm", between="", sums="mean", others=0, out=(4, 8)):
    """Map 4 x 50 positions to 8 numbers, and average them."""
    weight = t.value(16, 8, role="parameter")
    reads = (t.value(8, role="parameter"),) * (name == "addmm")
    made = t.op(name, *reads, t.value(200, 16), weight, shape=(200, 8), line=2, ns=100)
    if between == "bias":
        made = t.op("add", made, t.value(8, role="parameter"), shape=(200, 8), line=2)
    elif between:
        made = t.op(between, made, line=2)
    positions = made._replace(shape=(4, 50, 8), stride=(400, 8, 1))
    t.op(sums, positions, shape=out, line=3)
    for _ in range(others):
        t.op("exp", made, line=4)
    return t


@pytest.mark.parametrize(
    "options", [{}, {"name": "addmm"}, {"between": "bias"}, {"sums": "sum"}, {"out": (4, 50), "sums": "sum"}]
)
def test_a_mean_of_products_is_the_product_of_a_mean(options):
    (found,) = summed_products(head(Table(), **options).graph())
    num = 1600 // (options.get("out", (4, 8))[0] * options.get("out", (4, 8))[1])
    assert (found.line.line, found.sum_line.line, found.num_summed) == (2, 3, num)
    assert 0.75 < found.avoidable < 1


def test_the_backward_pass_goes_too():
    t = head(Table())
    t.op("mm", t.value(200, 8), t.value(8, 16), shape=(200, 16), line=2, ns=100, phase="backward", forward=0)
    (found,) = summed_products(t.graph())
    assert len(found.work.operators) == 2


def test_a_convolution_of_single_pixels_is_a_product():
    t = Table()
    made = t.op("convolution", t.value(2, 3, 8, 8), t.value(16, 3, 1, 1), shape=(2, 16, 8, 8), line=2, ns=100)
    t.op("mean", made, shape=(2, 16), line=3)
    (found,) = summed_products(t.graph())
    assert found.num_summed == 64


@pytest.mark.parametrize(
    "options",
    [
        {"between": "relu"},
        {"others": 1},
        {"sums": "amax"},
        {"sums": "logsumexp"},
        {"out": ()},  # a loss that stands for one
    ],
)
def test_what_is_not_linear_or_read_elsewhere_is_left_out(options):
    assert summed_products(head(Table(), **options).graph()) == ()


def test_a_sum_of_few_numbers_is_left_out():
    t = Table()
    made = t.op("mm", t.value(100, 16), t.value(16, 2), shape=(100, 2), line=2, ns=100)
    t.op("sum", made, shape=(100,), line=3)
    assert summed_products(t.graph()) == ()


def test_sums_of_columns_of_a_far_larger_argument_save_little():
    t = Table()
    made = t.op("mm", t.value(100, 900), t.value(900, 4), shape=(100, 4), line=2, ns=100)
    t.op("sum", made, shape=(100,), line=3, ns=50)
    assert summed_products(t.graph()) == ()

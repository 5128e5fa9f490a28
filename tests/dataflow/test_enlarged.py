"""Linear maps of what a gather, an expand or an interpolation has enlarged."""

import pytest

from diagnose.dataflow.enlarged import enlarged_inputs
from diagnose.model.dataflow import Use
from tests.dataflow.table import Table


def weights(t, *shape):
    return t.value(*shape, role="parameter")


def pairs(t):
    heads, deps = (t.value(1, 10, 4) for _ in range(2))
    left = Use(heads.value, (1, 10, 10, 4), (40, 0, 4, 1), 0, "float32")
    right = Use(deps.value, (1, 10, 10, 4), (40, 4, 0, 1), 0, "float32")
    return t.op("cat", left, right, shape=(1, 10, 10, 8), line=2)


def flat(use):
    return Use(use.value, (100, use.shape[-1]), (use.shape[-1], 1), 0, "float32")


def edges(t, *, between="", width=4):
    """Multiply features of 10 nodes for 100 edges, next to what they differ by from the node at the other end."""
    nodes = t.value(10, 4)
    near = t.op("index_select", nodes, t.value(100, dtype="int64"), shape=(100, 4), attributes="dim=0", line=2, ns=20)
    near = Use(near.value, (10, 10, 4), (40, 4, 1), 0, "float32")
    here = Use(nodes.value, (10, 10, 4), (4, 0, 1), 0, "float32")
    both = t.op("cat", here, t.op("sub", near, here, line=3), shape=(10, 10, 8), line=3, ns=20)
    if between:
        both = t.op(between, both, line=4)
    t.op("addmm", weights(t, width), flat(both), weights(t, 8, width), shape=(100, width), line=5, ns=100)


def image(t, *, outputs=4, between="", size=1, groups=1, name="upsample_bilinear2d"):
    """Interpolate 16 channels to four times the pixels and convolve them."""
    large = t.op(name, t.value(2, 16, 8, 8), shape=(2, 16, 16, 16), line=2, ns=40)
    used = t.op(between, large, line=3) if between else large
    kernel = weights(t, outputs, 16 // groups, size, size)
    t.op("convolution", used, kernel, t.value(outputs), shape=(2, outputs, 16, 16), line=4, ns=100)
    return large


def found_in(t):
    return [(one.enlarging_line.line, one.map_line.line, one.num_rows, one.fewer) for one in enlarged_inputs(t.graph())]


def test_a_product_with_pairs_of_repeated_rows_is_the_sum_of_two_products():
    t = Table()
    t.op("tanh", t.op("mm", flat(pairs(t)), weights(t, 8, 2), shape=(100, 2), line=3), line=4)
    assert found_in(t) == [(2, 3, 100, 10)]
    (found,) = enlarged_inputs(t.graph())
    # A tenth of the product is left; two columns are added up where eight were joined.
    assert found.avoidable == pytest.approx((0.9 + 0.75) / 2)


def test_a_product_of_a_difference_is_that_of_the_rows_before_they_are_gathered():
    t = Table()
    edges(t)
    assert found_in(t) == [(2, 5, 100, 15)]
    (found,) = enlarged_inputs(t.graph())
    # Of the parts a tenth for each half, and another one for what is subtracted; half of the cat's columns are left.
    assert found.avoidable * 150 == pytest.approx(100 * (1 - 0.15) + 10)


def test_columns_of_the_result_are_gathered_instead_which_may_take_longer():
    t = Table()
    edges(t, width=16)  # four times as many
    assert enlarged_inputs(t.graph()) == ()


@pytest.mark.parametrize("between", ["relu", "native_layer_norm", "native_dropout", "tanh"])
def test_what_is_not_linear_has_to_come_first(between):
    t = Table()
    edges(t, between=between)
    image(t, between=between)
    assert enlarged_inputs(t.graph()) == ()


@pytest.mark.parametrize("between", ["neg", "clone", "mul.Scalar"])
def test_constant_factors_and_copies_do_not_matter(between):
    t = Table()
    image(t, between=between)
    assert found_in(t) == [(2, 4, 512, 128)]


@pytest.mark.parametrize("name", ["upsample_bilinear2d", "upsample_nearest2d.vec", "_upsample_bicubic2d_aa"])
def test_a_convolution_of_single_pixels_comes_before_an_interpolation(name):
    t = Table()
    first = len(t.operators)
    large = image(t, name=name)
    t.op("convolution_backward", t.value(2, 4, 16, 16), large, line=4, ns=200, phase="backward", forward=first + 1)
    t.op("upsample_backward", t.value(2, 16, 16, 16), line=2, ns=60, phase="backward", forward=first)
    assert found_in(t) == [(2, 4, 512, 128)]
    (found,) = enlarged_inputs(t.graph())
    assert found.is_interpolated
    assert found.avoidable == pytest.approx(0.75)  # of the pixels, and of the columns that are interpolated
    assert len(found.work.operators) == 4


@pytest.mark.parametrize("options", [{"outputs": 32}, {"size": 3}, {"groups": 4}])
def test_more_outputs_neighbours_and_groups_are_left_alone(options):
    t = Table()
    image(t, **options)
    assert enlarged_inputs(t.graph()) == ()


def test_of_what_something_else_reads_too_only_the_map_becomes_shorter():
    t = Table()
    large = image(t)
    t.op("relu", large, line=5)
    (found,) = enlarged_inputs(t.graph())
    # The interpolation stays, and that of a quarter of the columns is added.
    assert found.avoidable * 140 == pytest.approx(100 * 0.75 - 40 / 4)


def test_levels_of_a_pyramid_are_multiplied_one_by_one():
    t = Table()
    sizes = (1, 2, 4)
    levels = [t.op("upsample_bilinear2d", t.value(1, 8, n, n), shape=(1, 8, 8, 8), line=2) for n in sizes]
    joined = t.op("cat", *levels, t.value(1, 8, 8, 8), shape=(1, 32, 8, 8), line=3, ns=10)
    t.op("convolution", joined, weights(t, 8, 32, 1, 1), shape=(1, 8, 8, 8), line=4, ns=100)
    assert found_in(t) == [(2, 4, 64, (1 + 4 + 16 + 64) // 4)]


def test_positions_added_to_other_rows_and_fields_side_by_side_are_silent():
    t = Table()
    words = t.op("add", t.value(10, 10, 4), t.value(1, 10, 4), shape=(10, 10, 4), line=2)
    t.op("mm", flat(words), weights(t, 4, 4), shape=(100, 4), line=3, ns=100)
    fields = t.op("embedding", weights(t, 10, 4), t.value(100, 8), shape=(100, 8, 4))
    wide = fields._replace(shape=(100, 32), stride=(32, 1))
    t.op("mm", wide, weights(t, 32, 16), shape=(100, 16), ns=100)
    assert enlarged_inputs(t.graph()) == ()


def test_a_helper_that_gathers_is_named_by_its_call():
    t = Table()
    nodes, index = t.value(10, 4), t.value(100, dtype="int64")
    here, near = (t.op("embedding", nodes, index, shape=(100, 4), line=2, at=(n, 30)) for n in (11, 12))
    joined = t.op("cat", here, near, shape=(100, 8), line=13, at=(30,))
    t.op("mm", joined, weights(t, 8, 4), shape=(100, 4), line=14, at=(30,), ns=100)
    assert found_in(t) == [(11, 14, 100, 10)]


def test_a_product_of_rows_that_are_only_gathered_is_left_to_equal_rows():
    t = Table()
    rows = t.op("index_select", t.value(10, 4), t.value(100, dtype="int64"), shape=(100, 4), attributes="dim=0")
    t.op("mm", rows, weights(t, 4, 4), shape=(100, 4), ns=100)
    assert enlarged_inputs(t.graph()) == ()

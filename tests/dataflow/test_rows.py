"""Equal rows: work by row behind what repeats them."""

import pytest

from diagnose.dataflow.rows import equal_rows
from diagnose.model.dataflow import Use
from tests.dataflow.table import Table


def test_a_product_behind_a_gather_computes_each_row_often():
    t = Table()
    nodes, weight = t.value(10, 4), t.value(4, 4, role="parameter")
    edges = t.op("index_select", nodes, t.value(100), shape=(100, 4), line=2)
    out = t.op("mm", edges, weight, shape=(100, 4), line=3, ns=50)
    t.op("relu", out, line=4, ns=40)
    (one,) = equal_rows(t.graph())
    assert ([line.line for line in one.work.lines], one.value_line.line, one.num_rows) == ([3, 4], 2, 10)
    assert one.avoidable == pytest.approx(0.9)


def test_rows_that_are_combined_with_others_or_of_one_number_are_not():
    t = Table()
    edges = t.op("index_select", t.value(10, 4), shape=(100, 4))
    t.op("mul", edges, t.value(100, 4))
    ones = t.op("index_select", t.value(10, 4), shape=(100, 4), facts={"kind": "constant"})
    t.op("mul", ones, facts={"kind": "constant"})
    assert equal_rows(t.graph()) == ()


def test_a_table_with_more_rows_than_are_taken_from_it_is_not_worth_it():
    t = Table()
    words = t.op("embedding", t.value(1000, 4, role="parameter"), t.value(100), shape=(100, 4))
    t.op("gelu", words)
    assert equal_rows(t.graph()) == ()


def test_rows_that_a_view_repeats_are_those_of_its_memory():
    t = Table()
    beams = Use(t.value(2, 1, 4).value, (2, 10, 4), (4, 0, 1), 0, "float32")
    t.op("mul", t.op("clone", beams, line=2), line=3)
    (found,) = equal_rows(t.graph())
    assert (found.value_line.line, found.num_rows) == (2, 2)


def test_how_many_rows_differ_follows_from_the_rows_taken():
    t = Table()
    edges = t.op("index.Tensor", t.value(10, 4), t.value(100), shape=(100, 4), line=2)
    first = len(t.operators)
    t.op("mm", edges, t.value(4, 8, role="parameter"), shape=(100, 8), line=3)
    t.op("mm", t.value(100, 8), shape=(100, 4), line=3, phase="backward", forward=first)
    (found,) = equal_rows(t.graph())
    assert (found.num_rows, found.avoidable, len(found.work.operators)) == (10, 0.9, 2)


def test_rows_that_others_are_added_to_are_not_equal():
    t = Table()
    edges = t.op("index_select", t.value(10, 4), t.value(100), shape=(100, 4), line=2)
    t.op("mm", t.op("add", edges, t.value(100, 4), line=3), t.value(4, 4, role="parameter"), shape=(100, 4), line=4)
    assert equal_rows(t.graph()) == ()


def test_rows_of_several_fields_side_by_side_are_different_rows():
    """Each field has few rows; what is flattened has one row for each sample, and most combinations differ."""
    t = Table()
    fields = t.op("embedding", t.value(10, 4, role="parameter"), t.value(100, 8), shape=(100, 8, 4))
    flat = fields._replace(shape=(100, 32), stride=(32, 1))
    t.op("mm", flat, t.value(32, 16, role="parameter"), shape=(100, 16))
    assert equal_rows(t.graph()) == ()


def spread_condition(t, *, made="silu", kernel=1, groups=1):
    """Spread a vector of each sample over 8 x 8 pixels, and convolve it."""
    vector = t.value(2, 16)
    pixels = Use(vector.value, (2, 16, 8, 8), (16, 1, 0, 0), 0, "float32")
    if made == "repeat":
        pixels = Use(vector.value, (2, 16, 1, 1), (16, 1, 1, 1), 0, "float32")
    if made == "ones":
        ones = t.op("ones", shape=(1, 1, 8, 8), facts={"kind": "constant"}, line=1)
        small = Use(vector.value, (2, 16, 1, 1), (16, 1, 1, 1), 0, "float32")
        large = t.op("mul", small, ones, shape=(2, 16, 8, 8), line=2)
    else:
        large = t.op(made, pixels, shape=(2, 16, 8, 8), line=2)
    weight = t.value(32, 16 // groups, kernel, kernel, role="parameter")
    return t.op("convolution", large, weight, shape=(2, 32, 8, 8), line=3, ns=50)


@pytest.mark.parametrize("made", ["silu", "clone", "repeat", "ones"])
def test_a_condition_that_is_spread_over_pixels_needs_one_product_a_sample(made):
    t = Table()
    spread_condition(t, made=made)
    found = {each.work.line.line: each for each in equal_rows(t.graph())}
    assert found[3].num_rows == 2
    assert found[3].avoidable == pytest.approx(1 - 1 / 64)
    assert found[3].is_by_pixel


@pytest.mark.parametrize("options", [{"kernel": 3}, {"groups": 2}])
def test_a_convolution_that_mixes_pixels_or_has_groups_is_none(options):
    t = Table()
    spread_condition(t, **options)
    assert 3 not in {each.work.line.line for each in equal_rows(t.graph())}


def test_a_norm_of_each_row_goes_on_with_equal_rows():
    t = Table()
    rows = Use(t.value(2, 8).value, (2, 10, 8), (8, 0, 1), 0, "float32")
    copied = t.op("clone", rows, line=2)
    stats = t.value(2, 10, 1), t.value(2, 10, 1)
    normed = t.op("native_layer_norm", copied, line=3)
    t.operators[-1] = t.operators[-1]._replace(writes=(normed, *stats))
    flat = Use(normed.value, (20, 8), (8, 1), 0, "float32")
    t.op("mm", flat, t.value(8, 4, role="parameter"), shape=(20, 4), line=4)
    (found,) = equal_rows(t.graph())
    assert [line.line for line in found.work.lines] == [3, 4]


def test_pairs_of_two_vectors_all_differ():
    t = Table()
    left, right = t.value(10, 4), t.value(10, 4)
    rows = Use(left.value, (10, 10, 4), (4, 0, 1), 0, "float32"), Use(right.value, (10, 10, 4), (0, 4, 1), 0, "float32")
    t.op("add", *rows, line=2)
    t.op("add", left._replace(shape=(10, 1, 4), stride=(4, 4, 1)), right, shape=(10, 10, 4), line=3)
    assert equal_rows(t.graph()) == ()


def test_layers_that_share_a_line_are_one_record():
    t = Table()
    for num in (100, 50):
        rows = t.op("index_select", t.value(10, 4), t.value(num), shape=(num, 4), line=2)
        t.op("mm", rows, t.value(4, 4, role="parameter"), shape=(num, 4), line=3)
    (found,) = equal_rows(t.graph())
    assert len(found.work.operators) == 2
    assert found.avoidable == pytest.approx((0.9 + 0.8) / 2)


def test_what_a_smaller_tensor_adds_to_rows_makes_them_differ():
    t = Table()
    rows = t.op("clone", Use(t.value(2, 4).value, (2, 10, 4), (4, 0, 1), 0, "float32"), line=2)
    t.op("add", rows, t.value(10, 4), line=3)
    t.op("relu", rows, line=4)
    assert [each.work.line.line for each in equal_rows(t.graph())] == [4]


def test_rows_that_are_stacked_are_different_ones():
    t = Table()
    t.op("stack", *(t.value(4, 8) for _ in range(3)), shape=(3, 4, 8), attributes="dim=0")
    assert equal_rows(t.graph()) == ()

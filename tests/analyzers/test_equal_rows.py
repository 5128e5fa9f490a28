"""equal-rows: work by row on rows that were repeated."""

import pytest

from diagnose.analyzers import equal_rows
from diagnose.model.dataflow import Use
from tests.analyzers.flow_tables import steps, tables


def messages(num_nodes):
    def operators(t):
        edges = t.op("index.Tensor", t.value(num_nodes, 4), t.value(100), shape=(100, 4), line=2, ns=100)
        return t.op("mm", edges, t.value(4, 4, role="parameter"), shape=(100, 4), line=3, ns=100)

    return operators


def test_rows_that_a_gather_repeats_cost_the_share_of_those_that_are_equal(recording):
    (finding,) = equal_rows.find(tables(recording, steps(messages(10))))
    assert finding.lost_ns == pytest.approx(90_000, abs=8)
    assert [place.line for place in finding.where] == [2, 3]
    assert finding.evidence[-1] == (
        "90 % of the rows at line 3 of train.py equal others: line 2 of train.py makes them of 10."
    )


def test_rows_taken_from_more_rows_are_not_repeated(recording):
    assert equal_rows.find(tables(recording, steps(messages(60)))) == []


@pytest.mark.parametrize(("rest_ns", "is_found"), [(100, True), (10_000, False)])
def test_a_small_layer_behind_a_small_table_is_below_the_floor(recording, rest_ns, is_found):
    def operators(t):
        words = t.op("embedding", t.value(10, 4, role="parameter"), t.value(100), shape=(100, 4), line=2, ns=100)
        hidden = t.op("mm", words, t.value(4, 4, role="parameter"), shape=(100, 4), line=3, ns=100)
        return t.op("bmm", t.op("softmax", hidden, line=4, ns=rest_ns), line=4, ns=rest_ns)

    assert bool(equal_rows.find(tables(recording, steps(operators)))) is is_found


def test_a_convolution_of_single_pixels_after_an_interpolation(recording):
    def operators(t):
        large = t.op("upsample_bilinear2d", t.value(1, 8, 4, 4), shape=(1, 8, 8, 8), line=2, ns=100)
        weights = t.value(2, 8, 1, 1, role="parameter")
        return t.op("convolution", large, weights, shape=(1, 2, 8, 8), line=3, ns=100)

    (finding,) = equal_rows.find(tables(recording, steps(operators)))
    assert finding.title == "A linear map works on an input that was enlarged"
    assert finding.facts["kind"] == "interpolated"
    assert [place.line for place in finding.where] == [2, 3]
    assert finding.evidence[-1] == (
        "The linear layer at line 3 of train.py multiplies 64 rows, which line 2 of train.py interpolates from the "
        "content of 16."
    )


@pytest.mark.parametrize(("rest_ns", "is_found"), [(10, True), (200, False)])
def test_a_call_of_torch_that_does_more_than_work_on_equal_rows_cannot_be_parted(recording, rest_ns, is_found):
    """As a recurrent layer does, whose products of the inputs are a small part of it."""

    def operators(t):
        rows = Use(t.value(2, 8).value, (2, 50, 8), (8, 0, 1), 0, "float32")
        hidden = t.op("mm", rows._replace(shape=(100, 8), stride=(0, 1)), t.value(8, 8), shape=(100, 8), ns=100)
        return t.op("tanh", t.op("add", hidden, t.value(100, 8), ns=rest_ns), ns=rest_ns)

    found = equal_rows.find(tables(recording, steps(operators), within="" if is_found else "aten::gru"))
    assert bool(found) is is_found

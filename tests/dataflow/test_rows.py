"""Equal rows: work by row behind what repeats them."""

from diagnose.dataflow.rows import equal_rows
from diagnose.model.dataflow import Use
from tests.dataflow.table import Table


def test_a_product_behind_a_gather_computes_each_row_often():
    t = Table()
    nodes, weight = t.value(10, 4), t.value(4, 4, role="parameter")
    edges = t.op("index_select", nodes, t.value(100), shape=(100, 4), line=2)
    out = t.op("mm", edges, weight, shape=(100, 4), line=3, ns=50)
    t.op("relu", out, line=4, ns=40)
    found = equal_rows(t.graph())
    assert [(each.work.line.line, each.value_line.line, each.avoidable) for each in found] == [(3, 2, 0.9), (4, 2, 0.9)]
    assert [each.num_rows for each in found] == [10, 10]


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

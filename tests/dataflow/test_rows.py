"""Equal rows: work by row behind what repeats them."""

from diagnose.dataflow.rows import equal_rows
from diagnose.model.dataflow import Use
from tests.dataflow.table import Table

MANY = {"repeated_rows": 0.9}


def test_a_product_behind_a_gather_computes_each_row_often():
    t = Table()
    nodes, weight = t.value(10, 4), t.value(4, 4, role="parameter")
    edges = t.op("index_select", nodes, t.value(100), shape=(100, 4), line=2, facts=MANY)
    out = t.op("mm", edges, weight, shape=(100, 4), line=3, ns=50, facts=MANY)
    t.op("relu", out, line=4, ns=40, facts=MANY)
    found = equal_rows(t.graph())
    assert [(each.work.line.line, each.value_line.line, each.repeated) for each in found] == [(3, 2, 0.9), (4, 2, 0.9)]
    assert [(each.num_rows, each.avoidable) for each in found] == [(10, 0.9), (10, 0.9)]


def test_rows_that_are_combined_with_others_or_of_one_number_are_not():
    t = Table()
    edges = t.op("index_select", t.value(10, 4), shape=(100, 4), facts=MANY)
    t.op("mul", edges, t.value(100, 4), facts={"repeated_rows": 0.0})
    ones = t.op("index_select", t.value(10, 4), shape=(100, 4), facts={"kind": "constant", **MANY})
    t.op("mul", ones, facts={"kind": "constant", **MANY})
    assert equal_rows(t.graph()) == ()


def test_a_table_with_more_rows_than_are_taken_from_it_is_not_worth_it():
    t = Table()
    words = t.op("embedding", t.value(1000, 4, role="parameter"), t.value(100), shape=(100, 4), facts=MANY)
    t.op("gelu", words, facts=MANY)
    assert equal_rows(t.graph()) == ()


def test_rows_that_a_view_repeats_are_those_of_its_memory():
    t = Table()
    beams = Use(t.value(2, 1, 4).value, (2, 10, 4), (4, 0, 1), 0, "float32")
    t.op("mul", t.op("clone", beams, line=2, facts=MANY), line=3, facts=MANY)
    (found,) = equal_rows(t.graph())
    assert (found.value_line.line, found.num_rows) == (2, 2)

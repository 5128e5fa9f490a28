"""Equal rows: work by row behind what repeats them."""

from diagnose.dataflow.rows import equal_rows
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
    assert [each.avoidable for each in found] == [0.9, 0.9]


def test_rows_that_are_combined_with_others_or_of_one_number_are_not():
    t = Table()
    edges = t.value(100, 4, **MANY)
    t.op("mul", edges, t.value(100, 4), facts={"repeated_rows": 0.0})
    t.op("mul", t.value(100, 4, kind="constant", **MANY), facts={"kind": "constant", **MANY})
    assert equal_rows(t.graph()) == ()

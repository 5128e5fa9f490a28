"""Searches through what never changes."""

import pytest

from diagnose.dataflow.searched import searches
from tests.dataflow.table import Table

EDGES, NODES = 9000, 500


def lines(*, role="constant", left=0.99, compares="index", selects="nonzero", chained=False):
    """Return the lines of what a step's search consists of, with the share that is not selected."""
    t = Table()
    for t.step in range(2):
        targets, wanted = t.value(EDGES, dtype="int64", role=role), t.value(NODES, dtype="bool", zeros=left)
        hit = t.op(compares, wanted, targets, shape=(EDGES,), dtype="bool", line=2, facts={"zeros": left})
        if chained:
            other = t.op("eq.Scalar", targets, shape=(EDGES,), dtype="bool", line=3, facts={"zeros": left})
            hit = t.op("bitwise_and", hit, other, shape=(EDGES,), dtype="bool", line=4, facts={"zeros": left})
        t.op(selects, hit, shape=(90, 1), dtype="int64", line=5)
    g = t.graph()
    return {g.operators[each.operator].place.line: each.left for each in searches(g, list(g.of_step(1)))}


@pytest.mark.parametrize("compares", ["index", "gather", "eq.Tensor", "isin"])
def test_what_compares_all_and_what_selects_few_are_a_search(compares):
    assert lines(compares=compares) == {2: 0.99, 5: 0.99}
    assert lines(compares=compares, chained=True).keys() == {2, 3, 4, 5}


@pytest.mark.parametrize("other", [{"role": "input"}, {"left": 0.9}, {"selects": "sum"}, {"compares": "sort"}], ids=str)
def test_what_changes_or_is_mostly_selected_is_none(other):
    assert lines(**other) == {}

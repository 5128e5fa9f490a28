"""Rows of tables that a step does not look up."""

import pytest

from diagnose.dataflow.untouched import untouched_rows
from tests.dataflow.table import Table


def updated(*, zero_rows: float = 0.9, tied: bool = False) -> dict[str, float]:
    """Return the part of each operator that untouched rows take."""
    t = Table()
    table, state = (t.value(100, 8, role=role) for role in ("parameter", "optimizer state"))
    other = t.value(10, 80, role="parameter")
    facts = {"zero_rows": zero_rows}
    gradient = t.op("embedding_dense_backward", t.value(4, 8), shape=(100, 8), phase="backward", facts=facts)
    if tied:
        gradient = t.op("add", gradient, t.value(100, 8), phase="backward", facts={"zero_rows": 0.0})
    t.op("mul_", into=table, phase="optimizer")
    t.op("_foreach_addcmul_", gradient, other, into=state, phase="optimizer")
    t.op("mul_", into=other, phase="optimizer")
    graph = t.graph()
    return {f"{i} {graph.operators[i].name[6:]}": part for i, _, part in untouched_rows(graph, graph.of_step(0))}


def test_the_gradient_and_what_updates_the_table_are_for_nothing_but_for_the_rows_that_are_looked_up():
    assert updated() == {
        "0 embedding_dense_backward": 0.9,
        "1 mul_": 0.9,
        "2 _foreach_addcmul_": pytest.approx(0.9 * 2 / 3),  # another parameter is a third of what it reads
    }


@pytest.mark.parametrize("more", [{"zero_rows": 0.74}, {"tied": True}])
def test_a_table_that_is_used_and_one_that_is_the_head_as_well_are_not(more):
    assert updated(**more) == {}

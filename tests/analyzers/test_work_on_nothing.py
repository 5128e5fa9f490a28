"""work-on-nothing: contents that make a part of the work needless."""

import pytest

from diagnose.analyzers import work_on_nothing
from diagnose.changes.common.prescribe import prescribe
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables


def test_a_product_with_one_hot_rows_costs_all_but_a_lookup(recording):
    def looked_up(t):
        rows = t.value(8, 100, kind="one-hot")
        return t.op("mm", rows, t.value(100, 4, role="parameter"), shape=(8, 4), line=5, ns=200)

    (finding,) = work_on_nothing.find(t := tables(recording, steps(looked_up)))
    assert finding.lost_ns == pytest.approx(99_000)
    assert finding.title == "Rows of a weight are looked up by a product with one-hot rows"
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["index-lookup"]

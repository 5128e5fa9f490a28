"""too-wide: a wider type between narrower ends."""

from diagnose.analyzers import too_wide
from diagnose.changes.common.prescribe import prescribe
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables


def test_float64_between_float32_costs_half(recording):
    def widened(t):
        double = t.op("_to_copy", t.value(4, 4), dtype="float64", line=2, ns=200)
        return t.op("sum", t.op("exp", double, line=3, ns=200), shape=(), dtype="float32", line=4, ns=200)

    (finding,) = too_wide.find(t := tables(recording, steps(widened)))
    assert finding.lost_ns == 100_000  # two operators
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["single-precision"]

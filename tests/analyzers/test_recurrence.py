"""recurrence: calls each of which needs the one before."""

import pytest

from diagnose.analyzers import independent_loop, recurrence
from diagnose.changes.common.prescribe import prescribe
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables


def scan(t):
    decay, state = t.value(4, 4, role="parameter"), t.value(4, 4)
    for _ in range(4):
        state = t.op("lerp.Tensor", state, t.value(4, 4), decay, line=7, ns=100)
    return t.op("sum", state, line=8, ns=100)


def test_a_scan_costs_its_calls_and_the_python_between(recording):
    t = tables(recording, steps(scan))
    (finding,) = recurrence.find(t)
    assert finding.lost_ns == pytest.approx(4 * 75_000 + 3 * 10_000, abs=8)
    assert finding.evidence[-1] == (
        "The loop at line 7 of train.py makes 4 calls a step; 4 of them need each other one after the other. "
        "The turns hand on a sum of scaled terms, a product or an extreme."
    )
    assert finding.where[0].line == 7
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["vectorise-loop"]
    assert independent_loop.find(t) == []


def test_what_one_operator_of_torch_calls_is_no_loop_of_the_script(recording):
    assert recurrence.find(tables(recording, steps(scan), within="aten::gru")) == []


def written_out(t):
    """Return the state of a recurrence with a norm, whose input is computed in each turn."""
    weight, state = t.value(4, 4, role="parameter"), t.value(4, 4)
    for _ in range(4):
        x = t.op("mm", t.value(4, 4), weight, line=6, ns=100)
        state = t.op("native_layer_norm", state, x, line=7, ns=100)
    return state


def test_of_a_loop_that_no_operator_replaces_only_what_can_leave_it_is_named(recording):
    t = tables(recording, steps(written_out))
    t.capture.lines.update({("train.py", 6): "x = self.embed(frame)"})
    (finding,) = recurrence.find(t)
    assert finding.where[0].line == 6
    assert finding.lost_ns == pytest.approx(4 * 75_000, rel=0.01)
    (advised,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert advised.title == "Take the line out of the loop and call it once for all turns (train.py:6)"
    assert advised.after.endswith("\nx = self.embed(frame)")

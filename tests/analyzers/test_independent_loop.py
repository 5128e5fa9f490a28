"""independent-loop: calls that do not need each other."""

import pytest

from diagnose.analyzers import independent_loop
from diagnose.analyzers.common import avoidable
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.intervals import span
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables


def test_independent_calls_cost_what_calling_them_does(recording):
    def experts(t):
        outs = [t.op("addmm", t.value(4, 4), t.value(4, 4, role="parameter"), line=7, ns=100) for _ in range(4)]
        return t.op("stack", *outs, line=8, ns=100)

    t = tables(recording, steps(experts))
    (finding,) = independent_loop.find(t)
    assert finding.lost_ns == pytest.approx(4 * 75_000 + 3 * 10_000, abs=8)  # and the Python between the calls
    assert finding.evidence[-1] == (
        "The loop at line 7 of train.py makes 4 calls a step of one shape, each with weights of its own; the longest "
        "chain of calls that need each other is 1."
    )
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["vectorise-loop"]


def test_what_would_be_launch_bound_of_a_loop_is_its_own(recording, monkeypatch):
    def experts(t):
        outs = [t.op("addmm", t.value(4, 4), t.value(4, 4, role="parameter"), line=7, ns=100) for _ in range(4)]
        return t.op("stack", *outs, line=8, ns=100)

    monkeypatch.setattr(avoidable, "issued_in_loop", lambda t: span(*t.steps.window))
    (finding,) = independent_loop.find(tables(recording, steps(experts)))
    assert finding.lost_ns == 4 * 100_000 + 3 * 10_000  # of its lines, and nothing of others

"""not-compiled: what torch.compile skipped, or was given and never runs."""

import pytest

from diagnose.analyzers import not_compiled
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.dataflow import Frame
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables
from tests.dataflow.table import FILE

CALL = {
    "file": FILE,
    "line": 104,
    "name": "Net",
    "functions": [("forward", FILE, 53, 58), ("log_prob", FILE, 60, 64)],
    "made": {
        "name": "torch.compile",
        "file": FILE,
        "first": 104,
        "lines": ["    net = torch.compile(model)"],
        "begin": (104, 10),
        "end": (104, 30),
    },
}
SKIPPED = {
    "file": FILE,
    "line": 64,
    "function": "log_prob",
    "reason": "Data-dependent branching",
    "skips": True,
}


def pointwise(*names, function="log_prob"):
    """Return operators of one function that ``main`` calls at line 111."""

    def operators(t):
        x = t.value(64, 64)
        for name in names:
            x = t.op(name, x, stack=(Frame(FILE, 62, function), Frame(FILE, 111, "main")), ns=100)
        return x

    return operators


def found(recording, compiled, *names, **more):
    t = tables(
        recording, steps(pointwise(*(names or ("exp", "mul", "log", "add")), **more)), noted={"compiled": compiled}
    )
    return not_compiled.find(t), t


def test_the_method_that_is_called_instead_of_forward_is_named(recording):
    (finding,), t = found(recording, {"calls": [{**CALL, "is_idle": True}]})
    assert finding.title == "torch.compile compiles forward of Net, and the steps call log_prob"
    assert [(each.line, each.function) for each in finding.where] == [(104, ""), (111, "main"), (62, "log_prob")]
    fused, calling = 400_000 * 6 / 8, 3 * 10_000  # one value is read and one written of eight
    assert finding.lost_ns == pytest.approx(fused + calling, abs=8)
    (p,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert (p.id, p.before) == ("compile-method", "net = torch.compile(model)")
    assert p.after == "model.log_prob = torch.compile(model.log_prob)"


def test_a_skipped_function_is_named_by_its_break(recording):
    (finding,), t = found(recording, {"breaks": [SKIPPED], "calls": [CALL]})
    assert finding.title == "torch.compile skips log_prob: data-dependent branching at line 64"
    assert (finding.where[0].line, finding.where[1].line) == (64, 62)
    assert [p.id for p in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["break-outside"]


@pytest.mark.parametrize(
    ("compiled", "more"),
    [
        ({"calls": [CALL]}, {}),  # compiled
        ({"breaks": [{**SKIPPED, "skips": False}]}, {}),  # what is around the break is compiled
        ({"breaks": [SKIPPED]}, {"function": "helper"}),  # which is compiled apart
        ({"calls": [{**CALL, "is_idle": True}]}, {"function": "helper"}),
        ({}, {}),
    ],
)
def test_what_is_compiled_or_was_never_given_is_none(recording, compiled, more):
    assert found(recording, compiled, **more)[0] == []


def test_a_backend_for_debugging_calls_operators_one_by_one_as_well(recording):
    (finding,), _ = found(recording, {"calls": [{**CALL, "is_idle": True, "backend": "aot_eager"}]})
    assert finding.lost_ns == pytest.approx(400_000 * 6 / 8, abs=8)


def test_two_operators_are_hardly_worth_fusing(recording):
    assert found(recording, {"calls": [{**CALL, "is_idle": True}]}, "exp", "mul")[0] == []

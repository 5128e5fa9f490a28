"""unfused: a norm, a loss or an activation in single operators."""

import pytest

from diagnose.analyzers import unfused
from tests.analyzers.flow_tables import steps, tables


def written_out(*names):
    def operators(t):
        x = t.value(64, 64)
        for name in names:
            x = t.op(name, x, line=11, ns=100)
        return x

    return operators


GELU = written_out("pow", "mul", "tanh", "mul")


def test_an_activation_costs_the_share_of_bytes_that_need_not_move(recording):
    (finding,) = unfused.find(tables(recording, steps(GELU)))
    assert finding.lost_ns == pytest.approx(400_000 * 6 / 8, abs=8)
    assert finding.title == "A GELU is written out in single operators"
    assert finding.evidence[-1] == (
        "At line 11 of train.py 4 operators a step compute a GELU; 75 % of the bytes that they read and write are "
        "values that a fused operator keeps."
    )


def test_pointwise_operators_of_no_known_form_are_not_named(recording):
    assert unfused.find(tables(recording, steps(written_out("mul", "add", "sub", "relu")))) == []


def test_a_function_of_torch_that_consists_of_several_operators_is_not_written_out(recording):
    assert unfused.find(tables(recording, steps(GELU), within="aten::mish")) == []

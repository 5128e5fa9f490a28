"""unfused: a norm, a loss or an activation in single operators."""

import pytest

from diagnose.analyzers import unfused
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.dataflow import Use
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import GPU, steps, tables
from tests.dataflow.test_order_masks import pairs


def written_out(*names):
    def operators(t):
        x = t.value(64, 64)
        for name in names:
            x = t.op(name, x, line=11, ns=100)
        return x

    return operators


def gelu(t):
    x = t.value(64, 64)
    bent = x
    for name in ("pow", "mul", "tanh"):
        bent = t.op(name, bent, line=11, ns=100)
    return t.op("mul", x, bent, line=11, ns=100)


def test_an_activation_costs_the_share_of_bytes_that_need_not_move(recording):
    (finding,) = unfused.find(tables(recording, steps(gelu)))
    assert finding.lost_ns == pytest.approx(400_000 * 7 / 9, abs=8)
    assert finding.title == "A GELU is written out in single operators"
    assert finding.evidence[-1] == (
        "At line 11 of train.py 4 operators a step compute a GELU; 78 % of the bytes that they read and write are "
        "values that a fused operator keeps."
    )


def test_a_matrix_of_all_pairs_is_named_as_such_and_not_as_a_loss(recording):
    (finding,) = unfused.find(t := tables(recording, steps(pairs)))
    assert finding.title == "A matrix of all pairs computes sums over those that come before"
    assert finding.evidence[-1] == (
        "At line 3 of train.py 64 numbers are compared with each other, and 64 × 64 are reduced: each row over a "
        "prefix of the sorted numbers."
    )
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["cumulate-sorted"]


def test_pointwise_operators_of_no_known_form_are_not_named(recording):
    assert unfused.find(tables(recording, steps(written_out("mul", "add", "sub", "relu")))) == []


def test_a_function_of_torch_that_consists_of_several_operators_is_not_written_out(recording):
    assert unfused.find(tables(recording, steps(gelu), within="aten::mish")) == []


def attention(mask):
    def operators(t):
        x = t.op("bmm", t.value(4, 64, 8), t.value(4, 8, 64), shape=(4, 64, 64), line=3)
        for name in ("mul", *mask, "_softmax"):
            x = t.op(name, x, line=4, ns=100)
        return t.op("bmm", x, t.value(4, 64, 8), shape=(4, 64, 8), line=5)

    return operators


@pytest.mark.parametrize("mask", [(), ("masked_fill",)])
def test_attention_costs_what_lies_between_the_products(recording, mask):
    t = tables(recording, steps(attention(mask)))
    (finding,) = unfused.find(t)
    assert finding.lost_ns == (2 + len(mask)) * 100_000
    assert (finding.title, finding.where[0].line) == ("Attention runs as separate operators around a softmax", 4)
    (change,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert change.id == "fused-attention"


def test_attention_of_one_operator_of_torch_is_not_written_out(recording):
    assert unfused.find(tables(recording, steps(attention(())), within="aten::scaled_dot_product_attention")) == []


def test_attention_of_a_device_is_named_by_its_kernels(recording):
    assert unfused.find(tables(recording, steps(attention(())), devices=GPU)) == []


def test_no_change_is_known_of_other_forms(recording):
    t = tables(recording, steps(gelu))
    assert prescribe(unfused.find(t)[0], t.steps.step_ns, UNKNOWN) == []


def test_distances_of_all_pairs_are_one_call(recording):
    def operators(t):
        rows = Use(t.value(64, 8).value, (64, 1, 8), (8, 8, 1), 0, "float32")
        others = Use(t.value(32, 8).value, (1, 32, 8), (256, 8, 1), 0, "float32")
        apart = t.op("sub", rows, others, shape=(64, 32, 8), line=3)
        return t.op("linalg_vector_norm", apart, shape=(64, 32), line=4)

    (finding,) = unfused.find(t := tables(recording, steps(operators)))
    assert finding.title == "A matrix of distances is written out in single operators"
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["matrix-of-distances"]

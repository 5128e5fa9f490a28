"""Fusable clusters: what they are, and the bytes that need not move."""

import pytest

from diagnose.dataflow.fusion import unfused
from tests.dataflow.table import Table

KB = 1024


def chain(t: Table, x, *names: str, phase: str = "forward"):
    for name in names:
        x = t.op(name, x, line=5, phase=phase)
    return x


def test_values_within_a_chain_need_not_move():
    t = Table()
    chain(t, t.value(256), "exp", "add", "log")
    (found,) = unfused(t.graph())
    assert (found.kind, found.bytes_not_moved, found.bytes_moved) == ("pointwise", 4 * KB, 6 * KB)
    assert found.avoidable == pytest.approx(2 / 3)


def test_a_value_that_two_operators_read_ends_a_cluster():
    t = Table()
    x = t.op("exp", t.value(256), line=5)
    t.op("add", x, line=5)
    t.op("mul", x, line=5)
    assert unfused(t.graph()) == ()


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("pow", "mul", "tanh", "mul"), "GELU"),
        (("pow", "mean", "add", "rsqrt", "mul"), "norm"),
        (("_softmax", "log", "neg"), "loss"),
        (("neg", "cat", "mul", "add"), "rotary embedding"),
        (("sigmoid", "mul", "mul"), "gated activation"),
    ],
)
def test_what_a_cluster_is_follows_from_its_operators(names, form):
    t = Table()
    chain(t, t.value(256), *names)
    assert [found.kind for found in unfused(t.graph())] == [form]


def test_a_softmax_between_products_is_an_attention():
    t = Table()
    scores = t.op("bmm", t.value(4, 8, 8), line=4)
    t.op("bmm", chain(t, scores, "div", "masked_fill", "_softmax"), line=6)
    assert [found.kind for found in unfused(t.graph())] == ["attention"]


def test_what_backward_reads_too_counts_in_each_phase():
    t = Table()
    x = t.op("exp", t.value(256), line=5)
    chain(t, x, "add", "log")
    chain(t, x, "mul", phase="backward")
    assert len(unfused(t.graph())) == 1

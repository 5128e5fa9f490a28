"""recompute: operators of a forward inside the backward."""

import pytest

EVALUATE = "autograd::engine::evaluate_function: "


def training(recording, *, checkpointed=True, parent="MulBackward0", took=100):
    """Return a step: forward 0 to 300, backward to 1000 with ``took`` µs of a second forward at its begin."""
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::linear", 0, 20)
    r.kernel("gemm", 10, 300, launched=(5, 8))
    r.op(EVALUATE + parent, 100, 200)
    if checkpointed:
        r.op("aten::linear", 110, 120)
        r.kernel("gemm", 300, 300 + took - 10, launched=(112, 115))
        r.op("aten::add", 121, 124)
        r.kernel("add", 290 + took, 300 + took, launched=(122, 123))
        r.op("aten::gelu", 125, 128)
        r.kernel("gelu", 300 + took, 300 + took, launched=(126, 127))
    r.op("aten::mul", 150, 160)
    r.kernel("mul", 300 + took, 1000, launched=(152, 155))
    return r


def test_what_lies_between_the_first_and_the_last_forward_operator(recording):
    r = training(recording)
    finding = r.find("recompute")
    # the product, the addition behind it and the activation; not the multiplication of the gradient
    assert (finding.lost_ns, finding.count, finding.total_ns) == (pytest.approx(100_000), 3, 100_000)
    assert finding.confidence == "high"
    assert [p.id for p in r.prescribe("recompute")] == ["checkpoint-less"]


@pytest.mark.parametrize("parent", ["CheckpointFunctionBackward", "AddmmBackward0"])
def test_in_both_kinds_of_checkpoint(recording, parent):
    assert training(recording, parent=parent).find("recompute").count == 3


def test_nodes_that_touch_are_told_apart(recording):
    # In whole µs one node begins as another ends: the gradients between two second forwards are no part of either.
    r = training(recording)
    r.op(EVALUATE + "AddmmBackward0", 200, 300)
    r.op("aten::mm", 210, 220)
    r.kernel("gemm_nt", 1000, 1400, launched=(212, 215))
    r.op(EVALUATE + "GeluBackward0", 300, 400)
    r.op("aten::gelu", 310, 320)
    r.kernel("gelu", 1400, 1500, launched=(312, 315))
    assert r.find("recompute").count == 4


@pytest.mark.parametrize("change", [{"checkpointed": False}, {"took": 45}])
def test_what_is_no_second_forward(recording, change):
    assert training(recording, **change).find("recompute") is None

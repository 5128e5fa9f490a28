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


@pytest.mark.parametrize("overlap", [0, 0.25])
def test_nodes_that_touch_are_told_apart(recording, overlap):
    # Rounded, one node begins as another ends: the gradients between two second forwards are no part of either.
    r = training(recording)
    r.op(EVALUATE + "AddmmBackward0", 200, 300 + overlap)
    r.op("aten::mm", 210, 220)
    r.kernel("gemm_nt", 1000, 1400, launched=(212, 215))
    r.op(EVALUATE + "GeluBackward0", 300, 400)
    r.op("aten::gelu", 310, 320)
    r.kernel("gelu", 1400, 1500, launched=(312, 315))
    assert r.find("recompute").count == 4


@pytest.mark.parametrize("change", [{"checkpointed": False}, {"took": 30}])
def test_what_is_no_second_forward(recording, change):
    assert training(recording, **change).find("recompute") is None


def test_an_embedding_bag_runs_again_too(recording):
    r = recording()
    r.step(1, 0, 200)
    r.op(EVALUATE + "EmbeddingBagBackward0", 10, 90)
    r.op("aten::embedding_bag", 20, 60)
    r.kernel("EmbeddingBag_updateOutputKernel_sum_mean", 60, 160, launched=(50, 55))
    r.op("aten::_embedding_bag_backward", 65, 85)
    r.kernel("compute_grad_weight_bags", 160, 200, launched=(75, 80))
    assert r.find("recompute").count == 1


def test_a_second_forward_on_an_idle_device_counts_by_its_launches(recording):
    # 10 of 1000 us on the device are its kernels, of 300 busy; but 10 of 13 launches, and the host holds the step.
    r = recording()
    r.step(1, 0, 1000)
    for at in (0, 700, 850):
        r.op("aten::mm", at, at + 100)
        r.kernel("gemm", at + 50, at + 150, launched=(at + 40, at + 45))
    r.op(EVALUATE + "GeluBackward0", 200, 700)
    for k in range(10):
        r.op("aten::gelu", 210 + 45 * k, 250 + 45 * k)
        r.kernel("gelu", 250 + 45 * k, 251 + 45 * k, launched=(240 + 45 * k, 245 + 45 * k))
    finding = next(f for f in r.diagnosis().findings if f.rule == "recompute")
    assert finding.lost_ns == pytest.approx(10_000)
    assert finding.relief_ns > 400_000


@pytest.mark.parametrize(("took", "lost"), [(40, None), (300, 300_000)])
def test_without_a_device_the_operators_own_time_counts(recording, took, lost):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::linear", 0, 300)
    r.op(EVALUATE + "CheckpointFunctionBackward", 300, 1000)
    r.op("aten::linear", 300, 300 + took)
    r.op("aten::mm", 300 + took, 1000)  # of the gradient
    finding = r.find("recompute")
    assert (None if finding is None else finding.lost_ns) == (lost if lost is None else pytest.approx(lost))


def test_without_a_device_the_second_forwards_line_comes_before_that_of_the_backward(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.frame("model.py(7): forward", 0, 300)
    r.op("aten::linear", 10, 290, sequence=4)
    r.op(EVALUATE + "AddmmBackward0", 300, 1000, sequence=4)
    r.op("aten::linear", 310, 700)
    r.lines["train.py", 12] = "loss.backward()"
    r.samples_every(20, 300, 990, ("train.py", 12, "main"), running=1)
    assert [(where.file, where.line) for where in r.find("recompute").where] == [("model.py", 7), ("train.py", 12)]

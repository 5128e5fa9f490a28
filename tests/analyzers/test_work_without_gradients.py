"""work-without-gradients: what a function of the script's own computes beside the training itself. Times in µs."""

import pytest

FUNCTION = "autograd::engine::evaluate_function: MmBackward0"


def monitored(recording, *, name="aten::sort", took=400, numbered=False, layer=False):
    """Return a step of 1000 µs: a product, what `watch` calls at 200, and a backward pass of 300."""
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.frame("train.py(3): main", 0, 1000)
    r.op("aten::mm", 0, 100, sequence=1)
    r.frame("train.py(30): watch", 190, 200 + took)
    if layer:
        r.frame("nn.Module: Norm_0", 195, 200 + took - 1)
    r.op(name, 200, 195 + took, sequence=2)
    r.op("aten::mm", 610, 690, sequence=3 if numbered else 2)
    r.op(FUNCTION, 700, 990)
    return r


def test_what_leaves_nothing_for_the_backward_pass_is_named_with_its_function(recording):
    r = monitored(recording)
    finding = r.find("work-without-gradients")
    assert finding.lost_ns == 395_000
    assert finding.title == "Operators without gradients in watch take the step's time, most of it aten::sort"
    (change,) = r.prescribe("work-without-gradients")
    assert change.id == "compute-less-often"


@pytest.mark.parametrize(
    "change",
    [
        {"numbered": True},  # the backward pass needs it
        {"layer": True},
        {"took": 120},  # a ninth of the step
        {"name": "aten::conv2d"},  # of a teacher
        {"name": "aten::dropout"},  # of the inputs: another in each step
        {"name": "aten::randn"},  # noise of a batch
        {"name": "aten::scatter"},  # targets of labels
    ],
)
def test_what_the_step_is_about(recording, change):
    assert monitored(recording, **change).find("work-without-gradients") is None

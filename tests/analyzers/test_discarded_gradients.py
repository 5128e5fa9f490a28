"""discarded-gradients: a backward pass that goes on after the last gradient its optimizer uses. Times in µs."""

import pytest

FUNCTION = "autograd::engine::evaluate_function: "


def adversarial(recording, *, detached=False, cleared=True, devices=()):
    """Return three steps of 1000 µs with two passes: [4] is the one model's gradient, [8] and [9] are the other's."""
    r = recording(devices=devices) if devices == () else recording()
    for step in range(3):
        at = 1000 * step
        r.step(step, at, at + 1000)
        gradients(r, at + 100, [4] if detached else [4, 8, 9], devices)
        updates(r, at + 400, [4])
        if cleared:
            r.annotation("Optimizer.zero_grad#SGD.zero_grad", at + 450, at + 455)
        gradients(r, at + 500, [8, 9], devices)
        updates(r, at + 800, [8, 9])
    return r


def gradients(r, begin, sizes, devices):
    for number, size in enumerate(sizes):
        at = begin + 100 * number
        r.op(f"{FUNCTION}MmBackward0", at, at + 80)
        if devices != ():
            r.kernel("gemm", at + 10, at + 80, launched=(at + 2, at + 5))
        r.op(f"{FUNCTION}torch::autograd::AccumulateGrad", at + 80, at + 90)
        r.op("torch::autograd::AccumulateGrad", at + 82, at + 88, shapes=f"[[{size}]]")


def updates(r, begin, sizes):
    r.annotation("Optimizer.step#SGD.step", begin, begin + 40)
    r.op("aten::_foreach_add_", begin + 5, begin + 35, shapes=str([[[size] for size in sizes], []]))


def test_what_comes_behind_the_last_used_gradient_is_for_nothing(recording):
    r = adversarial(recording)
    finding = r.find("discarded-gradients")
    assert finding.lost_ns == 200_000  # from 190 to 390
    assert finding.evidence[-1] == (
        "2 gradients a step are cleared before an optimizer uses them, behind 1 that one does."
    )
    (change,) = r.prescribe("discarded-gradients")
    assert change.id == "detach-inputs"
    assert "fake.detach()" in change.after


def test_beside_a_device_it_is_the_kernels_of_the_end(recording):
    finding = adversarial(recording, devices="one").find("discarded-gradients")
    assert len(finding.tasks) == 6
    assert finding.lost_ns >= 140_000


@pytest.mark.parametrize("change", [{"detached": True}, {"cleared": False}])
def test_gradients_that_are_used(recording, change):
    assert adversarial(recording, **change).find("discarded-gradients") is None

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


@pytest.mark.parametrize(("updated", "found"), [([4], True), ([4, 8, 9], False)])
def test_layers_that_no_optimizer_has_are_frozen(recording, updated, found):
    r = recording(devices=())
    for step in range(3):
        at = 1000 * step
        r.step(step, at, at + 1000)
        gradients(r, at + 100, [4, 8, 9], ())
        updates(r, at + 600, updated)
    finding = r.find("discarded-gradients")
    assert (finding is not None) is found
    if found:
        assert finding.title == "The backward pass computes gradients of parameters that no optimizer updates"
        assert r.prescribe("discarded-gradients")[0].title.startswith("Freeze the layers")


@pytest.mark.parametrize(("forward", "found"), [(True, False), (False, True)])
def test_parts_of_a_batch_add_their_gradients_up(recording, forward, found):
    r = recording(devices=())
    for step in range(3):
        at = 1000 * step
        r.step(step, at, at + 1000)
        for part in range(2):
            if forward:
                r.op("aten::linear", at + 300 * part + 10, at + 300 * part + 80, sequence=10 * step + part)
            gradients(r, at + 300 * part + 100, [4, 8], ())
        updates(r, at + 700, [4, 8])
    assert (r.find("discarded-gradients") is not None) is found

"""uncached-generation: products with the same weights whose input grows by one position a call. Times in µs."""

import pytest


def generating(recording, *, lengths=(64, 65, 66, 67), weights="[32, 16]", devices=(), steps=2, trained=True):
    """Return steps of 1000 µs with a lookup of 20 and a product of 110 µs for each length, from 0 on, every 150."""
    r = recording(devices=devices) if devices == () else recording()
    for step in range(steps):
        at = 1000 * step
        r.step(step + 1, at, at + 1000)
        for call, length in enumerate(lengths):
            begin = at + 150 * call
            r.op("aten::embedding", begin, begin + 20, shapes=f"[[100, 16], [4, {length}]]")
            r.op("aten::linear", begin + 30, begin + 140, shapes=f"[[4, {length}, 16], {weights}]")
            if devices != ():
                r.kernel("gemm", begin + 40, begin + 140, launched=(begin + 31, begin + 35))
            r.op("aten::argmax", begin + 142, begin + 148, shapes="[[4, 32]]")
        if trained:
            r.op("autograd::engine::evaluate_function: MmBackward0", at + 900, at + 990)
    return r


def test_what_a_call_computes_of_positions_that_the_one_before_had(recording):
    finding = generating(recording).find("uncached-generation")
    again = [(10_000 + 100_000) * (1 - 1 / length) for length in (65, 66, 67)]  # 10 µs of each are the call
    assert finding.lost_ns == pytest.approx(sum(again), abs=10)
    assert finding.evidence[1] == ("4 calls per step have inputs of 64 to 67 positions, 1 more each time.")
    (change,) = generating(recording).prescribe("uncached-generation")
    assert change.id == "keep-keys"


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": (64, 64, 64, 64)},  # the same again
        {"lengths": (1, 1, 1, 1)},  # with a cache
        {"lengths": (64, 70, 71, 90)},  # batches of any length
        {"lengths": (64, 65, 66)},
    ],
)
def test_what_is_no_generation(recording, change):
    assert generating(recording, **change).find("uncached-generation") is None


def test_the_training_s_own_call_may_have_the_last_length_too(recording):
    r = generating(recording)
    for step in range(2):
        at = 1000 * step
        r.op("aten::embedding", at + 700, at + 720, shapes="[[100, 16], [4, 67]]")
        r.op("aten::linear", at + 730, at + 840, shapes="[[4, 67, 16], [32, 16]]")
    finding = r.find("uncached-generation")
    assert finding.lost_ns == pytest.approx(sum(110_000 * (1 - 1 / length) for length in (65, 66, 67)), abs=10)


def test_beside_a_device_kernels_take_less_and_are_as_many(recording):
    r = generating(recording, devices="one")
    finding = r.find("uncached-generation")
    assert len(finding.tasks) == 6
    assert finding.lost_ns == pytest.approx(sum(100_000 * (1 - 1 / length) for length in (65, 66, 67)), rel=1e-3)
    assert r.booked().get("uncached-generation", 0) == 0


@pytest.mark.parametrize("joined", [True, False])
def test_where_each_step_is_a_token_the_input_must_be_made_of_the_one_before(recording, joined):
    r = recording(devices=())
    for step in range(10):
        at, length = 1000 * step, 64 + step
        r.step(step + 1, at, at + 1000)
        r.op("aten::linear", at, at + 800, shapes=f"[[4, {length}, 16], [32, 16]]")
        if joined:
            r.op("aten::cat", at + 900, at + 905, shapes=f"[[[4, {length}], [4, 1]], []]")
    assert (r.find("uncached-generation") is not None) is joined

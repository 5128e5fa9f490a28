"""subnormal-numbers: operators that are slow where a tensor holds subnormal numbers. Times in µs."""

import pytest

MASK = [{"name": "buffer decay", "shape": [2, 100, 100], "share": 0.04}]


def masked(recording, *, took=400, subnormals=MASK, devices=()):
    """Return two steps of 2000 µs: four products of 100 µs each, and one of a mask, of as many operations, of 400."""
    r = recording(devices=devices) if devices == () else recording()
    for step in range(2):
        at = 2000 * step
        r.step(step + 1, at, at + 2000)
        for i in range(4):
            r.op("aten::bmm", at + 110 * i, at + 110 * i + 100, shapes="[[2, 100, 50], [2, 50, 200]]")
        r.op("aten::matmul", at + 1000, at + 1010 + took, shapes="[[2, 100, 100], [2, 100, 100]]")
        r.op("aten::bmm", at + 1005, at + 1005 + took, shapes="[[2, 100, 100], [2, 100, 100]]")
        if devices != ():
            r.kernel("gemm", at + 100, at + 1900, launched=(at + 10, at + 20))
    r.with_info(subnormals=subnormals)
    return r


def test_what_products_of_such_a_tensor_take_longer_than_others(recording):
    r = masked(recording)
    finding = r.find("subnormal-numbers")
    assert finding.lost_ns == pytest.approx(300_000, abs=10)
    assert finding.confidence == "medium"
    assert finding.evidence[1] == "Share of subnormal numbers: buffer decay (2 × 100 × 100): 4.0 %."
    (change,) = r.prescribe("subnormal-numbers")
    assert change.id == "flush-subnormals"


@pytest.mark.parametrize(
    "change",
    [
        {"subnormals": []},  # it may be slow for anything
        {"subnormals": [{"name": "buffer decay", "shape": [2, 50, 70], "share": 0.04}]},  # not of this shape
        {"took": 150},
        {"devices": "one"},
    ],
)
def test_what_is_slow_for_something_else(recording, change):
    assert masked(recording, **change).find("subnormal-numbers") is None

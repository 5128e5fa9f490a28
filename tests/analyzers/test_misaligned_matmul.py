"""misaligned-matmul: products whose sizes are no multiple of 16 bytes."""

import pytest

from diagnose.model.events import Device

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))
BF16 = '["c10::BFloat16", "c10::BFloat16"]'
# 2 · 1000 · 1560 · 10001 operations take 100 µs at 312 TFLOP/s
ODD = "[[1000, 1560], [1560, 10001]]"


def multiplying(recording, took=500, *, shapes=ODD, types=BF16, name="cutlass_16816_align1"):
    r = recording(devices=[A100])
    r.step(1, 0, 1000)
    r.op("aten::mm", -30, -10, shapes=shapes, types=types)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("other", took, 1000, launched=(-5, -2))
    return r


def test_an_odd_size(recording):
    r = multiplying(recording)
    finding = r.find("misaligned-matmul")
    assert finding.lost_ns == pytest.approx(500_000 - 100_010 / 0.6, rel=1e-3)
    assert "10001 is not a multiple of 8; 62 TFLOP/s of 312 TFLOP/s" in finding.evidence[1]
    [p] = r.prescribe("misaligned-matmul")
    assert p.title == "Use 10048 instead of 10001: a size that fits the tiles"
    assert [f.rule for f in r.diagnosis().findings] == ["misaligned-matmul"]  # each piece of time counts once


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": "[[1000, 1560], [1560, 10000]]"},
        {"shapes": "[[1000, 1560], [1560, 1]]"},  # a vector
        {"took": 200},  # half of the peak
        {"types": '["float", "float"]', "name": "sgemm"},  # full precision has its own rule
    ],
)
def test_what_fits(recording, change):
    assert multiplying(recording, **change).find("misaligned-matmul") is None

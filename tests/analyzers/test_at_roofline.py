"""at-roofline: the heavy kernels run near the peak, and that is said plainly."""

import pytest

from diagnose.model.events import Device

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))
# 2 · 1000 · 1560 · 10000 operations take 100 µs at 312 TFLOP/s
PRODUCT = {"shapes": "[[1000, 1560], [1560, 10000]]", "types": '["c10::BFloat16", "c10::BFloat16"]'}


def multiplying(recording, took=125, rest=25, *, idle=0, device=A100):
    r = recording(devices=[device])
    r.step(1, 0, took + rest + idle)
    r.op("aten::mm", -30, -10, **PRODUCT)
    r.kernel("gemm_bf16", 0, took, launched=(-20, -15))
    r.kernel("other", took, took + rest, launched=(-5, -2))
    return r


def test_four_fifths_of_the_peak(recording):
    r = multiplying(recording)
    finding = r.find("at-roofline")
    assert finding.lost_ns == 0
    assert finding.title == "The heavy kernels run at 80 % of what the device can do: little to gain there"
    assert finding.confidence == "high"
    assert r.prescribe("at-roofline") == []
    assert r.diagnosis().dominant is None  # what is near its peak is no waste


@pytest.mark.parametrize(
    "change", [{"took": 170}, {"rest": 90}, {"idle": 60}, {"device": Device(0, "Some GPU", 40 << 30, 108, (8, 0))}]
)
def test_when_it_is_not_said(recording, change):
    assert multiplying(recording, **change).find("at-roofline") is None

"""slow-kernel: heavy kernels below 40 % of the device's peak."""

import json

import pytest

from diagnose.model.events import Device
from diagnose.reports.text import render

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))
BF16 = '["c10::BFloat16", "c10::BFloat16"]'
# 2 · 1000 · 1560 · 10000 operations take 100 µs at 312 TFLOP/s
PRODUCT = "[[1000, 1560], [1560, 10000]]"
# 3 · 4 · 12,958,333 bytes take 100 µs at 1555 GB/s
SUM = "[[12958333], [12958333]]"


def multiplying(recording, took=500, *, op="aten::mm", shapes=PRODUCT, types=BF16, device=A100, name="gemm_bf16"):
    """Return a step of 1000 busy µs with ``took`` of them in one operator."""
    r = recording(devices=[device])
    r.step(1, 0, 1000)
    r.op(op, -30, -10, shapes=shapes, types=types)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("other", took, 1000, launched=(-5, -2))
    return r


def test_a_product_at_a_fifth_of_the_peak(recording):
    r = multiplying(recording)
    finding = r.find("slow-kernel")
    # 500 µs for 100 µs at the peak, 166.7 µs at 60 % of it
    assert finding.lost_ns == pytest.approx(500_000 - 100_000 / 0.6)
    assert (finding.count, finding.total_ns) == (1, 500_000)
    assert finding.title == "Heavy kernels run at 20 % of what the device can do"
    assert "62 TFLOP/s of 312 TFLOP/s, 500 µs a step in gemm_bf16" in finding.evidence[2]
    assert "NVIDIA A100 data sheet" in finding.evidence[1]
    assert finding.where[0].op == "aten::mm"
    d = r.diagnosis()
    assert [(f.rule, f.worth_ns) for f in d.findings] == [("slow-kernel", 0.0)]  # only a trial shows what helps


@pytest.mark.parametrize(("took", "fires"), [(249, False), (251, True)])
def test_two_fifths_of_the_peak(recording, took, fires):
    assert (multiplying(recording, took).find("slow-kernel") is not None) == fires


def test_a_sum_is_held_against_the_bandwidth(recording):
    r = multiplying(recording, op="aten::add", shapes=SUM, types='["float", "float"]', name="elementwise")
    finding = r.find("slow-kernel")
    assert finding.lost_ns == pytest.approx(500_000 - 100_000 / 0.8, rel=1e-3)
    assert "311 GB/s of 1555 GB/s" in finding.evidence[2]


@pytest.mark.parametrize(
    "change",
    [
        {"device": Device(0, "Some GPU", 40 << 30, 108, (8, 0))},
        {"device": Device(7, "NVIDIA H100 PCIe", 80 << 30, 1, (9, 0))},
        {"op": "my::op"},
        {"types": '["double", "double"]'},
        {"types": '["float", "float"]'},  # full-precision-matmul speaks
        {"took": 99},  # less than a tenth of the busy time
    ],
)
def test_what_is_not_known_is_not_said(recording, change):
    assert multiplying(recording, **change).find("slow-kernel") is None


def test_float32_products_without_tensor_cores_are_judged(recording):
    pascal = Device(0, "Quadro GP100", 16 << 30, 56, (6, 0))
    # 31.2e9 operations take 3029 µs at 10.3 TFLOP/s; a hundredth of them 30 µs
    small = "[[1000, 156], [156, 1000]]"
    assert multiplying(recording, shapes=small, types='["float", "float"]', device=pascal).find("slow-kernel")


def test_short_kernels_are_not_judged(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 1000)
    for i in range(50):
        r.op("aten::mm", 20 * i, 20 * i + 9, shapes="[[8, 8], [8, 8]]", types=BF16)
        r.kernel("gemm", 20 * i + 5, 20 * i + 24, launched=(20 * i + 1, 20 * i + 2))
    assert r.find("slow-kernel") is None


def test_attention_is_tried_in_another_backend(recording):
    r = multiplying(
        recording,
        op="aten::_flash_attention_forward",
        shapes="[[1, 1024, 8, 64], [1, 1024, 8, 64], [1, 1024, 8, 64]]",
        types='["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]',
    )
    (p,) = r.prescribe("slow-kernel")
    assert p.id == "other-attention"
    assert "sdpa_kernel" in p.after


def test_a_search_chooses_the_kernels(recording):
    (p,) = multiplying(recording).prescribe("slow-kernel")
    assert p.id == "autotune-kernels"
    assert p.saves_ns == pytest.approx((0, 500_000 - 100_000 / 0.6))


def test_the_operations_of_a_step_against_the_peak(recording):
    # 2 · 1000 · 1560 · 10000 operations, 100 µs at 312 TFLOP/s, in a step of 1000 µs
    diagnosis = multiplying(recording).diagnosis()
    flops = diagnosis.flops
    assert flops.share == pytest.approx(0.1)
    assert flops.flop_per_step == pytest.approx(31.2e9)
    assert flops.tflops == pytest.approx(31.2)
    assert flops.known_share == pytest.approx(0.5)  # the other half of the compute time is a kernel without an operator
    assert json.loads(diagnosis.to_json())["flops"] == {
        "mfu": pytest.approx(0.1), "tflop_per_step": pytest.approx(0.0312), "tflop_per_s": pytest.approx(31.2),
        "known_share": pytest.approx(0.5), "device": "A100 40GB",
    }  # fmt: skip
    line = "MFU 10.0 %: 31.2 TFLOP/s over the step, of the A100 40GB's 16-bit dense peak; counted for 50.0 % of its"
    line += " compute time"
    assert line in render(diagnosis, width=120)
    assert line.replace("'", "&#39;") in diagnosis.to_html() or "roofline" not in diagnosis.to_html()


def test_an_unknown_device_has_no_utilisation(recording):
    r = multiplying(recording, device=Device(0, "Some GPU", 40 << 30, 108, (8, 0)))
    assert r.diagnosis().flops is None

"""Prescriptions whose effect follows from a model of the device, replayed."""

import pytest

from diagnose.findings import Finding
from diagnose.replay import simulate
from diagnose.replay.build import build
from diagnose.replay.models import HALVED, REACHED, effect_of
from diagnose.trace import Device

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))


def length(t, change=None):
    graph = build(t)
    return simulate(change(graph) if change else graph).window_ns


def test_float32_products_take_what_the_next_precision_leaves_them(recording):
    # 2 · 2000 · 1950 · 10000 operations: 4 ms at 19.5 TFLOP/s, 0.5 ms at TF32's 156, 0.25 ms at bfloat16's 312
    r = recording(devices=[A100])
    r.step(1, 0, 10)  # the host is done long before the device
    r.op("aten::mm", 0, 3, shapes="[[2000, 1950], [1950, 10000]]", types='["float", "float"]')
    r.kernel("ampere_sgemm_128x64_nn", 0, 4000, launched=(1, 2))
    t = r.tables()
    finding = Finding("full-precision-matmul", "", 3_900_000)
    t.blame("full-precision-matmul", t.tasks.row * 0)
    for identity, best in (("allow-tf32", 500_000), ("autocast", 250_000)):
        effect = effect_of(t, finding, identity, (0.4, 1.0))
        assert length(t, effect.least) == pytest.approx(best / REACHED[0], rel=0.02)
        assert length(t, effect.most) == pytest.approx(best / REACHED[1], rel=0.02)
        assert effect.assumes.startswith("100% of the float32 products")


def test_without_shapes_a_share_of_the_cause_goes(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 10)
    r.kernel("ampere_sgemm_128x64_nn", 0, 1000, launched=(1, 2))
    t = r.tables()
    t.blame("full-precision-matmul", t.tasks.row * 0)
    effect = effect_of(t, Finding("full-precision-matmul", "", 500_000), "allow-tf32", (0.4, 1.0))
    assert (length(t, effect.least), length(t, effect.most)) == pytest.approx((800_000, 500_000))
    assert effect.assumes == "The change takes between 40% and 100% of the cause away."


def test_sixteen_bits_spare_bytes_but_no_latency(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 10)
    r.kernel("gemm", 0, 580, launched=(1, 2))
    r.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 580, 1000, launched=(3, 4))
    t = r.tables()
    effect = effect_of(t, Finding("exposed-communication", "", 420_000), "compress-gradients", (0.2, 0.5))
    # 420 µs of which 20 are latency
    assert length(t, effect.least) == pytest.approx(1_000_000 - HALVED[0] * 400_000)
    assert length(t, effect.most) == pytest.approx(1_000_000 - HALVED[1] * 400_000)


def test_copies_ahead_hold_nothing_up(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 10)
    r.copy("Memcpy HtoD (Pageable -> Device)", 0, 400, size=1000, launched=(1, 2))
    r.kernel("gemm", 400, 900, launched=(3, 4))
    r.copy("Memcpy DtoH (Device -> Pageable)", 900, 1000, size=1000, launched=(5, 6))
    t = r.tables()
    effect = effect_of(t, Finding("exposed-copy", "", 500_000), "prefetch-to-device", (0.5, 1.0))
    assert length(t, effect.most) == pytest.approx(603_000)  # from its launch on; the copy to the host stays
    assert length(t, effect.least) == pytest.approx(640_000)


def test_no_change_saves_more_than_its_finding_costs(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 10)
    r.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 1000, launched=(3, 4))
    effect = effect_of(r.tables(), Finding("exposed-communication", "", 100_000), "compress-gradients", (0.2, 0.5))
    assert effect.most_ns == 100_000

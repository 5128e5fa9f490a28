"""scatter-atomics: additions at indices far below the bandwidth."""

import pytest

from diagnose.model.events import Device

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))
KERNEL = "void at::native::indexing_backward_kernel<float, 4>"
# 3 · 4 · 6,000,000 bytes of values and 8 · 62,500 of indices take 46.6 µs at 1555 GB/s
SHAPES = "[[50000, 96], [[62500]], [62500, 96], [], []]"
TYPES = '["float", "TensorList", "float", "Scalar", "Scalar"]'


def scattering(recording, took=500, *, name=KERNEL, shapes=SHAPES, op="aten::_index_put_impl_"):
    r = recording(devices=[A100])
    r.step(1, 0, 1000)
    r.op(op, -30, -10, shapes=shapes, types=TYPES)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("gemm", took, 1000, launched=(-5, -2))
    return r


def test_the_backward_of_indexing(recording):
    r = scattering(recording)
    finding = r.find("scatter-atomics")
    assert finding.lost_ns == pytest.approx(500_000 - (72_000_000 + 500_000) / 1555 / 0.5, rel=1e-3)
    assert (finding.count, finding.confidence) == (1, "medium")
    assert "145 GB/s" in finding.evidence[1]
    assert [p.id for p in r.prescribe("scatter-atomics")] == ["embedding-lookup"]


@pytest.mark.parametrize(
    "change",
    [
        {"took": 90},  # at half of the bandwidth, and less than a tenth of the busy time
        {"shapes": "[]"},
        {"op": "aten::add"},
        {"name": "radixSortKVInPlace"},
    ],
)
def test_what_does_not_collide(recording, change):
    assert scattering(recording, **change).find("scatter-atomics") is None

"""scatter-atomics: additions at indices far below the bandwidth."""

import pytest

from diagnose.model.events import Device

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))
KERNEL = "void at::native::indexing_backward_kernel<float, 4>"
# 3 · 4 · 6,000,000 bytes of values and 8 · 62,500 of indices take 46.6 µs at 1555 GB/s
SHAPES = "[[50000, 96], [[62500]], [62500, 96], [], []]"
TYPES = '["float", "TensorList", "float", "Scalar", "Scalar"]'

ADDED, ADDED_TYPES = "[[500, 96], [], [62500], [62500, 96], []]", '["float", "Scalar", "long", "float", "Scalar"]'


def scattering(recording, took=500, *, name=KERNEL, shapes=SHAPES, types=TYPES, op="aten::_index_put_impl_"):
    r = recording(devices=[A100])
    r.step(1, 0, 1000)
    r.op(op, -30, -10, shapes=shapes, types=types)
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


def test_what_atomics_take_beside_it_is_no_part_of_what_a_lookup_saves(recording):
    """`index_select` adds its rows by `index_add`, and stays as it is when `table[ids]` becomes `F.embedding`."""
    r = scattering(recording)
    r.op("aten::index_add_", -9, -6, shapes=ADDED, types=ADDED_TYPES)
    r.kernel("indexFuncLargeIndex", 1000, 1300, launched=(-8, -7))
    assert r.find("scatter-atomics").count == 1
    (change,) = r.prescribe("scatter-atomics")
    assert change.saves_ns[1] < 500_000


def test_a_lookup_is_no_change_of_atomics(recording):
    r = scattering(recording, name="indexFuncLargeIndex", op="aten::index_add_", shapes=ADDED, types=ADDED_TYPES)
    assert r.find("scatter-atomics").count == 1
    assert not r.prescribe("scatter-atomics")

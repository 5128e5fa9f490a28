"""small-grid: long kernels with fewer blocks than half of the multiprocessors."""

import pytest

from diagnose.model.events import Device

A100 = Device(0, "NVIDIA A100", 80 << 30, 108, (8, 0))


def narrow(recording, grid=27, took=400, *, device=A100, beside=False, name="reduce_kernel"):
    r = recording(devices=[device])
    r.step(1, 0, 1000)
    r.kernel(name, 0, took, launched=(-20, -15), grid=grid)
    r.kernel("gemm", took, 1000, launched=(-5, -2), grid=1000)
    if beside:
        r.kernel("gemm", 0, took, launched=(-25, -22), stream=9, grid=1000)
    return r


def test_a_quarter_of_the_device(recording):
    r = narrow(recording)
    finding = r.find("small-grid")
    assert finding.lost_ns == pytest.approx(400_000 * 0.75)  # 27 of 108 multiprocessors work
    assert finding.evidence[1] == "reduce_kernel: 27 blocks for 108 multiprocessors, 0.400 ms."
    assert [p.id for p in r.prescribe("small-grid")] == ["fill-the-device"]


@pytest.mark.parametrize(
    "change",
    [
        {"grid": 54},  # half of them
        {"grid": -1},  # not recorded
        {"took": 90},  # less than a tenth of the busy time
        {"device": Device(0, "", 0, 0, (0, 0))},
        {"beside": True},  # another stream fills the rest
        {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"},
        {"name": "_combine_all_to_all_kernel"},  # experts' exchange: few blocks on purpose too
    ],
)
def test_what_is_not_small(recording, change):
    assert narrow(recording, **change).find("small-grid") is None


def test_short_kernels_do_not_count(recording):
    r = recording(devices=[A100])
    r.step(1, 0, 1000)
    for i in range(50):
        r.kernel("reduce_kernel", 20 * i, 20 * i + 19, launched=(-200 + i, -199.5 + i), grid=1)
    assert r.find("small-grid") is None

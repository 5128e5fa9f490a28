"""pcie-bound: copies at the link's rate take longer than everything else."""

import pytest

from diagnose.model.events import Device

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))  # PCIe 4: 31.5 GB/s


def copying(recording, *, size=15_000_000, took=600, name="Memcpy HtoD (Pinned -> Device)", device=A100):
    """Return a step of 1000 µs: a copy of ``took`` beside 300 µs of kernels."""
    r = recording(devices=[device])
    r.step(1, 0, 1000)
    r.copy(name, 0, took, size=size, launched=(-30, -25), stream=9)
    r.kernel("gemm", 700, 1000, launched=(-20, -15))
    return r


def test_copies_at_four_fifths_of_the_link(recording):
    r = copying(recording)
    finding = r.find("pcie-bound")
    assert finding.lost_ns == pytest.approx(300_000)  # 600 µs of copies, 300 µs of kernels
    assert "15.0 MB per step at 25.0 GB/s of 31.5 GB/s" in finding.evidence[0]
    assert [p.id for p in r.prescribe("pcie-bound")] == ["send-less"]


@pytest.mark.parametrize(
    "change",
    [
        {"size": 9_000_000},  # 15 GB/s: pageable memory is the limit, not the link
        {"took": 290, "size": 7_000_000},  # could hide behind the kernels
        {"name": "Memcpy DtoD (Device -> Device)"},
        {"device": Device(0, "Unheard of", 40 << 30, 108, (8, 0))},
        {"size": -1},
    ],
)
def test_what_the_link_does_not_limit(recording, change):
    assert copying(recording, **change).find("pcie-bound") is None

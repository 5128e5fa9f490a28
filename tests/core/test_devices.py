"""Peak rates by a device's name."""

import pytest

from diagnose.devices import _TABLE, peak_of
from diagnose.trace import Device

GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "gib", "sms", "found"),
    [
        ("Tesla V100-SXM2-32GB", 32, 80, "V100 SXM2"),
        ("Tesla V100-PCIE-16GB", 16, 80, "V100 PCIe"),
        ("Quadro GP100", 16, 56, "Quadro GP100"),
        ("Tesla T4", 15, 40, "T4"),
        ("NVIDIA A10", 22, 72, "A10"),
        ("NVIDIA A100-SXM4-40GB", 39, 108, "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", 79, 108, "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", 79, 108, "A100 80GB PCIe"),
        ("NVIDIA GeForce RTX 2080 Ti", 11, 68, "RTX 2080 Ti"),
        ("NVIDIA GeForce RTX 3060", 12, 28, "RTX 3060"),
        ("NVIDIA GeForce RTX 3060 Ti", 8, 38, "RTX 3060 Ti"),
        ("NVIDIA GeForce RTX 4090", 24, 128, "RTX 4090"),
        ("NVIDIA GeForce RTX 5090", 32, 170, "RTX 5090"),
        ("NVIDIA L4", 22, 58, "L4"),
        ("NVIDIA L40S", 44, 142, "L40S"),
        ("NVIDIA H100 80GB HBM3", 79, 132, "H100 SXM"),
        ("NVIDIA H100 PCIe", 79, 114, "H100 PCIe"),
        ("NVIDIA H200", 139, 132, "H200"),
        ("NVIDIA B200", 179, 148, "B200"),
        ("AMD Instinct MI250X", 64, 110, "MI250X, one die"),
        ("AMD Instinct MI300X", 192, 304, "MI300X"),
        ("AMD Instinct MI355X", 288, 256, "MI355X"),
    ],
)
def test_known_devices(name, gib, sms, found):
    assert peak_of(Device(0, name, gib * GIB, sms)).name == found


@pytest.mark.parametrize(
    ("name", "sms"),
    [
        ("", 304),
        ("AMD Radeon Graphics", 104),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14),
        ("NVIDIA A100-SXM4-40GB", 14),
        ("NVIDIA GeForce RTX 3070 Laptop GPU", 40),
        ("NVIDIA GeForce RTX 2070 SUPER", 40),
        ("NVIDIA GeForce RTX 4090 D", 114),
        ("NVIDIA A10G", 80),
        ("NVIDIA GB200", 148),
        ("NVIDIA RTX A1000", 16),
    ],
)
def test_a_device_that_is_not_certain_is_not_guessed(name, sms):
    assert peak_of(Device(0, name, 40 * GIB, sms)) is None


def test_the_limits_are_whole():
    for _, _, peak in _TABLE:
        assert peak.source, peak.name
        assert min(peak.fp32, peak.f16, peak.bandwidth, peak.num_sms) > 0, peak.name
        assert peak.fp32 < peak.f16, peak.name
        assert not peak.tf32 or peak.fp32 <= peak.tf32 < peak.f16, peak.name
        assert not peak.fp8 or peak.fp8 == pytest.approx(2 * peak.f16, rel=0.02), peak.name
    by_name = {peak.name: peak for _, _, peak in _TABLE}
    assert by_name["H100 SXM"].rate("f16") == 989e12
    assert by_name["T4"].rate("fp8") == 0

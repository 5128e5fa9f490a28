"""Peak rates by a device's name."""

import pytest

from diagnose.model.events import Device
from diagnose.perf_model.gpu_specs import _TABLE, spec_of

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
        ("NVIDIA GeForce RTX 2070 SUPER", 8, 40, "RTX 2070 SUPER"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 16, 66, "RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 4070 SUPER", 12, 56, "RTX 4070 SUPER"),
        ("nvidia geforce  rtx 4070", 12, 46, "RTX 4070"),
        ("NVIDIA RTX A6000", 48, 84, "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", 48, 142, "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 96, 188, "RTX PRO 6000 Blackwell"),
        ("Quadro RTX 8000", 48, 72, "Quadro RTX 6000 or 8000"),
        ("NVIDIA L4", 22, 58, "L4"),
        ("NVIDIA L40S", 44, 142, "L40S"),
        ("NVIDIA H100 80GB HBM3", 79, 132, "H100 SXM"),
        ("NVIDIA H100 PCIe", 79, 114, "H100 PCIe"),
        ("NVIDIA H100 NVL", 94, 132, "H100 NVL"),
        ("NVIDIA GH200 480GB", 95, 132, "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", 142, 132, "GH200 144GB"),
        ("NVIDIA A100-PG509-200", 39, 108, "A100 40GB"),
        ("NVIDIA A800-SXM4-80GB", 79, 108, "A100 80GB SXM"),
        ("NVIDIA H200", 139, 132, "H200"),
        ("NVIDIA B200", 179, 148, "B200"),
        ("AMD Instinct MI250X", 64, 110, "MI250X, one die"),
        ("AMD Instinct MI300X", 192, 304, "MI300X"),
        ("AMD Instinct MI355X", 288, 256, "MI355X"),
    ],
)
def test_known_devices(name, gib, sms, found):
    assert spec_of(Device(0, name, gib * GIB, sms)).name == found


@pytest.mark.parametrize(
    ("name", "sms"),
    [
        ("", 304),
        ("AMD Radeon Graphics", 104),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14),
        ("NVIDIA A100-SXM4-40GB", 14),
        ("NVIDIA GeForce RTX 3070 Laptop GPU", 40),
        ("NVIDIA GeForce RTX 2070 SUPER", 36),
        ("NVIDIA GeForce RTX 4070 Max-Q", 46),
        ("NVIDIA GeForce RTX 3080", 70),  # the one with 12 GB
        ("NVIDIA A100-10C", 108),
        ("GRID A100X-40C", 108),
        ("NVIDIA GeForce RTX 4090 D", 114),
        ("NVIDIA A10G", 80),
        ("NVIDIA GB200", 148),
        ("NVIDIA RTX A1000", 16),
    ],
)
def test_a_device_that_is_not_certain_is_not_guessed(name, sms):
    assert spec_of(Device(0, name, 40 * GIB, sms)) is None


# Operations that a unit of each generation does in a clock: float32, and 16-bit with float32 accumulation (dense).
PER_CLOCK = {
    "Pascal": (128, 256),
    "Volta": (128, 1024),
    "Turing": (128, 1024),
    "Turing GeForce": (128, 512),
    "A100": (128, 2048),
    "GA10x and AD10x": (256, 1024),
    "GeForce": (256, 512),
    "Hopper": (256, 4096),
    "B200": (256, 8192),
    "CDNA 1 and 2": (256, 1024),
    "CDNA 3": (256, 2048),
    "CDNA 4": (256, 4096),
}
PEAKS = [peak for _, _, peak in _TABLE]


def generation(name: str) -> str:
    words = {
        "P100": "Pascal", "GP100": "Pascal", "V100": "Volta", "TITAN V": "Volta", "T4": "Turing",
        "Quadro RTX": "Turing", "TITAN RTX": "Turing", "RTX 20": "Turing GeForce", "RTX 30": "GeForce",
        "A30": "A100", "A100": "A100", "H100": "Hopper", "H200": "Hopper", "B200": "B200",
        "MI1": "CDNA 1 and 2", "MI2": "CDNA 1 and 2",
        "MI300": "CDNA 3", "MI32": "CDNA 3", "MI35": "CDNA 4",
    }  # fmt: skip
    for word, found in words.items():
        if word in name:
            return found
    return "GeForce" if name.startswith(("RTX 4", "RTX 5")) and "Ada" not in name else "GA10x and AD10x"


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name)
def test_the_rates_follow_from_units_and_a_clock(peak):
    fp32, f16 = PER_CLOCK[generation(peak.name)]
    clock = peak.fp32 * 1e3 / peak.num_sms / fp32
    assert 1.2 < clock < 2.7, "GHz: the boost clocks of all these devices"
    # Data sheets of Hopper and Blackwell take a lower clock for tensor cores: H100's is 1.83 GHz beside 1.98.
    assert 0.83 < peak.f16 * 1e3 / peak.num_sms / f16 / clock < 1.02


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name)
def test_the_limits_are_whole(peak):
    assert peak.source
    assert min(peak.fp32, peak.f16, peak.bandwidth, peak.num_sms, peak.l2_mb, peak.pcie) > 0
    assert peak.fp32 < peak.f16
    assert not peak.tf32 or peak.fp32 <= peak.tf32 < peak.f16
    assert not peak.fp8 or peak.fp8 == pytest.approx(2 * peak.f16, rel=0.02)
    assert 20 < peak.f16 * 1e3 / peak.bandwidth < 500


def test_names_are_told_apart():
    assert len({peak.name for peak in PEAKS}) == len(PEAKS)


def test_rates_in_operations_a_second():
    by_name = {peak.name: peak for peak in PEAKS}
    assert by_name["H100 SXM"].rate("f16") == 989e12
    assert by_name["T4"].rate("fp8") == 0

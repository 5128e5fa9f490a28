"""What a GPU can do at best: dense peak rates by precision and memory bandwidth, as its maker's data sheet states them.

Rates are 1e12 operations a second without sparsity; for GeForce cards those with float32 accumulation, which is what
PyTorch's products use. Bandwidth is 1e9 bytes a second. Zero where the device has no such units.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diagnose.trace import Device

__all__ = ["Peak", "Precision", "peak_of"]

Precision: TypeAlias = Literal["fp32", "tf32", "f16", "fp8"]


@dataclass(frozen=True, slots=True)
class Peak:
    """One device's limits; one of two dies where the maker sells a pair as one board but each is a device."""

    name: str
    fp32: float
    tf32: float
    f16: float  # float16 and bfloat16
    fp8: float
    bandwidth: float
    num_sms: int
    source: str

    def rate(self, precision: Precision) -> float:
        """Return the peak rate of a precision in operations a second, 0 where the device has none."""
        tera: float = {"fp32": self.fp32, "tf32": self.tf32, "f16": self.f16, "fp8": self.fp8}[precision]
        return tera * 1e12


_NV = "NVIDIA {} data sheet"
_TURING = "NVIDIA Turing GPU architecture white paper"
_AMPERE = "NVIDIA Ampere GA102 GPU architecture white paper"
_ADA = "NVIDIA Ada GPU architecture white paper"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture white paper"
_AMD = "AMD Instinct {} data sheet"

# What the name must contain as whole words, the smallest memory in GiB for it, and the limits. First match wins.
_TABLE: tuple[tuple[str, int, Peak], ...] = (
    ("GP100", 0, Peak("Quadro GP100", 10.3, 0, 20.7, 0, 717, 56, _NV.format("Quadro GP100"))),
    ("V100-PCIE", 0, Peak("V100 PCIe", 14.0, 0, 112, 0, 900, 80, _NV.format("V100"))),
    ("V100-(SXM2|SXM3|DGXS)", 0, Peak("V100 SXM2", 15.7, 0, 125, 0, 900, 80, _NV.format("V100"))),
    ("T4", 0, Peak("T4", 8.1, 0, 65, 0, 320, 40, _NV.format("T4"))),
    ("A10", 0, Peak("A10", 31.2, 62.5, 125, 0, 600, 72, _NV.format("A10"))),
    ("A30", 0, Peak("A30", 10.3, 82, 165, 0, 933, 56, _NV.format("A30"))),
    ("A40", 0, Peak("A40", 37.4, 74.8, 149.7, 0, 696, 84, _NV.format("A40"))),
    ("A100.*PCIe", 60, Peak("A100 80GB PCIe", 19.5, 156, 312, 0, 1935, 108, _NV.format("A100 80GB"))),
    ("A100", 60, Peak("A100 80GB SXM", 19.5, 156, 312, 0, 2039, 108, _NV.format("A100 80GB"))),
    ("A100", 0, Peak("A100 40GB", 19.5, 156, 312, 0, 1555, 108, _NV.format("A100"))),
    ("RTX 2060", 0, Peak("RTX 2060", 6.5, 0, 25.8, 0, 336, 30, _TURING)),
    ("RTX 2070", 0, Peak("RTX 2070", 7.5, 0, 29.9, 0, 448, 36, _TURING)),
    ("RTX 2080 Ti", 0, Peak("RTX 2080 Ti", 13.4, 0, 53.8, 0, 616, 68, _TURING)),
    ("RTX 2080", 0, Peak("RTX 2080", 10.1, 0, 40.3, 0, 448, 46, _TURING)),
    ("RTX 3060 Ti", 0, Peak("RTX 3060 Ti", 16.2, 16.2, 32.4, 0, 448, 38, _AMPERE)),
    ("RTX 3060", 0, Peak("RTX 3060", 12.7, 12.7, 25.5, 0, 360, 28, "NVIDIA GeForce RTX 3060 product page, GA106")),
    ("RTX 3070", 0, Peak("RTX 3070", 20.3, 20.3, 40.6, 0, 448, 46, _AMPERE)),
    ("RTX 3080", 0, Peak("RTX 3080", 29.8, 29.8, 59.5, 0, 760, 68, _AMPERE)),
    ("RTX 3090", 0, Peak("RTX 3090", 35.6, 35.6, 71, 0, 936, 82, _AMPERE)),
    ("RTX 4070 Ti", 0, Peak("RTX 4070 Ti", 40.1, 40.1, 80.2, 160.4, 504, 60, _ADA)),
    ("RTX 4070", 0, Peak("RTX 4070", 29.1, 29.1, 58.3, 116.6, 504, 46, _ADA)),
    ("RTX 4080", 0, Peak("RTX 4080", 48.7, 48.7, 97.5, 194.9, 717, 76, _ADA)),
    ("RTX 4090", 0, Peak("RTX 4090", 82.6, 82.6, 165.2, 330.3, 1008, 128, _ADA)),
    ("RTX 5070 Ti", 0, Peak("RTX 5070 Ti", 43.9, 43.9, 87.9, 175.8, 896, 70, _BLACKWELL)),
    ("RTX 5070", 0, Peak("RTX 5070", 30.9, 30.9, 61.7, 123.5, 672, 48, _BLACKWELL)),
    ("RTX 5080", 0, Peak("RTX 5080", 56.3, 56.3, 112.6, 225.1, 960, 84, _BLACKWELL)),
    ("RTX 5090", 0, Peak("RTX 5090", 104.8, 104.8, 209.5, 419, 1792, 170, _BLACKWELL)),
    ("L4", 0, Peak("L4", 30.3, 60, 121, 242, 300, 58, _NV.format("L4"))),
    ("L40S", 0, Peak("L40S", 91.6, 183, 362, 733, 864, 142, _NV.format("L40S"))),
    ("H100 PCIe", 0, Peak("H100 PCIe", 51, 378, 756, 1513, 2000, 114, _NV.format("H100"))),
    ("H100.*HBM3", 0, Peak("H100 SXM", 67, 494, 989, 1979, 3350, 132, _NV.format("H100"))),
    ("H200", 0, Peak("H200", 67, 494, 989, 1979, 4800, 132, _NV.format("H200"))),
    ("B200", 0, Peak("B200", 75, 1100, 2250, 4500, 7700, 148, _NV.format("HGX B200"))),
    ("MI210", 0, Peak("MI210", 45.3, 0, 181, 0, 1638, 104, _AMD.format("MI210"))),
    ("MI250X", 0, Peak("MI250X, one die", 47.9, 0, 191.5, 0, 1638, 110, _AMD.format("MI250X"))),
    ("MI250", 0, Peak("MI250, one die", 45.3, 0, 181, 0, 1638, 104, _AMD.format("MI250"))),
    ("MI300X", 0, Peak("MI300X", 163.4, 653.7, 1307.4, 2614.9, 5300, 304, _AMD.format("MI300X"))),
    ("MI325X", 0, Peak("MI325X", 163.4, 653.7, 1307.4, 2614.9, 6000, 304, _AMD.format("MI325X"))),
    ("MI355X", 0, Peak("MI355X", 157.3, 0, 2516.6, 5033.2, 8000, 256, _AMD.format("MI355X"))),
)
# Cards that share a number with another one and have other limits, and slices of a device.
_OTHER_CARD = re.compile(
    r"Laptop|Max-Q|Mobile|SUPER|MIG|RTX \d{4}( Ti)? ?D\b|RTX 30[789]0 Ti|RTX 3080 12GB|Super|vGPU|GRID"
)


def peak_of(device: Device) -> Peak | None:
    """Return the limits of a device by its name, None where the name or the number of its units fits none."""
    if not device.name or _OTHER_CARD.search(device.name):
        return None
    for words, least_gib, peak in _TABLE:
        if device.memory_bytes >= least_gib << 30 and re.search(
            rf"(?<![A-Za-z0-9]){words}(?![A-Za-z0-9])", device.name
        ):
            # Fewer units than the sheet says are a slice of the device or another card of the same name.
            return peak if device.num_sms in (0, peak.num_sms) else None
    return None

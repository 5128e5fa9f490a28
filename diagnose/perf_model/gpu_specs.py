"""What a GPU can do at best: dense peak rates by precision, memory bandwidth and links, from data sheets.

Rates are 1e12 operations a second without sparsity; where a sheet gives only the rate with sparsity, half of it. For
GeForce cards they are those with float32 accumulation, which is what PyTorch's products use. ``fp32`` is the best rate
for float32 inputs without rounding them: of AMD's matrix cores where they take float32. ``bandwidth`` is 1e9 bytes a
second. Zero where the device has no such units.

How the rows were checked: the rates of A100, H100, L4 (sparse there), MI210 and MI300X against the device table of
torch 2.13 (torch/_inductor/analysis/device_info.py), which cites the data sheets; V100, T4 and H100 PCIe against
Lightning's; TF32, 16-bit and 8-bit rates and bandwidth of A100, H100, H200, B200, L40S, MI250X and MI300X against
stas00/ml-engineering; A40, L4, L40S and B200 against published comparison tables; MI325X's and MI355X's units,
memory and bandwidth against vendors' pages. The rates of all GeForce, RTX professional and remaining rows are
consistent with the published unit counts, boost clocks and operations per unit and clock of their generation, which a
test computes again; bandwidth, links and L2 sizes of those rows were not found a second time. Cards for which sources
differ (A10G, L40, H20, RTX 4000 Ada, GB200, B300) are left out: no rate is better than a wrong one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.events import Device

# Gradients of a backward in buckets of another size: when each bucket is full, and how long its reduction takes.

LATENCY_NS = 20_000  # of a collective, whatever it carries


def bandwidth_of(num_bytes: Floats, transfer: Floats) -> float:
    """Return the bytes per ns of collectives of these sizes that take so long, ns, of which one part is latency."""
    return float(np.median(num_bytes / np.maximum(transfer - LATENCY_NS, 1.0)))


def transfer_ns(num_bytes: float, rate: float) -> float:
    """Return what a collective of so many bytes takes at a rate in bytes per ns, once all members are there."""
    return LATENCY_NS + num_bytes / rate


def rebucketed(ready: Floats, num_bytes: Floats, begin: float, bucket_bytes: float) -> tuple[Floats, Floats]:
    """Return when each of the new buckets is full, and its bytes.

    Gradients become ready evenly between the moments at which the recorded buckets were.

    Args:
        ready: when the last gradient of each recorded bucket was ready, ns.
        num_bytes: of each recorded bucket.
        begin: when the first gradient was computed, ns.
        bucket_bytes: of the new buckets; the last one takes the rest.
    """
    filled = np.concatenate([[0.0], np.cumsum(num_bytes)])
    moments = np.maximum.accumulate(np.concatenate([[min(begin, float(ready[0]))], ready]))
    cuts = np.append(np.arange(bucket_bytes, filled[-1], bucket_bytes), filled[-1])
    return np.interp(cuts, filled, moments), np.diff(cuts, prepend=0.0)


Precision: TypeAlias = Literal["fp32", "tf32", "f16", "fp8"]


class GpuSpec(NamedTuple):
    """One device's limits; one of two dies where the maker sells a pair as one board but each is a device."""

    name: str
    fp32: float
    tf32: float
    f16: float  # float16 and bfloat16; on devices before Ampere float16 only
    fp8: float
    bandwidth: float
    num_sms: int  # or compute units
    source: str
    l2_mb: float = 0.0
    link: float = 0.0  # all links to other devices, both directions, 1e9 bytes a second
    pcie: float = 0.0  # to the host, one direction, 1e9 bytes a second

    def rate(self, precision: Precision) -> float:
        """Return the peak rate of a precision in operations a second, 0 where the device has none."""
        tera: float = {"fp32": self.fp32, "tf32": self.tf32, "f16": self.f16, "fp8": self.fp8}[precision]
        return tera * 1e12


_Row: TypeAlias = tuple[str, int, GpuSpec]


def _sheet(name: str) -> str:
    return f"{'AMD Instinct' if name.startswith('MI') else 'NVIDIA'} {name} data sheet"


_TURING = "NVIDIA Turing GPU architecture white paper"
_AMPERE = "NVIDIA Ampere GA102 GPU architecture white paper"
_ADA = "NVIDIA Ada GPU architecture white paper"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture white paper"
_PAGE = "NVIDIA product page"
_GEN3, _GEN4, _GEN5 = 15.8, 31.5, 63.0  # PCIe with 16 lanes, after line coding

# What the name must contain as whole words, the smallest memory in GiB for it, and the limits. First match wins.
_DATA_CENTER: tuple[_Row, ...] = (
    ("P100-SXM2", 0, GpuSpec("P100 SXM2", 10.6, 0, 21.2, 0, 732, 56, _sheet("P100"), 4, 160, _GEN3)),
    ("P100-PCIE", 15, GpuSpec("P100 PCIe", 9.3, 0, 18.7, 0, 732, 56, _sheet("P100"), 4, 0, _GEN3)),
    ("GP100", 0, GpuSpec("Quadro GP100", 10.3, 0, 20.7, 0, 717, 56, _sheet("Quadro GP100"), 4, 80, _GEN3)),
    ("V100S-PCIE", 0, GpuSpec("V100S PCIe", 16.4, 0, 130, 0, 1134, 80, _sheet("V100S"), 6, 0, _GEN3)),
    ("V100-PCIE", 0, GpuSpec("V100 PCIe", 14.0, 0, 112, 0, 900, 80, _sheet("V100"), 6, 0, _GEN3)),
    ("V100-(SXM2|SXM3|DGXS)", 0, GpuSpec("V100 SXM2", 15.7, 0, 125, 0, 900, 80, _sheet("V100"), 6, 300, _GEN3)),
    ("T4", 0, GpuSpec("T4", 8.1, 0, 65, 0, 320, 40, _sheet("T4"), 4, 0, _GEN3)),
    ("A2", 0, GpuSpec("A2", 4.5, 9, 18, 0, 200, 10, _sheet("A2"), 2, 0, _GEN4 / 2)),
    ("A10", 0, GpuSpec("A10", 31.2, 62.5, 125, 0, 600, 72, _sheet("A10"), 6, 0, _GEN4)),
    ("A30", 0, GpuSpec("A30", 10.3, 82, 165, 0, 933, 56, _sheet("A30"), 24, 200, _GEN4)),
    ("A40", 0, GpuSpec("A40", 37.4, 74.8, 149.7, 0, 696, 84, _sheet("A40"), 6, 112.5, _GEN4)),
    ("A[18]00.*PCIe", 60, GpuSpec("A100 80GB PCIe", 19.5, 156, 312, 0, 1935, 108, _sheet("A100 80GB"), 40, 600, _GEN4)),
    ("A[18]00", 60, GpuSpec("A100 80GB SXM", 19.5, 156, 312, 0, 2039, 108, _sheet("A100 80GB"), 40, 600, _GEN4)),
    ("A[18]00", 0, GpuSpec("A100 40GB", 19.5, 156, 312, 0, 1555, 108, _sheet("A100"), 40, 600, _GEN4)),
    ("L4", 0, GpuSpec("L4", 30.3, 60, 121, 242, 300, 58, _sheet("L4"), 48, 0, _GEN4)),
    ("L40S", 0, GpuSpec("L40S", 91.6, 183, 362, 733, 864, 142, _sheet("L40S"), 96, 0, _GEN4)),
    ("H100 NVL", 0, GpuSpec("H100 NVL", 60, 417, 835, 1671, 3900, 132, _sheet("H100"), 50, 600, _GEN5)),
    ("H100 PCIe", 0, GpuSpec("H100 PCIe", 51, 378, 756, 1513, 2000, 114, _sheet("H100"), 50, 600, _GEN5)),
    ("H100.*HBM3|H100.*SXM5", 0, GpuSpec("H100 SXM", 67, 494, 989, 1979, 3350, 132, _sheet("H100"), 50, 900, _GEN5)),
    ("GH200 144G HBM3e", 0, GpuSpec("GH200 144GB", 67, 494, 989, 1979, 4900, 132, _sheet("GH200"), 50, 900, 450)),
    ("GH200 480GB", 0, GpuSpec("GH200 96GB", 67, 494, 989, 1979, 4000, 132, _sheet("GH200"), 50, 900, 450)),
    ("H200 NVL", 0, GpuSpec("H200 NVL", 60, 417, 835, 1671, 4800, 132, _sheet("H200"), 50, 900, _GEN5)),
    ("H200", 0, GpuSpec("H200", 67, 494, 989, 1979, 4800, 132, _sheet("H200"), 50, 900, _GEN5)),
    ("B200", 0, GpuSpec("B200", 75, 1100, 2250, 4500, 7700, 148, _sheet("HGX B200"), 126, 1800, _GEN5)),
    ("MI100", 0, GpuSpec("MI100", 46.1, 0, 184.6, 0, 1229, 120, _sheet("MI100"), 8, 276, _GEN4)),
    ("MI210", 0, GpuSpec("MI210", 45.3, 0, 181, 0, 1638, 104, _sheet("MI210"), 8, 300, _GEN4)),
    ("MI250X", 0, GpuSpec("MI250X, one die", 47.9, 0, 191.5, 0, 1638, 110, _sheet("MI250X"), 8, 400, _GEN4)),
    ("MI250", 0, GpuSpec("MI250, one die", 45.3, 0, 181, 0, 1638, 104, _sheet("MI250"), 8, 300, _GEN4)),
    ("MI300A", 0, GpuSpec("MI300A", 122.6, 490.3, 980.6, 1961.2, 5300, 228, _sheet("MI300A"), 24, 768, _GEN5)),
    ("MI300X", 0, GpuSpec("MI300X", 163.4, 653.7, 1307.4, 2614.9, 5300, 304, _sheet("MI300X"), 32, 896, _GEN5)),
    ("MI325X", 0, GpuSpec("MI325X", 163.4, 653.7, 1307.4, 2614.9, 6000, 304, _sheet("MI325X"), 32, 896, _GEN5)),
    ("MI350X", 0, GpuSpec("MI350X", 144.2, 0, 2309.6, 4614, 8000, 256, _sheet("MI350X"), 32, 1075, _GEN5)),
    ("MI355X", 0, GpuSpec("MI355X", 157.3, 0, 2516.6, 5033.2, 8000, 256, _sheet("MI355X"), 32, 1075, _GEN5)),
)
_PROFESSIONAL: tuple[_Row, ...] = (
    ("Quadro RTX 5000", 0, GpuSpec("Quadro RTX 5000", 11.2, 0, 89.2, 0, 448, 48, _TURING, 4, 50, _GEN3)),
    ("Quadro RTX [68]000", 0, GpuSpec("Quadro RTX 6000 or 8000", 16.3, 0, 130.5, 0, 672, 72, _TURING, 6, 100, _GEN3)),
    ("TITAN RTX", 0, GpuSpec("TITAN RTX", 16.3, 0, 130.5, 0, 672, 72, _TURING, 6, 100, _GEN3)),
    ("TITAN V", 0, GpuSpec("TITAN V", 14.9, 0, 119.2, 0, 653, 80, _PAGE, 4.5, 0, _GEN3)),
    ("RTX A4000", 0, GpuSpec("RTX A4000", 19.2, 38.3, 76.7, 0, 448, 48, _sheet("RTX A4000"), 4, 0, _GEN4)),
    ("RTX A4500", 0, GpuSpec("RTX A4500", 23.7, 47.3, 94.6, 0, 640, 56, _sheet("RTX A4500"), 6, 112.5, _GEN4)),
    ("RTX A5000", 0, GpuSpec("RTX A5000", 27.8, 55.6, 111.1, 0, 768, 64, _sheet("RTX A5000"), 6, 112.5, _GEN4)),
    ("RTX A6000", 0, GpuSpec("RTX A6000", 38.7, 77.4, 154.8, 0, 768, 84, _sheet("RTX A6000"), 6, 112.5, _GEN4)),
    ("RTX 5000 Ada", 0, GpuSpec("RTX 5000 Ada", 65.3, 130.6, 261.1, 522.1, 576, 100, _ADA, 72, 0, _GEN4)),
    ("RTX 6000 Ada", 0, GpuSpec("RTX 6000 Ada", 91.1, 182.1, 364.2, 728.5, 960, 142, _ADA, 96, 0, _GEN4)),
    (
        "RTX PRO 6000 Blackwell Workstation",
        0,
        GpuSpec("RTX PRO 6000 Blackwell", 125, 250, 500, 1000, 1792, 188, _BLACKWELL, 128, 0, _GEN5),
    ),
)


# The same name and number of units with less memory is a card with a narrower bus.
_MIN_GIB = {"RTX 3060": 11}


# Source, rates of the tensor cores against fp32, PCIe; 16-bit products are added in float32 at half of the best rate.
_BY_SERIES = {
    20: (_TURING, 4, 0, 0, _GEN3),
    30: (_AMPERE, 2, 1, 0, _GEN4),
    40: (_ADA, 2, 1, 4, _GEN4),
    50: (_BLACKWELL, 2, 1, 4, _GEN5),
}
_GEFORCE: tuple[_Row, ...] = tuple(
    (
        name,
        _MIN_GIB.get(name, 0),
        GpuSpec(name, fp32, fp32 * tf32, fp32 * f16, fp32 * fp8, bandwidth, sms, source, l2_mb, 0, pcie),
    )
    for name, fp32, bandwidth, sms, l2_mb in (
        ("RTX 2060", 6.5, 336, 30, 3),
        ("RTX 2060 SUPER", 7.2, 448, 34, 4),
        ("RTX 2070", 7.5, 448, 36, 4),
        ("RTX 2070 SUPER", 9.1, 448, 40, 4),
        ("RTX 2080", 10.1, 448, 46, 4),
        ("RTX 2080 SUPER", 11.2, 496, 48, 4),
        ("RTX 2080 Ti", 13.4, 616, 68, 5.5),
        ("RTX 3050", 9.1, 224, 20, 2),
        ("RTX 3060", 12.7, 360, 28, 3),
        ("RTX 3060 Ti", 16.2, 448, 38, 4),
        ("RTX 3070", 20.3, 448, 46, 4),
        ("RTX 3070 Ti", 21.7, 608, 48, 4),
        ("RTX 3080", 29.8, 760, 68, 5),
        ("RTX 3080 Ti", 34.1, 912, 80, 6),
        ("RTX 3090", 35.6, 936, 82, 6),
        ("RTX 3090 Ti", 40.0, 1008, 84, 6),
        ("RTX 4060", 15.1, 272, 24, 24),
        ("RTX 4060 Ti", 22.1, 288, 34, 32),
        ("RTX 4070", 29.1, 504, 46, 36),
        ("RTX 4070 SUPER", 35.5, 504, 56, 48),
        ("RTX 4070 Ti", 40.1, 504, 60, 48),
        ("RTX 4070 Ti SUPER", 44.1, 672, 66, 48),
        ("RTX 4080", 48.7, 717, 76, 64),
        ("RTX 4080 SUPER", 52.2, 736, 80, 64),
        ("RTX 4090", 82.6, 1008, 128, 72),
        ("RTX 5060", 19.2, 448, 30, 32),
        ("RTX 5060 Ti", 23.7, 448, 36, 32),
        ("RTX 5070", 30.9, 672, 48, 48),
        ("RTX 5070 Ti", 43.9, 896, 70, 48),
        ("RTX 5080", 56.3, 960, 84, 64),
        ("RTX 5090", 104.8, 1792, 170, 96),
    )
    for source, f16, tf32, fp8, pcie in [_BY_SERIES[int(name[4:6])]]
)
# The longer of two names stands first: "RTX 4070 Ti SUPER" is no "RTX 4070".
_TABLE: tuple[_Row, ...] = (*_DATA_CENTER, *_PROFESSIONAL, *sorted(_GEFORCE, key=lambda row: -len(row[0])))
# Cards that share a name with another one and have other limits, and slices of a device.
_OTHER_CARD = r"(?i)Laptop|Max-Q|Mobile|MIG|RTX \d{4}( Ti)? ?D\b|RTX 3080 12GB|vGPU|GRID|-\d+[CQAB]$"


@lru_cache(maxsize=64)
def spec_of(device: Device) -> GpuSpec | None:
    """Return the limits of a device by its name, None where the name or the number of its units fits none."""
    name = " ".join(device.name.split())
    if not name or re.search(_OTHER_CARD, name):
        return None
    for words, least_gib, peak in _TABLE:
        # Compiling a pattern for each row takes far longer than to see that plain words are not there.
        is_plain = words.replace(" ", "").replace("-", "").isalnum()
        if device.memory_bytes < least_gib << 30 or (is_plain and words.lower() not in name.lower()):
            continue
        if re.search(rf"(?<![A-Za-z0-9])({words})(?![A-Za-z0-9])", name, re.IGNORECASE):
            # Fewer units than on the sheet are a slice of the device or another card of the same name.
            return peak if device.num_sms in (0, peak.num_sms) else None
    return None

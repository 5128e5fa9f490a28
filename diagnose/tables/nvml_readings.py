"""NVML's readings of the device while the steps ran; see ``diagnose.capture.record.nvml`` for the series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Ints, Mask
from diagnose.model.records import GpuReadings, ProcessRecord
from diagnose.tables import Tables

__all__ = ["ANY", "POWER", "SLOWED", "Clocks", "clocks_of", "gpu_rows", "other_processes", "slowed_by"]

IDLE = 0x01
POWER = 0x04
# Bits of NVML's reasons by which the device runs slower than it could, and their names in reports.
SLOWED: Mapping[int, str] = {
    POWER: "the power limit",
    0x08: "a hardware slowdown",
    0x20: "its temperature",
    0x40: "its temperature (hardware limit)",
    0x80: "the power brake",
}
ANY = sum(SLOWED)


class Clocks(NamedTuple):
    """Readings of one GPU while it was busy; parallel arrays."""

    mhz: Floats
    reasons: Ints
    most_mhz: float  # what the board allows

    @property
    def slowed(self) -> Mask:
        """Return which readings show a reason of SLOWED."""
        found: Mask = (self.reasons & ANY) != 0
        return found


def gpu_rows(t: Tables) -> tuple[GpuReadings, ...]:
    """Return what was recorded of each GPU, none without NVML."""
    return t.capture.info.nvml.gpus if t.capture.info else ()


def clocks_of(gpu: GpuReadings) -> Clocks | None:
    """Return the clocks of one GPU; None where the board reports none, or it was never busy."""
    working = [
        (mhz, reasons)
        for mhz, reasons, use in zip(gpu.sm_mhz, gpu.throttle_reasons, gpu.utilisation, strict=False)
        if mhz is not None and reasons is not None and use and not reasons & IDLE
    ]
    if not working or not gpu.max_sm_mhz:
        return None
    return Clocks(np.array([m for m, _ in working]), np.array([r for _, r in working], np.int64), gpu.max_sm_mhz)


def slowed_by(clocks: Clocks) -> list[str]:
    """Name what slowed the device, the most frequent reason first, with its share of the readings."""
    count = {text: int(((clocks.reasons & bit) != 0).sum()) for bit, text in SLOWED.items()}
    ranked = sorted((text for text in count if count[text]), key=lambda text: -count[text])
    return [f"{text} in {count[text] / len(clocks.reasons):.0%} of the readings" for text in ranked]


def other_processes(t: Tables) -> list[ProcessRecord]:
    """Return the other processes that were seen on the devices."""
    return [other for gpu in gpu_rows(t) for other in gpu.other_processes]

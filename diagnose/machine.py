"""What NVML said of the device while the steps ran; see ``diagnose.capture.nvml`` for the series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.tables import Tables

__all__ = ["SLOWED", "Clocks", "clocks_of", "gpu_rows", "other_processes", "slowed_by"]

IDLE = 0x01
# Bits of NVML's reasons by which the device runs slower than it could, and how each is called.
SLOWED: Mapping[int, str] = {
    0x04: "the power limit",
    0x08: "a hardware slowdown",
    0x20: "its temperature",
    0x40: "its temperature (hardware limit)",
    0x80: "the power brake",
}
_ANY = sum(SLOWED)


class Clocks(NamedTuple):
    """Readings of one GPU while it was at work; parallel arrays."""

    mhz: npt.NDArray[np.float64]
    reasons: npt.NDArray[np.int64]
    most_mhz: float  # what the board allows

    @property
    def slowed(self) -> npt.NDArray[np.bool_]:
        """Tell which readings show a reason of SLOWED."""
        found: npt.NDArray[np.bool_] = (self.reasons & _ANY) != 0
        return found


def gpu_rows(t: Tables) -> list[Mapping[str, object]]:
    """Return what was recorded of each GPU, none without NVML."""
    rows = t.capture.info.nvml.get("gpus") if t.capture.info else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list | tuple) else []


def clocks_of(gpu: Mapping[str, object]) -> Clocks | None:
    """Return the clocks of one GPU; None where the board tells none, or it was never at work."""
    most = gpu.get("max_sm_mhz")
    columns = [gpu.get(name) for name in ("sm_mhz", "throttle_reasons", "utilisation")]
    if not isinstance(most, int | float) or not all(isinstance(column, list | tuple) for column in columns):
        return None
    rows = [row for row in zip(*columns, strict=False) if all(isinstance(value, int | float) for value in row)]
    working = [(mhz, int(reasons)) for mhz, reasons, use in rows if use > 0 and not int(reasons) & IDLE]
    if not working or not most:
        return None
    return Clocks(np.array([m for m, _ in working], float), np.array([r for _, r in working], np.int64), float(most))


def slowed_by(clocks: Clocks) -> list[str]:
    """Name what slowed the device, the most frequent reason first, with its share of the readings."""
    count = {text: int(((clocks.reasons & bit) != 0).sum()) for bit, text in SLOWED.items()}
    ranked = sorted((text for text in count if count[text]), key=lambda text: -count[text])
    return [f"{text} in {count[text] / len(clocks.reasons):.0%} of the readings" for text in ranked]


def other_processes(t: Tables) -> list[Mapping[str, object]]:
    """Return the other processes that were seen on the devices."""
    found: list[Mapping[str, object]] = []
    for gpu in gpu_rows(t):
        others = gpu.get("other_processes")
        found += [other for other in others if isinstance(other, Mapping)] if isinstance(others, list | tuple) else []
    return found

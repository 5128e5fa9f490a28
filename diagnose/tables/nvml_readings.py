"""NVML's readings of the device while the steps ran; see ``diagnose.capture.record.gpus`` for the series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Ints, Mask
from diagnose.model.records import GpuReadings, ProcessRecord
from diagnose.tables import Tables
from diagnose.text.numbers import percent

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


class DeviceMemory(NamedTuple):
    """What the driver counted on a device while the steps ran, bytes."""

    used: int  # at most, of all processes
    total: int | None  # what the board has; a little more than CUDA offers
    others: int | None  # of that, of other processes; None where the driver does not list the script's own process


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
    return [f"{text} in {percent(count[text] / len(clocks.reasons), 0)} of the readings" for text in ranked]


def other_processes(t: Tables) -> list[ProcessRecord]:
    """Return the other processes that were seen on the devices."""
    return [other for gpu in gpu_rows(t) for other in gpu.other_processes]


def device_memory(t: Tables) -> DeviceMemory | None:
    """Return what NVML saw in use on the trace's device in the steady steps, None where it was not sampled.

    Steps that are over between two samples are given the sample nearest to them.
    """
    gpu = next((gpu for gpu in gpu_rows(t) if gpu.index == t.device_id), None)
    if gpu is None or not t.trace.epoch_ns:
        return None
    samples = [(time, used) for time, used in zip(gpu.time_ns, gpu.memory_used_bytes, strict=False) if used]
    if not samples:
        return None
    start, end = (time + t.trace.epoch_ns for time in t.steps.window)
    nearest = min(max(start - time, time - end, 0) for time, _ in samples)
    used = max(used for time, used in samples if max(start - time, time - end, 0) == nearest)
    others = sum(other.memory_bytes or 0 for other in gpu.other_processes)
    return DeviceMemory(used, gpu.memory_total_bytes, min(others, used) if gpu.own_process_seen else None)

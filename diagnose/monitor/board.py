"""One GPU as NVML shows it: what it is, and one reading. What a board does not offer is None."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from diagnose.tables.nvml_readings import SLOWED

__all__ = ["METRICS", "Board", "Reading", "connect"]

# What is read, with the unit that its column bears. A kernel of one thread counts as running: this is no measure of
# how much of the device it uses.
METRICS = {
    "kernel_running_percent": "a kernel was running",
    "memory_used_mb": "memory in use, of all processes",
    "process_memory_mb": "of it, what the listed processes hold; the rest is the driver's",
    "sm_mhz": "clock of the multiprocessors",
    "memory_mhz": "clock of the memory",
    "power_w": "power",
    "temperature_c": "temperature of the chip",
    "pcie_to_host_mb_s": "sent to the host",
    "pcie_from_host_mb_s": "received from the host",
    "nvlink_sent_mb_s": "sent to other GPUs",
    "nvlink_received_mb_s": "received from other GPUs",
    "processes": "processes that compute on it",
}
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX: KiB since the driver began
_ALL_LINKS = 0xFFFFFFFF  # the scope of a field that means all links; a field without a scope is link 0's
_MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS


@dataclass(frozen=True)
class Reading:
    """What one GPU showed at one moment."""

    time_s: float  # unix
    values: dict[str, float | None]  # by the names of METRICS
    slowed_by: tuple[str, ...]  # why the clock is lower than it could be


class Board:
    """One GPU; readings of links need the one before, so each object is read in turn."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self.index = nvml, index
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.name = _text(_ask(lambda: nvml.nvmlDeviceGetName(self._handle))) or f"GPU {index}"
        self.uuid = _text(_ask(lambda: nvml.nvmlDeviceGetUUID(self._handle)))
        memory = _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(self._handle))
        self.memory_mb: float | None = None if memory is None else memory.total / 1e6
        self.max_sm_mhz: float | None = _ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(self._handle, nvml.NVML_CLOCK_SM))
        limit = _ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle))
        self.power_limit_w: float | None = None if limit is None else limit / 1e3
        self._links: tuple[float, float | None, float | None] = (0.0, None, None)

    def read(self) -> Reading:
        """Read everything from the driver; takes up to 50 ms, most of it for PCIe."""
        nvml, handle = self._nvml, self._handle
        use = _ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        power = _ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        sent = _ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES))
        received = _ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES))
        processes = _ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        now = time.time()
        to_others, from_others = self._link_rates(now)
        values: dict[str, float | None] = {
            "kernel_running_percent": None if use is None else use.gpu,
            "memory_used_mb": None if memory is None else memory.used / 1e6,
            "process_memory_mb": _held(processes),
            "sm_mhz": _ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_mhz": _ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "power_w": None if power is None else power / 1e3,
            "temperature_c": _ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "pcie_to_host_mb_s": None if sent is None else sent / 1e3,
            "pcie_from_host_mb_s": None if received is None else received / 1e3,
            "nvlink_sent_mb_s": to_others,
            "nvlink_received_mb_s": from_others,
            "processes": None if processes is None else len(processes),
        }
        return Reading(now, values, self._slowed_by())

    def _slowed_by(self) -> tuple[str, ...]:
        nvml, handle = self._nvml, self._handle
        bits = _ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        bits = bits if bits is not None else _ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return tuple(text for bit, text in SLOWED.items() if bits and int(bits) & bit)

    def _link_rates(self, now: float) -> tuple[float | None, float | None]:
        """Return what went over NVLink since the last reading, MB/s both ways; None at the first one."""
        before, *counters = self._links
        found = [self._links_counter(_NVLINK_SENT), self._links_counter(_NVLINK_RECEIVED)]
        self._links = (now, found[0], found[1])
        taken = now - before
        rates = [
            (new - old) * 1024 / 1e6 / taken
            if new is not None and old is not None and new >= old and taken > 0
            else None
            for new, old in zip(found, counters, strict=True)
        ]
        return rates[0], rates[1]

    def _links_counter(self, field: int) -> float | None:
        """Return the counter of all links together, None where the board has none."""
        total = self._counters([(field, _ALL_LINKS)])
        if total:
            return total[0]
        links = self._counters([(field, link) for link in range(_MAX_LINKS)])  # older drivers know no sum
        return sum(links) if links else None

    def _counters(self, fields: list[tuple[int, int]]) -> list[float]:
        """Return the values of those fields, each with its scope, that the board has."""
        values = _ask(lambda: self._nvml.nvmlDeviceGetFieldValues(self._handle, fields)) or []
        return [float(value.value.ullVal) for value in values if value.nvmlReturn == 0]


def connect(nvml: Any, indices: tuple[int, ...]) -> list[Board]:
    """Return the GPUs of these indices, of all where none is named.

    Raises:
        IndexError: the driver has no GPU of that index.
    """
    count = int(nvml.nvmlDeviceGetCount())
    for index in indices:
        if not 0 <= index < count:
            raise IndexError(index, count)
    return [Board(nvml, index) for index in indices or range(count)]


def _held(processes: Sequence[Any] | None) -> float | None:
    """Return what the listed processes hold, MB; None where the driver does not count it for one of them."""
    sizes = [process.usedGpuMemory for process in processes or ()]
    return None if processes is None or None in sizes else sum(sizes) / 1e6


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _ask(question: Callable[[], Any]) -> Any:
    """Return the answer, None where the board or the driver has none."""
    try:
        return question()
    except Exception:  # "not supported" is an answer
        return None

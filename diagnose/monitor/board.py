"""One GPU as NVML shows it. What a board does not offer is None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diagnose.tables.nvml_readings import SLOWED

__all__ = ["Board", "boards"]


class Board:
    """One GPU."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._index = nvml, index
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _ask(lambda: nvml.nvmlDeviceGetUUID(self._handle)) or ""
        self.uuid: str = uuid.decode(errors="replace") if isinstance(uuid, bytes) else uuid

    def read(self) -> dict[str, object]:
        """Read what a row keeps of the device."""
        nvml, handle = self._nvml, self._handle
        use = _ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power = _ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        memory = _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        return {
            "index": self._index,
            # A kernel of one thread counts as running: this is no measure of how much of the device it uses.
            "kernel_running_percent": None if use is None else use.gpu,
            "sm_mhz": _ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "power_w": None if power is None else power / 1e3,
            "temperature_c": _ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "memory_used_mb": None if memory is None else memory.used / 1e6,
            "slowed_by": self._slowed_by(),
        }

    def _slowed_by(self) -> list[str]:
        """Return why the clock is lower than it could be."""
        nvml, handle = self._nvml, self._handle
        bits = _ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        bits = bits if bits is not None else _ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return [text for bit, text in SLOWED.items() if bits and int(bits) & bit]


def boards(nvml: Any) -> list[Board]:
    """Return the GPUs of this machine."""
    return [Board(nvml, index) for index in range(int(nvml.nvmlDeviceGetCount()))]


def _ask(question: Callable[[], Any]) -> Any:
    """Return the answer, None where the board or the driver has none."""
    try:
        return question()
    except Exception:  # "not supported" is an answer
        return None

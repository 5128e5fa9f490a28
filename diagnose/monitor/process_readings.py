"""Memory of this process and the latest NVML readings of its GPUs; the driver is asked on a thread of its own."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnose.monitor.step_rows import Readings
from diagnose.tables.nvml_readings import SLOWED

__all__ = ["Board", "ProcessReadings", "boards"]

# One GPU as NVML shows it. What a board does not offer is None.


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


STATM, STATM_BYTES = Path("/proc/self/statm"), 256
PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessReadings:
    """Reads on request what is cheap; a thread keeps the latest of what is not."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._latest: tuple[dict[str, object], ...] = ()
        self._statm = -1
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read NVML where this process uses a GPU of NVIDIA's."""
        from diagnose.capture.record.gpus import describe_gpus

        used = {str(gpu["uuid"]).removeprefix("GPU-") for gpu in describe_gpus() if gpu["in_use"]}
        if used and self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(used,), name="diagnose-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and close what is open."""
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def read(self) -> Readings:
        """Return memory now, and the latest of NVML."""
        allocated, reserved = _device_memory()
        return Readings(self._rss_mb(), allocated, reserved, self._latest)

    def _rss_mb(self) -> float | None:
        """Return what the process holds; its file stays open, since opening takes longer than reading."""
        try:
            if self._statm < 0:
                self._statm = os.open(STATM, os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._statm, STATM_BYTES, 0).split()[1]) * PAGE / 1e6
        except (OSError, ValueError, IndexError):  # not Linux
            return None

    def _run(self, used: set[str]) -> None:

        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            own = [board for board in boards(self._nvml) if board.uuid.removeprefix("GPU-") in used]
        except Exception:  # NVML errors derive from Exception; without a driver there are no readings
            return
        while own:
            self._latest = tuple(board.read() for board in own)
            if self._over.wait(10.0):  # what it shows changes slowly
                break
        self._nvml.nvmlShutdown()


def _device_memory() -> tuple[float | None, float | None]:
    """Return what tensors hold and what torch has reserved on the current device, MB; None without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None, None
    stats = torch.cuda.memory_stats_as_nested_dict()  # memory_allocated() flattens and sorts all of it first
    allocated, reserved = (stats.get(name, {}).get("all", {}) for name in ("allocated_bytes", "reserved_bytes"))
    return allocated.get("current", 0) / 1e6, reserved.get("current", 0) / 1e6

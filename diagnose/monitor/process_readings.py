"""Memory of this process and the latest NVML readings of its GPUs; the driver is asked on a thread of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

from diagnose.capture.record.gpus import describe_gpus, find_gpu, gpu_row
from diagnose.monitor.step_rows import Readings
from diagnose.tables.nvml_readings import SLOWED


def board_row(nvml: Any, handle: Any) -> dict[str, object]:
    """Return what a row keeps of a GPU."""
    now = gpu_row(nvml, handle)
    used, bits = now["memory_used_bytes"], int(now["throttle_reasons"] or 0)
    return {
        "index": nvml.nvmlDeviceGetIndex(handle),
        # A kernel of one thread counts as running: this is no measure of how much of the device it uses.
        "kernel_running_percent": now["utilisation"],
        **{name: now[name] for name in ("sm_mhz", "power_w", "temperature_c")},
        "memory_used_mb": used and used / 1e6,
        "slowed_by": [text for bit, text in SLOWED.items() if bits & bit],
    }


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
        used = [str(gpu["uuid"]) for gpu in describe_gpus() if gpu["in_use"]]
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
                self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._statm, 256, 0).split()[1]) * PAGE / 1e6
        except (OSError, ValueError, IndexError):  # not Linux
            return None

    def _run(self, used: list[str]) -> None:
        with contextlib.suppress(Exception):  # NVML errors derive from Exception; without a driver there is nothing
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            try:
                own = [find_gpu(self._nvml, uuid) for uuid in used]
                while True:
                    self._latest = tuple(board_row(self._nvml, handle) for handle in own)
                    if self._over.wait(10.0):  # what it shows changes slowly
                        break
            finally:
                self._nvml.nvmlShutdown()


def _device_memory() -> tuple[float | None, float | None]:
    """Return what tensors hold and what torch has reserved on the current device, MB; None without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None, None
    stats = torch.cuda.memory_stats_as_nested_dict()  # memory_allocated() flattens and sorts all of it first
    allocated, reserved = (stats.get(name, {}).get("all", {}) for name in ("allocated_bytes", "reserved_bytes"))
    return allocated.get("current", 0) / 1e6, reserved.get("current", 0) / 1e6

"""Memory of this process and the latest NVML readings of its GPUs; the driver is asked on a thread of its own."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from diagnose.monitor.step_rows import Readings

__all__ = ["NVML_PERIOD_S", "ProcessReadings"]

NVML_PERIOD_S = 10.0  # a reading takes the driver up to 50 ms, most of it for PCIe
STATM = Path("/proc/self/statm")
PAGE = os.sysconf("SC_PAGE_SIZE")
KEPT = ("kernel_running_percent", "sm_mhz", "power_w", "temperature_c", "memory_used_mb")


class ProcessReadings:
    """Reads on request what is cheap; a thread keeps the latest of what is not."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._latest: tuple[dict[str, object], ...] = ()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read NVML where this process uses a GPU of NVIDIA's."""
        from diagnose.capture.record.script_config import describe_gpus

        used = {str(gpu["uuid"]).removeprefix("GPU-") for gpu in describe_gpus() if gpu["in_use"]}
        if used and self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(used,), name="diagnose-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def read(self) -> Readings:
        """Return memory now, and the latest of NVML."""
        allocated, reserved = _device_memory()
        return Readings(_rss_mb(), allocated, reserved, self._latest)

    def _run(self, used: set[str]) -> None:
        from diagnose.monitor.board import connect

        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            boards = [board for board in connect(self._nvml, ()) if board.uuid.removeprefix("GPU-") in used]
        except Exception:  # NVML errors derive from Exception; without a driver there are no readings
            return
        while boards:
            readings = [(board, board.read()) for board in boards]
            self._latest = tuple(
                {"index": board.index, **{name: r.values[name] for name in KEPT}, "slowed_by": list(r.slowed_by)}
                for board, r in readings
            )
            if self._over.wait(NVML_PERIOD_S):
                break
        self._nvml.nvmlShutdown()


def _rss_mb() -> float | None:
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * PAGE / 1e6
    except (OSError, ValueError, IndexError):  # not Linux
        return None


def _device_memory() -> tuple[float | None, float | None]:
    """Return what tensors hold and what torch has reserved on the current device, MB; None without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None, None
    return torch.cuda.memory_allocated() / 1e6, torch.cuda.memory_reserved() / 1e6

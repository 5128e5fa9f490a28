"""Samples the GPUs through NVML while steps run: clocks, throttling, power, memory, other processes.

GPUs are found by the UUID that torch reports for the devices it sees, so CUDA_VISIBLE_DEVICES is respected.
What a board does not offer is None in its series; no driver is one sentence, not an error.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any


def describe_gpus() -> list[dict[str, object]]:
    """Return the GPUs that this process sees, by torch's own index; empty while CUDA is not in use."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it without types
        return []
    gpus: list[dict[str, object]] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "index": index,
                "uuid": str(getattr(properties, "uuid", "")),
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "num_sms": properties.multi_processor_count,
                "compute_capability": [properties.major, properties.minor],
                "in_use": index == torch.cuda.current_device() or torch.cuda.memory_reserved(index) > 0,
            }
        )
    return gpus


# What torch's caching allocator counts, before and after the recorded windows.

_COUNTERS = {
    "retries": "num_alloc_retries",
    "reserved_peak_bytes": "reserved_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.current",
}


def allocator_counters() -> dict[str, int]:
    """Return the counters of the current CUDA device, and its memory; empty while CUDA is not in use."""
    cuda = _cuda()
    if cuda is None:
        return {}
    try:
        stats, (free, whole) = cuda.memory_stats(), cuda.mem_get_info()
    except Exception:  # another allocator, as of cudaMallocAsync or a plugin, counts nothing
        return {}
    found = {ours: int(stats[theirs]) for ours, theirs in _COUNTERS.items() if theirs in stats}
    return found | {"free_bytes": int(free), "capacity_bytes": int(whole)} if found else {}


def allocator_map() -> dict[str, int]:
    """Return what the allocator's snapshot of the current CUDA device shows of free memory; empty without CUDA.

    Memory that is free in pieces between blocks in use serves no request that is larger than the largest piece.
    """
    cuda = _cuda()
    if cuda is None:
        return {}
    try:
        device = cuda.current_device()
        segments = [one for one in cuda.memory_snapshot() if one["device"] == device]
        free = [b["size"] for one in segments for b in one["blocks"] if b["state"] == "inactive"]
    except Exception:  # another allocator keeps no map
        return {}
    if not segments:
        return {}
    largest = max(free, default=0)
    return {"segments": len(segments), "free_pieces_bytes": sum(free), "largest_free_piece_bytes": largest}


def _cuda() -> Any:  # a module, which may not be there
    """Return torch.cuda where it is in use, None otherwise."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def counted_between(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the later counters, retries without those before."""
    return {name: value - before.get(name, 0) * (name == "retries") for name, value in after.items()}


class GpuMonitor:
    """A thread that samples the given GPUs until it is stopped."""

    def __init__(self, gpus: Sequence[Mapping[str, object]], nvml: Any = None, period_ms: float = 100.0) -> None:
        self.reason = ""  # why there is nothing, one sentence
        self._gpus = gpus
        self._period = period_ms / 1e3
        self._nvml = nvml
        self._series: list[dict[str, Any]] = []
        self._handles: list[Any] = []
        self._enough = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Connect to the driver and begin to sample; on failure only ``reason`` is set."""
        if not self._gpus:
            self.reason = "The script uses no NVIDIA GPU: clocks, throttling and power were not recorded."
            return
        try:
            self._connect()
        except Exception as error:  # NVML errors derive from Exception, and none may harm the script
            self.reason = f"NVML is not available ({error}): clocks, throttling and power were not recorded."
            return
        self._thread = threading.Thread(target=self._run, name="diagnose-nvml", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling and disconnect."""
        if self._thread is not None:
            self._enough.set()
            self._thread.join()
            self._thread = None
            self._nvml.nvmlShutdown()

    def summary(self) -> dict[str, object]:
        """Return what CaptureInfo.nvml holds."""
        return {"available": not self.reason, "reason": self.reason, "gpus": self._series}

    def _connect(self) -> None:
        if self._nvml is None:
            import pynvml

            self._nvml = pynvml
        nvml = self._nvml
        nvml.nvmlInit()
        for gpu in self._gpus:
            handle = find_gpu(nvml, str(gpu.get("uuid", "")))
            limit_mw = _ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
            limits_mw = _ask(nvml, "nvmlDeviceGetPowerManagementLimitConstraints", handle)
            memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
            self._handles.append(handle)
            self._series.append(
                {
                    "index": gpu.get("index"),
                    "uuid": gpu.get("uuid"),
                    "name": _ask(nvml, "nvmlDeviceGetName", handle),
                    "max_sm_mhz": _ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
                    "power_limit_w": limit_mw and limit_mw / 1e3,
                    "max_power_limit_w": limits_mw and limits_mw[1] / 1e3,
                    "memory_total_bytes": memory and memory.total,
                    "other_processes": [],
                    "own_process_seen": False,
                }
            )

    def _run(self) -> None:
        rows = 0
        while not self._enough.wait(self._period) and rows < 20_000:  # half an hour at 100 ms
            for handle, series in zip(self._handles, self._series, strict=True):
                for key, value in gpu_row(self._nvml, handle).items():
                    series.setdefault(key, []).append(value)
                found = _ask(self._nvml, "nvmlDeviceGetComputeRunningProcesses", handle) if rows % 5 == 0 else ()
                for process in found or ():
                    if process.pid == os.getpid():
                        series["own_process_seen"] = True
                    elif process.pid not in [other["pid"] for other in series["other_processes"]]:
                        other = {"pid": process.pid, "memory_bytes": process.usedGpuMemory}
                        series["other_processes"].append(other)
            rows += 1


def find_gpu(nvml: Any, uuid: str) -> Any:
    """Return the handle of the GPU with this UUID, which torch writes with or without its "GPU-"."""
    last: Exception | None = None
    for name in (uuid, f"GPU-{uuid}", f"MIG-{uuid}"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(name)
        except Exception as error:  # the others are tried too
            last = error
    raise LookupError(f"no GPU with the UUID {uuid}: {last}")


def _ask(nvml: Any, question: str, *given: Any) -> Any:
    """Return the answer, None where the board or the driver has none."""
    try:
        return getattr(nvml, question)(*given)
    except Exception:  # "not supported" is an answer
        return None


def gpu_row(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return what a GPU shows now; the reasons for a lower clock are bits of NVML's."""
    use = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    throttle = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if throttle is None:  # the name before driver 535
        throttle = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    power_mw, memory = _ask(nvml, "nvmlDeviceGetPowerUsage", handle), _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return {
        "time_ns": time.time_ns(),
        "utilisation": use and use.gpu,
        "sm_mhz": _ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "throttle_reasons": throttle,
        "power_w": None if power_mw is None else power_mw / 1e3,
        "temperature_c": _ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        "memory_used_bytes": memory and memory.used,
    }

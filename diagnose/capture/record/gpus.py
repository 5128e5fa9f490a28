"""Samples the GPUs through NVML while steps run: clocks, throttling, power, memory, PCIe, other processes.

GPUs are found by the UUID that torch reports for the devices it sees, so CUDA_VISIBLE_DEVICES is respected.
What a board does not offer is None in its series; no driver is one sentence, not an error.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
    "out_of_memory": "num_ooms",
    "allocated_peak_bytes": "allocated_bytes.all.peak",
    "reserved_peak_bytes": "reserved_bytes.all.peak",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
}
_SINCE_START = ("retries", "out_of_memory")  # counted from the begin of the process


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
    """Return the later counters, those that only grow less what they were before."""
    return {name: value - before.get(name, 0) * (name in _SINCE_START) for name, value in after.items()}


THROTTLE_REASONS = {  # bits of nvmlDeviceGetCurrentClocksEventReasons, from NVML's documentation
    0x01: "idle",
    0x02: "application clocks",
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}


class GpuMonitor:
    """A thread that samples the given GPUs until it is stopped."""

    def __init__(self, gpus: Sequence[Mapping[str, object]], period_ms: float, nvml: Any = None) -> None:
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
        return {
            "available": not self.reason,
            "reason": self.reason,
            "gpus": self._series,
            "throttle_names": {str(bit): name for bit, name in THROTTLE_REASONS.items()},
        }

    def _connect(self) -> None:
        if self._nvml is None:
            import pynvml

            self._nvml = pynvml
        self._nvml.nvmlInit()
        for gpu in self._gpus:
            handle = find_gpu(self._nvml, str(gpu.get("uuid", "")))
            self._handles.append(handle)
            self._series.append({"index": gpu.get("index"), "uuid": gpu.get("uuid"), **_constants(self._nvml, handle)})

    def _run(self) -> None:
        rows = 0
        while not self._enough.wait(self._period) and rows < 20_000:  # half an hour at 100 ms
            for handle, series in zip(self._handles, self._series, strict=True):
                for key, value in gpu_row(self._nvml, handle).items():
                    series.setdefault(key, []).append(value)
                if rows % 5 == 0:
                    _take_slow(self._nvml, handle, series)
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


def _ask(question: Callable[[], Any]) -> Any:
    """Return the answer, None where the board or the driver has none."""
    try:
        return question()
    except Exception:  # "not supported" is an answer
        return None


def _constants(nvml: Any, handle: Any) -> dict[str, Any]:
    return {
        "name": _ask(lambda: nvml.nvmlDeviceGetName(handle)),
        "max_sm_mhz": _ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "max_memory_mhz": _ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "power_limit_w": _ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        "max_power_limit_w": _ask(lambda: nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1] / 1e3),
        "memory_total_bytes": _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "pcie_generation": _ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "pcie_width": _ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "max_pcie_generation": _ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "max_pcie_width": _ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        "other_processes": [],
        "own_process_seen": False,
    }


def gpu_row(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return what a GPU shows now."""
    use = _ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    # The bits of THROTTLE_REASONS; the call was renamed in driver 535.
    new = _ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    throttle = new if new is not None else _ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return {
        "time_ns": time.time_ns(),
        "utilisation": use and use.gpu,
        "memory_utilisation": use and use.memory,
        "sm_mhz": _ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_mhz": _ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "throttle_reasons": throttle,
        "power_w": _ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
        "temperature_c": _ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "memory_used_bytes": _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
    }


def _take_slow(nvml: Any, handle: Any, series: dict[str, Any]) -> None:
    """Append what takes NVML 20 ms each time, PCIe, or hardly changes, the processes."""
    sent = _ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES))
    received = _ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES))
    series.setdefault("pcie_time_ns", []).append(time.time_ns())
    series.setdefault("pcie_tx_kb_s", []).append(sent)
    series.setdefault("pcie_rx_kb_s", []).append(received)
    for process in _ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ():
        if process.pid == os.getpid():
            series["own_process_seen"] = True
        elif process.pid not in [other["pid"] for other in series["other_processes"]]:
            series["other_processes"].append({"pid": process.pid, "memory_bytes": process.usedGpuMemory})

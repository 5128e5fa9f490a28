"""NVML through a module that answers as a driver would."""

import threading
from types import SimpleNamespace

from diagnose.capture.record.gpus import GpuMonitor

GPUS = [{"index": 0, "uuid": "aaaa-1", "name": "Fake"}]
ROWS = 4


class NotSupportedError(Exception):
    pass


class FakeDriver:
    """Two boards; CUDA_VISIBLE_DEVICES would show the second only."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self):
        self.asked = set()
        self.shut = False
        self.num_rows = 0
        self.enough = threading.Event()  # rows were taken

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        self.shut = True

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != "GPU-aaaa-1":
            raise NotSupportedError
        return "second board"

    def nvmlDeviceGetUtilizationRates(self, handle):
        self.asked.add(handle)
        self.num_rows += 1
        if self.num_rows > ROWS:
            self.enough.set()
        return SimpleNamespace(gpu=40, memory=7)

    def nvmlDeviceGetClockInfo(self, handle, clock):
        return {1: 1200, 2: 2600}[clock]

    def nvmlDeviceGetMaxClockInfo(self, handle, clock):
        return 1980

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x4

    def nvmlDeviceGetPowerUsage(self, handle):
        return 350_000

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=5, total=10)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=1, usedGpuMemory=3)]

    def __getattr__(self, name):
        def ask(*_arguments):
            raise NotSupportedError

        return ask


def watched(nvml, gpus=GPUS):
    monitor = GpuMonitor(gpus, nvml, period_ms=2.0)
    monitor.start()
    if isinstance(nvml, FakeDriver):
        assert nvml.enough.wait(300)
    monitor.stop()
    return monitor.summary()


def test_series():
    driver = FakeDriver()
    summary = watched(driver)
    (gpu,) = summary["gpus"]
    assert summary["available"] is True
    assert driver.asked == {"second board"}
    assert driver.shut
    assert gpu["index"] == 0
    assert set(gpu["sm_mhz"]) == {1200}
    assert set(gpu["throttle_reasons"]) == {4}
    assert set(gpu["power_w"]) == {350.0}
    assert gpu["other_processes"] == [{"pid": 1, "memory_bytes": 3}]
    lengths = {len(gpu[key]) for key in ("time_ns", "sm_mhz", "power_w", "temperature_c", "memory_used_bytes")}
    assert len(lengths) == 1
    assert lengths.pop() >= ROWS


def test_what_a_board_does_not_offer_is_none():
    (gpu,) = watched(FakeDriver())["gpus"]
    assert set(gpu["temperature_c"]) == {None}
    assert gpu["power_limit_w"] is None


def test_no_driver_is_one_sentence():
    class NoDriver:
        def nvmlInit(self):
            raise NotSupportedError("Library Not Found")

    summary = watched(NoDriver())
    assert summary["available"] is False
    assert "Library Not Found" in summary["reason"]


def test_no_gpu_asks_no_driver():
    summary = watched(None, gpus=[])
    assert summary["available"] is False
    assert "no NVIDIA GPU" in summary["reason"]

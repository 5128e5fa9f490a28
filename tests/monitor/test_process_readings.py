"""What a row holds of memory and of the GPUs in use, with a driver that answers as NVML does."""

from types import SimpleNamespace

import pytest

from diagnose.monitor import process_readings
from diagnose.monitor.process_readings import ProcessReadings, board_row


class NotSupportedError(Exception):
    pass


class FakeDriver:
    """Two boards of which the second has no power meter; asked for anything else, it raises as NVML does."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 0, 0

    def __init__(self):
        self.shut = 0

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        self.shut += 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in ("GPU-0", "GPU-1"):
            raise NotSupportedError
        return int(uuid[-1])

    def nvmlDeviceGetIndex(self, handle):
        return handle

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=90 - handle, memory=1)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=2_000_000_000, total=141_000_000_000)

    def nvmlDeviceGetClockInfo(self, handle, clock):
        return 1500

    def nvmlDeviceGetPowerUsage(self, handle):
        if handle == 1:
            raise NotSupportedError
        return 310_500

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # the older name: the newer one is not supported
        return 0x4 if handle == 0 else 0

    def __getattr__(self, name):
        def ask(*_arguments):
            raise NotSupportedError

        return ask


FIRST = {
    "index": 0, "kernel_running_percent": 90, "sm_mhz": 1500, "power_w": 310.5, "temperature_c": None,
    "memory_used_mb": 2000.0, "slowed_by": ["the power limit"],
}  # fmt: skip


def test_what_a_board_does_not_offer_is_none():
    driver = FakeDriver()
    assert board_row(driver, 0) == FIRST
    assert board_row(driver, 1) == {**FIRST, "index": 1, "kernel_running_percent": 89, "power_w": None, "slowed_by": []}


@pytest.mark.parametrize(("in_use", "rows"), [("0", (FIRST,)), ("9", ())])
def test_a_row_holds_the_gpus_that_the_process_uses(monkeypatch, in_use, rows):
    used = [{"uuid": in_use, "in_use": True}, {"uuid": "1", "in_use": False}]
    monkeypatch.setattr(process_readings, "describe_gpus", lambda: used)
    driver = FakeDriver()
    readings = ProcessReadings(driver)
    readings._over.set()  # one round
    readings.start()
    readings.stop()
    assert readings.read().gpus == rows
    assert driver.shut == 1

"""Steps timed by events in the device's queue, of which a stand-in for torch.cuda knows when each is reached."""

import sys
from types import SimpleNamespace

import pytest
import torch

from diagnose.capture.record.folder import RunLog
from diagnose.capture.record.measurements import DeviceClock, Measurements


class Device:
    """A queue: ``reached_ms`` holds when each event is reached, in the order of their recording."""

    def __init__(self, *reached_ms):
        self.reached_ms = list(reached_ms)
        self.now_ms = 0.0
        self.capturing = False
        device = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at_ms = device.reached_ms.pop(0)

            def query(self):
                return self.at_ms <= device.now_ms

            def elapsed_time(self, other):
                return other.at_ms - self.at_ms

        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(
                is_initialized=lambda: True, is_current_stream_capturing=lambda: self.capturing, Event=Event
            )
        )


@pytest.fixture
def device(monkeypatch):
    def install(*reached_ms):
        made = Device(*reached_ms)
        monkeypatch.setitem(sys.modules, "torch", made.torch)
        return made

    return install


def test_a_step_takes_what_the_device_takes_although_the_host_is_ahead(device):
    queue = device(0.0, 14.0, 28.0, 43.0)
    clock = DeviceClock()
    for number in range(4):  # all marked before the device has ended one
        clock.mark(number)
    assert clock.times(1, [3, 3, 3]) == [3, 3, 3]
    queue.now_ms = 50.0
    clock._collect()
    assert clock.times(1, [3, 3, 3]) == [14_000_000, 14_000_000, 15_000_000]
    assert clock.recent_ns == 14_000_000


def test_steps_that_the_device_has_not_ended_keep_the_host_s_time(device):
    queue = device(0.0, 14.0, 28.0)
    clock = DeviceClock()
    for number in range(3):
        clock.mark(number)
    queue.now_ms = 20.0
    clock._collect()
    clock.finish(0.0)
    assert clock.times(1, [3, 4]) == [14_000_000, 4]


def test_steps_inside_the_capture_of_a_graph_are_not_marked(device):
    queue = device(0.0, 10.0, 40.0, 52.0)
    clock = DeviceClock()
    clock.mark(0)
    clock.mark(1)
    queue.capturing = True
    clock.mark(2)  # an event recorded here would become a node of the graph
    queue.capturing = False
    clock.mark(3)
    clock.mark(4)
    queue.now_ms = 60.0
    clock._collect()
    assert clock.step_ns == {1: 10_000_000, 4: 12_000_000}


def test_an_error_of_the_device_is_left_to_the_script(device):
    queue = device(0.0, 10.0)
    clock = DeviceClock()
    clock.mark(0)

    def record(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    queue.torch.cuda.Event.record = record
    clock.mark(1)
    clock.finish(0.0)
    assert clock.step_ns == {}


def test_without_cuda_in_use_nothing_is_marked():
    clock = DeviceClock()
    clock.mark(0)
    clock.mark(1)
    assert clock.times(1, [5]) == [5]
    assert clock.recent_ns is None


def test_each_part_of_a_capture_finds_its_steps():
    measured = Measurements(unprofiled=[3, 3], timing=[4], first={"unprofiled": 7, "light": 10})
    measured.clock.step_ns.update({7: 14, 8: 15, 10: 16})
    assert measured.step_ns("unprofiled") == [14, 15]
    assert measured.step_ns("light") == [16]
    assert measured.step_ns("attribution") == []


def test_the_run_s_rows_hold_both_times_where_there_are_two():
    log = RunLog()
    for took in (3, 4):
        log.add(100, took, "plain", dict_of_phases())
    assert log.rows({2: 15})["device_ns"] == [0, 15]
    assert log.rows({})["took_ns"] == [3, 4]
    assert "device_ns" not in log.rows({})


def dict_of_phases():
    from diagnose.capture.steps.phases import PhaseTimes

    return PhaseTimes(*[0] * len(PhaseTimes._fields))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_host_s_lead_does_not_shorten_a_step():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        a @ a
    torch.cuda.synchronize()
    clock = DeviceClock()
    clock.mark(0)
    for number in range(1, 6):
        for _ in range(4):
            a @ a
        clock.mark(number)
    clock.finish(60.0)
    assert sorted(clock.step_ns) == [1, 2, 3, 4, 5]
    assert min(clock.step_ns.values()) > 2_000_000  # four products of 1.1e12 operations at under 1e15 a second

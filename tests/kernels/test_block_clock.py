"""Blocks are timed by the device's own events, whose times are milliseconds, or by the host's clock."""

from types import SimpleNamespace

import pytest
import torch

from diagnose.kernels import _activations


class Event:
    """Stands for a device's event: each is 20 ms after the one before."""

    made = 0

    def __init__(self, *, enable_timing):
        assert enable_timing
        Event.made += 1
        self.at = Event.made * 20.0

    def record(self):
        pass

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.mark.parametrize("kind", ["cpu", "xpu"])
def test_times_of_a_block_add_up_and_blocks_may_be_nested(monkeypatch, kind):
    waited = []
    device = SimpleNamespace(Event=Event, synchronize=lambda: waited.append(1))
    monkeypatch.setattr(torch, "get_device_module", lambda _: device)
    now = iter(range(100))
    monkeypatch.setattr(_activations, "time", SimpleNamespace(perf_counter=lambda: next(now) * 0.02))
    clock = _activations._Clock(torch.device(kind))
    for name, turn in (("a", "begin"), ("b", "begin"), ("b", "end"), ("a", "end"), ("b", "begin"), ("b", "end")):
        getattr(clock, turn)(name, None)
    assert clock.read() == {"a": pytest.approx(0.06), "b": pytest.approx(0.04)}
    assert bool(waited) == (kind != "cpu")

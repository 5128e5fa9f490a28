"""Page faults of this process, and what one takes."""

import mmap
import sys

import pytest

from diagnose.capture.steps import phases as module
from diagnose.capture.steps.phases import minor_faults, page_fault_ns

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="what is counted is Linux's")


@ON_LINUX
def test_first_accesses_are_counted():
    new, before = mmap.mmap(-1, 64 << 20), minor_faults()
    for at in range(0, 64 << 20, 4096):
        new[at] = 1
    assert minor_faults() - before >= 32  # of 2 MB each at the most


def clocked(monkeypatch, times_us, faults):
    """Let the clock and the counter show these values in turn, whenever they are asked."""
    clock, counter = iter(times_us * 3), iter(faults * 3)
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: next(clock) * 1000)
    monkeypatch.setattr(module, "minor_faults", lambda: next(counter))


@ON_LINUX
def test_what_filling_takes_the_second_time_is_no_fault_and_giving_back_is(monkeypatch):
    clocked(monkeypatch, [0, 9_000, 11_000, 14_000], [100, 10_100])
    assert page_fault_ns() == 1000  # of 10,000 faults 9 ms less 2, and 3


@ON_LINUX
def test_large_pages_show_nothing(monkeypatch):
    clocked(monkeypatch, [0, 9_000, 11_000, 14_000], [100, 120])
    assert page_fault_ns() is None


def test_another_system_s_allocator_is_not_known(monkeypatch):
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert page_fault_ns() is None

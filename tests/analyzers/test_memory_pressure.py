"""memory-pressure: retries, or nearly all of the device reserved."""

import pytest

from diagnose.model.events import Device

GB = 10**9


def holding(recording, reserved, *, allocated=8 * GB, capacity=10 * GB, retries=None):
    r = recording(devices=[Device(0, "NVIDIA A100", capacity, 108, (8, 0))])
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    r.memory(100, allocated, 1, allocated, reserved=reserved)
    r.memory(200, -allocated, 1, 0, reserved=reserved)
    if retries is not None:
        r.told(memory={"retries": retries})
    return r


def test_retries(recording):
    r = holding(recording, 9 * GB, retries=3)
    finding = r.find("memory-pressure")
    assert (finding.title, finding.count, finding.lost_ns) == (
        "Memory is full: 3 allocations had to empty the cache first", 3, 0,
    )  # fmt: skip
    assert finding.evidence[0].startswith("9.00 GB of 10.00 GB are reserved at the peak; then 8.00 GB are allocated")
    assert [p.id for p in r.prescribe("memory-pressure")] == ["expandable-segments", "checkpoint-blocks"]


@pytest.mark.parametrize(("reserved", "fires"), [(9.69, False), (9.71, True)])
def test_nearly_all_of_the_device(recording, reserved, fires):
    assert (holding(recording, int(reserved * GB)).find("memory-pressure") is not None) == fires


def test_an_unknown_device_says_nothing(recording):
    assert holding(recording, 9 * GB, capacity=0, retries=3).find("memory-pressure") is None


def test_it_is_shown_though_it_costs_no_time_and_is_never_the_answer(recording):
    answer = holding(recording, 9 * GB, retries=3).diagnosis()
    assert [f.rule for f in answer.findings if not f.lost_ns] == ["memory-pressure"]
    assert answer.dominant is None

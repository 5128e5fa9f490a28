"""memory-pressure: retries, or nearly all of the device reserved."""

from dataclasses import replace

import pytest

from diagnose.analyzers import memory_pressure
from diagnose.model.events import Device
from diagnose.pipeline.find import build_tables
from tests.dataflow.table import Table

GB = 10**9


def holding(recording, reserved, *, allocated=8 * GB, capacity=10 * GB, retries=None):
    r = recording(devices=[Device(0, "NVIDIA A100", capacity, 108, (8, 0))])
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    r.memory(100, allocated, 1, allocated, reserved=reserved)
    r.memory(200, -allocated, 1, 0, reserved=reserved)
    if retries is not None:
        r.with_info(memory={"retries": retries})
    return r


def test_retries(recording):
    r = holding(recording, 9 * GB, retries=3)
    finding = r.find("memory-pressure")
    assert (finding.title, finding.count, finding.lost_ns) == (
        "Memory is full: 3 allocations had to empty the cache first", 3, 0,
    )  # fmt: skip
    assert finding.evidence[0].startswith("9.00 GB of 10.00 GB are reserved at the peak; then 8.00 GB are allocated")
    assert [p.id for p in r.prescribe("memory-pressure")] == ["expandable-segments", "checkpoint-blocks"]


def test_what_each_step_leaves_is_named_with_its_line(recording):
    flow = Table()
    for flow.step in range(2):
        flow.roots.add(flow.op("gemm", flow.value(300, 1000), line=6).value)
        flow.op("exp", flow.value(8), line=7)
    capture = replace(holding(recording, 9 * GB, retries=1).capture(), dataflow=flow.graph().flow)
    (finding,) = memory_pressure.find(build_tables(capture, capture.trace))
    assert finding.evidence[1:] == (
        "Each step leaves 1 value (1.2 MB) still held after the next one, made at line 6 of train.py (1.2 MB).",
    )


@pytest.mark.parametrize(("reserved", "fires"), [(9.69, False), (9.71, True)])
def test_nearly_all_of_the_device(recording, reserved, fires):
    assert (holding(recording, int(reserved * GB)).find("memory-pressure") is not None) == fires


def sampled(r, used, **also):
    """Let NVML have seen so many GB in use in the middle of the step, and more before it."""
    times = [r.epoch_ns - 50_000_000, r.epoch_ns + 500_000]
    gpu = {"index": 0, "memory_total_bytes": 10 * GB, "time_ns": times}
    r.with_info(nvml={"gpus": [{**gpu, "memory_used_bytes": [10 * GB, int(used * GB)], **also}]})
    return r


def test_what_the_driver_counts_beside_the_allocator(recording):
    others = [{"pid": 7, "memory_bytes": 4 * GB // 10}]
    r = sampled(holding(recording, 9 * GB), 9.95, other_processes=others, own_process_seen=True)
    finding = r.find("memory-pressure")
    assert finding.title == "Memory is full but for a few per cent"
    assert finding.evidence[1] == (
        "NVML shows 9.95 GB in use on the device, 0.95 GB in addition to what the allocator reserved: "
        "0.55 GB for the CUDA context, communicators and libraries, 0.40 GB of other processes."
    )
    memory = r.diagnosis().memory
    assert (memory.outside_allocator, memory.other_processes) == (950_000_000, 400_000_000)


def test_in_a_container_processes_are_not_told_apart(recording):
    r = sampled(holding(recording, 9.8 * GB), 9.9, other_processes=[{"pid": 7, "memory_bytes": 9 * GB}])
    text = r.find("memory-pressure").evidence[1]
    assert text.endswith("the CUDA context, communicators, libraries, and any other processes.")


@pytest.mark.parametrize(("used", "index", "fires"), [(9.89, 0, False), (9.91, 0, True), (9.91, 1, False)])
def test_full_by_the_drivers_count(recording, used, index, fires):
    assert (sampled(holding(recording, 8 * GB), used, index=index).find("memory-pressure") is not None) == fires


def test_an_unknown_device_says_nothing(recording):
    assert holding(recording, 9 * GB, capacity=0, retries=3).find("memory-pressure") is None


def test_it_is_shown_though_it_costs_no_time_and_is_never_the_answer(recording):
    answer = holding(recording, 9 * GB, retries=3).diagnosis()
    assert [f.rule for f in answer.findings if not f.lost_ns] == ["memory-pressure"]
    assert answer.dominant is None

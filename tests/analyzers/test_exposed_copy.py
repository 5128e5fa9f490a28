"""exposed-copy: copies beside which nothing computes, and idle that copies cause."""

import pytest

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
PINNED = "Memcpy HtoD (Pinned -> Device)"
READBACK = "Memcpy DtoH (Device -> Pageable)"


def between_kernels(recording, name, *, size=-1):
    """Return a step of 1000 µs: compute to 400, the copy alone to 600, compute to the end."""
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.kernel("gemm", 0, 400, launched=(-20, -15))
    r.copy(name, 400, 600, launched=(-14, -11), size=size)
    r.kernel("relu", 600, 1000, launched=(-10, -5))
    return r


def test_a_copy_alone_on_the_device(recording):
    r = between_kernels(recording, PAGEABLE, size=2_000_000)
    assert r.booked() == {}
    assert r.tables().partition.exposed_copy == pytest.approx(0.2)
    finding = r.find("exposed-copy")
    assert (finding.lost_ns, finding.count) == (200_000, 1)
    assert finding.evidence[0] == ("1.0 copies a step, 1 of 1 pageable, 0 to the host; 200 µs of the step only copies.")
    assert finding.evidence[1] == "They move 2.00 MB per step at 10.0 GB/s."
    assert dict(finding.facts) == {"pageable": 1, "to_host": 0, "num": 1}


def test_the_total_over_all_steps_is_the_loss_of_all_steps(recording):
    finding = between_kernels(recording, PAGEABLE).find("exposed-copy")
    assert finding.total_ns == finding.lost_ns


def test_a_copy_under_a_kernel_costs_nothing(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    r.copy(PINNED, 400, 600, stream=20, launched=(-14, -11))
    assert r.find("exposed-copy") is None


def test_a_copy_within_the_device_is_work(recording):
    r = between_kernels(recording, "Memcpy DtoD (Device -> Device)")
    assert r.find("exposed-copy") is None
    assert r.tables().partition.compute == 1.0


@pytest.mark.parametrize(("took", "fires"), [(9, False), (12, True)])
def test_less_than_a_hundredth_of_the_step_is_not_listed(recording, took, fires):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 400, launched=(-20, -15))
    r.copy(PINNED, 400, 400 + took, launched=(-14, -11))
    r.kernel("relu", 400 + took, 1000, launched=(-10, -5))
    assert any(f.rule == "exposed-copy" for f in r.diagnosis().findings) == fires


def test_the_call_that_stages_pageable_memory_blocks_the_thread(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.op("aten::to", 290, 700)
    r.copy(PAGEABLE, 600, 700, launched=(350, 701))
    r.kernel("relu", 700, 1000, launched=(705, 710))
    # idle from 300 to 600: 50 until the call, 250 inside it; the copy itself stands alone for 100
    assert r.booked() == {"exposed-copy": 250_000, "launch-bound": 50_000}
    assert r.find("exposed-copy").lost_ns == 350_000


def test_a_copy_that_is_the_first_task_of_the_step(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.copy(PINNED, 20, 100, launched=(2, 12))
    r.kernel("relu", 100, 1000, launched=(13, 15))
    # the step's first 2 µs are the host's; then the copy's call and its latency
    assert r.booked() == {"exposed-copy": 18_000, "launch-bound": 2_000}


def test_a_queued_task_that_waits_for_a_copy_on_another_stream(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.copy(PINNED, 0, 300, stream=20, launched=(-30, -25))
    r.kernel("relu", 400, 1000, stream=7, launched=(-10, -5))
    assert r.booked() == {"exposed-copy": 100_000}
    assert r.find("exposed-copy").lost_ns == 400_000


def test_on_the_same_stream_nothing_waited_for_the_copy(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.copy(PINNED, 0, 300, launched=(-30, -25))
    r.kernel("relu", 400, 1000, launched=(-10, -5))
    assert r.booked() == {"unexplained-device": 100_000}


def test_batches_are_pinned_and_prefetched(recording):
    (p,) = between_kernels(recording, PAGEABLE).prescribe("exposed-copy")
    assert (p.id, p.remedy) == ("prefetch-to-device", "diagnose.kernels.prefetch")
    assert p.title == "Pin the batches and copy them one step ahead on a side stream"
    assert "DevicePrefetcher(loader, device)" in p.after
    assert p.saves_ns == (100_000, 200_000)
    assert p.predicted_step_ns == 850_000


def test_values_are_read_back_a_step_later(recording):
    (p,) = between_kernels(recording, READBACK).prescribe("exposed-copy")
    assert (p.id, p.remedy) == ("defer-readback", "diagnose.kernels.deferred_metrics")
    assert p.safety == "same numbers, one step later"
    assert p.saves_ns == (60_000, 200_000)


@pytest.mark.parametrize(
    "name", ["Memcpy HtoD (Pageable -> Device)", "CopyHostToDevice", "Memcpy PtoP (Device -> Device)"]
)
def test_names_of_copies(recording, name):
    assert between_kernels(recording, name).find("exposed-copy") is not None

"""Causes of findings taken out of a graph, whole or in part. Times in µs."""

import numpy as np
import pytest

from diagnose.model.diagnosis import Finding, Removal
from diagnose.model.intervals import Intervals
from diagnose.replay.build import build
from diagnose.replay.simulate import simulate
from diagnose.replay.transforms import remove_cause, syncs_before


def test_exposed_copies_shrink_by_their_exposed_time(recording):
    # The copy takes 100, of which 60 lie under the kernel of the other stream.
    r = recording()
    r.step(1, 0, 20)
    r.copy("Memcpy HtoD (Pinned -> Device)", 20, 120, stream=8, launched=(5, 8))
    r.kernel("a", 20, 80, stream=7, launched=(10, 12))
    r.kernel("b", 120, 300, stream=8, launched=(14, 16))
    t = r.tables()
    change = remove_cause(t, Finding("exposed-copy", "", 40_000), "copy", 1.0)
    assert simulate(change(build(t))).window_ns == pytest.approx(260_000)


@pytest.mark.parametrize(("fraction", "ends"), [(1.0, 116), (0.5, 158)])
def test_the_call_that_stages_a_pageable_copy_gets_shorter_with_it(recording, fraction, ends):
    # The call takes 85 and returns before its copy ends at 104; the kernel starts 6 after the copy.
    r = recording()
    r.step(1, 0, 102)
    r.copy("Memcpy HtoD (Pageable -> Device)", 20, 104, launched=(5, 90), call="cudaMemcpyAsync")
    r.kernel("a", 110, 200, launched=(100, 102))
    t = r.tables()
    change = remove_cause(t, Finding("exposed-copy", "", 84_000), "copy", fraction)
    assert simulate(change(build(t))).window_ns == pytest.approx(ends * 1000)


def test_pauses_shrink(recording):
    r = recording()
    r.step(1, 0, 20)
    r.kernel("a", 0, 50, launched=(0, 0))
    r.kernel("b", 54, 100, launched=(9, 12))
    t = r.tables()
    assert t.causes.totals()["kernel-latency"] == 4_000
    change = remove_cause(t, Finding("kernel-latency", "", 4_000), "pause", 0.5)
    assert simulate(change(build(t))).window_ns == pytest.approx(98_000)


def test_kernels_shrink_by_what_was_lost_in_all_steps(recording):
    r = recording()
    for n in range(2):
        r.step(n, 500 * n, 500 * n + 20)
        r.kernel("a", 500 * n, 500 * n + 400, launched=(500 * n - 9, 500 * n - 5))
    t = r.tables()
    finding = Finding("slow-kernel", "", 100_000, tasks=np.arange(2))  # of each step
    shorter = remove_cause(t, finding, "tasks", 1.0)(build(t))
    assert shorter.duration[shorter.is_task].tolist() == [300_000, 300_000]


def test_where_launches_are_in_flight_the_host_holds_their_tasks(recording):
    # A launch every 25 µs, its task of 10 starts 100 later: without the host's work 40 launches meet at once.
    r = recording()
    r.step(1, 0, 1105)
    r.op("aten::mm", 0, 1000)
    for i in range(40):
        r.kernel("a", 25 * i + 120, 25 * i + 130, launched=(25 * i + 15, 25 * i + 20))
    t = r.tables()
    change = remove_cause(t, Finding("launch-bound", "", 600_000), "host-work", 1.0)
    graph = build(t)
    assert simulate(change(graph)).window_ns < 0.6 * simulate(graph).window_ns


def test_waits_of_one_kind_go_together(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("a", 20, 100, launched=(5, 10))
    r.runtime("cudaStreamSynchronize", 20, 105)  # the device idles after it
    r.kernel("b", 170, 300, launched=(160, 165))
    r.runtime("cudaEventSynchronize", 170, 200)
    r.kernel("c", 300, 900, launched=(210, 215))
    r.runtime("cudaStreamSynchronize", 220, 310)  # c hides what the host loses here
    t = r.tables()
    gap = Intervals(np.array([100_000]), np.array([160_000]))
    assert t.trace.events.start[syncs_before(t, gap)].tolist() == [20_000, 220_000]


@pytest.mark.parametrize(("fraction", "ends"), [(1.0, 140), (0.5, 155)])
def test_operators_go_with_their_kernels_their_host_time_and_their_waits(recording, fraction, ends):
    # The host waits for the device from 30 to 70, prepares a kernel of 30 until 100, and launches the next one at 110.
    r = recording()
    r.step(1, 0, 120)
    r.kernel("other", 0, 70, launched=(0, 0))
    r.runtime("cudaStreamSynchronize", 30, 70)
    r.kernel("mine", 100, 130, launched=(100, 100))
    r.kernel("next", 130, 200, launched=(110, 110))
    t = r.tables()
    waits = t.blocking_calls
    assert len(waits) == 1
    host = Intervals(np.array([70_000]), np.array([100_000]))
    removal = Removal(host, waits, np.array([1]), np.array([30_000.0]))
    change = remove_cause(t, Finding("independent-loop", "", 1_000, without=removal), "tasks", fraction)
    assert simulate(change(build(t))).window_ns == pytest.approx(ends * 1000)

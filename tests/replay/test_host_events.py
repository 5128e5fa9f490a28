"""Launches that block on a full queue: the host waits there, so shorter kernels let it go on earlier."""

import numpy as np
import pytest

from diagnose.replay import build, scale_kernels, simulate
from diagnose.tables.syncs import full_queue

DEPTH = 200
KERNEL_US = 100.0
CALL_US = 5.0


@pytest.fixture
def crowded(recording):
    """Return 6 steps of 100 launches each; from the 200th on each call returns when the device takes a task out."""
    r = recording()
    now, step = 0.0, 0.0
    starts = [10 + i * KERNEL_US for i in range(600)]
    for i, start in enumerate(starts):
        end = max(now + CALL_US, starts[i - DEPTH] + 1 if i >= DEPTH else 0.0)
        r.kernel("gemm", start, start + KERNEL_US, launched=(now, end))
        now = end + 2
        if i % 100 == 99:
            r.step(i // 100, step, now)
            step = now
    return r.tables()


def test_which_calls_wait_and_for_what(crowded):
    calls, freed_by = full_queue(crowded)
    assert len(calls) == 384  # the first that wait do so for less than a kernel
    events = crowded.trace.events
    assert set((events.end[calls] - events.end[freed_by]).tolist()) == {1000}


def test_shorter_kernels_make_the_steps_shorter(crowded):
    graph = build(crowded)
    before = simulate(graph).end.max()
    assert before == crowded.trace.events.end.max()
    after = simulate(scale_kernels(graph, crowded.trace, "gemm", 0.25)).end.max()
    assert after == pytest.approx(0.25 * before, rel=0.02)  # with the calls as host work it would be two thirds


def test_a_long_launch_onto_a_short_queue_is_the_host_s(recording):
    r = recording()
    r.step(1, 0, 3000)
    for i in range(10):
        r.kernel("gemm", 210 + 300 * i, 250 + 300 * i, launched=(300 * i, 300 * i + 200))
    assert len(full_queue(r.tables()).calls) == 0


def test_the_wait_is_no_host_work(crowded):
    graph = build(crowded)
    host = graph.duration[~graph.is_task].sum()
    assert host <= 600 * (CALL_US + 2) * 1000
    assert np.isclose(graph.duration[graph.is_task].sum(), 600 * KERNEL_US * 1000)

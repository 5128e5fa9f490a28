"""Causes of findings taken out of a graph, whole or in part. Times in µs."""

import numpy as np
import pytest

from diagnose.model.diagnosis import Finding
from diagnose.replay.build import build
from diagnose.replay.remove_cause import remove_cause
from diagnose.replay.simulate import simulate


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

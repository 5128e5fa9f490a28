"""The sampler: where a thread is, whether it runs, and what watching it costs."""

import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from diagnose.capture.record.sampler import Sampler

SPINNING = "import os; os.sched_setaffinity(0, {{{}}})\nwhile True: pass"


def sampled(work, period_ms=2.0):
    sampler = Sampler(threading.get_ident(), threading.get_native_id(), period_ms)
    sampler.start()
    work()
    sampler.stop()
    return sampler


def spin(seconds=0.3):
    end = time.thread_time() + seconds
    total = 0
    while time.thread_time() < end:
        total += 1
    return total


def places(sampler):
    rows = sampler.rows()
    return [tuple(rows["places"][place]) for place in rows["place"]]


def test_the_executing_line_not_the_function_s_first():
    found = places(sampled(lambda: spin(1.0)))
    inside = [(line, function) for file, line, function in found if file == __file__]
    assert len(inside) > 0.8 * len(found)
    assert {function for _, function in inside} <= {"spin", "sampled", "<lambda>"}
    first = spin.__code__.co_firstlineno
    assert {line for line, function in inside if function == "spin"} <= {first + 1, first + 3, first + 4}


def test_library_frames_are_seen_through():
    found = places(sampled(lambda: [statistics.median(range(20_000)) for _ in range(60)]))
    assert all(file == __file__ for file, _, _ in found)


def test_waiting_and_running():
    waiting = sampled(lambda: time.sleep(0.2)).rows()["running"]
    assert statistics.mean(waiting) < 0.5
    native = np.random.default_rng(0).random((400, 400))
    running = sampled(lambda: [native @ native for _ in range(60)]).rows()["running"]
    assert max(running) == 1


def test_a_wait_shorter_than_the_period_is_told_from_what_runs_around_it():
    def nap():
        time.sleep(0.0047)  # no whole number of periods for both: samples fall on all of it

    sampler = sampled(lambda: [(spin(0.006), nap()) for _ in range(60)], period_ms=5.0)
    running = {"spin": [], "nap": []}
    for (_, _, function), runs in zip(places(sampler), sampler.rows()["running"], strict=True):
        running.get(function, []).append(runs)
    assert statistics.mean(running["spin"]) - statistics.mean(running["nap"]) > 0.5


def test_says_what_it_costs():
    summary = sampled(spin, period_ms=5.0).summary()
    assert summary["num_samples"] > 3
    assert summary["period_ms"] == 5
    assert 0 < summary["cost_share"] < 1  # how much it is, scripts/bench measures


def test_tells_how_long_the_thread_stood_ready_without_a_core():
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not count how long threads wait for a core")
    here = min(os.sched_getaffinity(0))
    others = [subprocess.Popen([sys.executable, "-c", SPINNING.format(here)]) for _ in range(2)]
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(threading.get_native_id(), {here})  # of this thread: one core for three
        crowded = sampled(lambda: spin(1.0)).summary()["ready_share"]
    finally:
        os.sched_setaffinity(threading.get_native_id(), allowed)
        for other in others:
            other.kill()
            other.wait()
    assert crowded > 0.3
    assert sampled(lambda: time.sleep(0.2)).summary()["ready_share"] < 0.2


def test_a_system_that_counts_nothing_says_nothing(monkeypatch):
    monkeypatch.setattr("diagnose.capture.record.sampler._ready_ns", lambda _: None)
    assert sampled(spin).summary()["ready_share"] is None


def test_samples_less_often_where_a_sample_is_dear(monkeypatch):
    often = sampled(spin, period_ms=2.0).summary()
    monkeypatch.setattr("diagnose.capture.record.sampler.MAX_CPU_SHARE", 0.0005)
    assert sampled(spin, period_ms=2.0).summary()["num_samples"] < often["num_samples"] / 2


def test_stretches_add_up():
    sampler = Sampler(threading.get_ident(), threading.get_native_id(), 2.0)
    counts = []
    for _ in range(2):
        sampler.start()
        time.sleep(0.05)
        sampler.stop()
        counts.append(len(sampler.rows()["time_ns"]))
    assert 0 < counts[0] < counts[1]
    assert sampler.rows()["time_ns"] == sorted(sampler.rows()["time_ns"])

"""The sampler: where a thread is, whether it runs, and what watching it costs.

What a test waits for is a number of samples, never a time; what only a live machine can show is marked ``timing``.
"""

import gc
import os
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from diagnose.capture.frames.stretch import UNKNOWN, state_in
from diagnose.capture.record import sampler as module
from diagnose.capture.record.sampler import Sampler, Taken
from diagnose.capture.record.samplers import Samplers

SPINNING = "import os; os.sched_setaffinity(0, {{{}}})\nwhile True: pass"
MIN_SAMPLES = 20  # samples
HUNG_S = 300  # far above what any wait here takes, so that a hang fails

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def count(sampler):
    return len(sampler.taken.time_ns)  # the rows themselves change while the sampler runs


def until(done):
    end = time.monotonic() + HUNG_S
    while not done():
        assert time.monotonic() < end, "no sample was taken"


def sampled(work, period_ms=2.0, samples=MIN_SAMPLES, **options):
    """Sample this thread while it does a piece of work again and again, until there are enough samples."""
    sampler = Sampler(Taken(threading.get_ident(), threading.get_native_id(), period_ms, **options))
    sampler.start()
    until(lambda: work() is None and count(sampler) >= samples)
    sampler.stop()
    return sampler


def spin():
    total = 0
    for number in range(20_000):
        total += number


def places(sampler):
    rows = sampler.taken.rows()
    return [tuple(rows["places"][place]) for place in rows["place"]]


def stand(ends):
    ends.wait()


@contextmanager
def sampler_of_a_thread_that_stands():
    """The sampler of a thread that has reached the only line of ``stand`` and waits in it until the block ends."""
    ends, known = threading.Event(), []
    thread = threading.Thread(target=lambda: (known.append(threading.get_native_id()), stand(ends)))
    thread.start()
    until(lambda: sys._current_frames()[thread.ident].f_code is threading.Condition.wait.__code__)
    try:
        yield Sampler(Taken(thread.ident, known[0], 2.0))
    finally:
        ends.set()
        thread.join()


def let_run(sampler):
    sampler.start()
    until(lambda: time.sleep(0.001) is None and count(sampler) >= MIN_SAMPLES)
    sampler.stop()


def test_the_executing_line_not_the_function_s_first():
    """Of a thread that stands; one that runs is now and then met at a function's first line, as it enters it."""
    with sampler_of_a_thread_that_stands() as sampler:
        let_run(sampler)
    assert set(places(sampler)) == {(__file__, stand.__code__.co_firstlineno + 1, "stand")}


def test_what_runs_is_met_in_its_body():
    found = places(sampled(spin))
    first = spin.__code__.co_firstlineno
    lines = [line for file, line, function in found if (file, function) == (__file__, "spin")]
    assert set(lines) & {first + 1, first + 2, first + 3}
    assert {file for file, _, _ in found} == {__file__}


@pytest.mark.parametrize(
    ("others", "switch_s"), [([], 0.00002), (["diagnose-limits"], 0.00002), (["diagnose-nvml", "prefetch"], 0.0002)]
)
def test_short_stretches_of_python_are_sampled_where_no_other_thread_wants_the_interpreter(
    monkeypatch, others, switch_s
):
    sampler, before = Sampler(Taken(threading.get_ident(), threading.get_native_id(), 2.0)), sys.getswitchinterval()
    threads = [SimpleNamespace(ident=i, name=name) for i, name in enumerate(others)]
    monkeypatch.setattr(module.threading, "enumerate", lambda: [threading.current_thread(), *threads])
    sampler.start()
    meanwhile = sys.getswitchinterval()
    sampler.stop()
    assert (meanwhile, sys.getswitchinterval()) == (pytest.approx(switch_s), before)


@needs_proc
def test_only_the_sampler_s_own_timed_waits_end_on_time():
    def slack_ns(native_id):
        return int(Path(f"/proc/{native_id}/timerslack_ns").read_text())

    mine = threading.get_native_id()
    before, sampler = slack_ns(mine), Sampler(Taken(threading.get_ident(), mine, 2.0))
    sampler.start()
    until(lambda: count(sampler) > 0)
    during = slack_ns(sampler._thread.native_id), slack_ns(mine)
    sampler.stop()
    assert during == (1, before)
    assert before > 1


@pytest.mark.parametrize("from_memory", [True, False])
def test_samplers_in_turn_leave_the_interpreter_as_they_found_it(monkeypatch, from_memory):
    if not from_memory:
        monkeypatch.setattr("diagnose.capture.record.samplers._unfit", lambda: "Not here.")
    before, samplers = sys.getswitchinterval(), Samplers(2.0)
    samplers.sample_window(on=True)
    inside = sys.getswitchinterval()
    samplers.sample_window(on=False)
    between = sys.getswitchinterval()
    samplers.stop()
    assert inside == before if samplers.summary["method"] == "memory" else inside < before
    assert (between, sys.getswitchinterval()) == (before, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_begins_with_python_s_own_switching():
    sampler, before = Sampler(Taken(threading.get_ident(), threading.get_native_id(), 1.0)), sys.getswitchinterval()
    sampler.start()
    reads, writes = os.pipe()
    if not (child := os.fork()):
        os.write(writes, str(sys.getswitchinterval()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    sampler.stop()
    assert float(os.read(reads, 100)) == before
    os.close(reads)
    os.close(writes)


def test_collections_are_noted_in_windows_and_between_them():
    samplers, noted = Samplers(2.0, min_pause_ns=0), []
    samplers.sample_run(on=True)
    for on in (False, True, False):
        samplers.sample_window(on=on)
        gc.collect()
        noted.append(len(samplers.gc_runs))
    samplers.stop()
    gc.collect()
    assert noted[0] >= 1
    assert noted[0] < noted[1] < noted[2] == len(samplers.gc_runs)


def test_library_frames_are_seen_through():
    found = places(sampled(lambda: [statistics.median(range(20_000)) for _ in range(2)] and None))
    assert {file for file, _, _ in found} == {__file__}


def test_a_thread_that_computes_runs():
    native = np.random.default_rng(0).random((400, 400))
    sampler = Sampler(Taken(threading.get_ident(), threading.get_native_id(), 2.0))
    sampler.start()
    until(lambda: (native @ native).any() and 1 in sampler.taken.running)
    sampler.stop()


@needs_proc
def test_a_thread_that_waits_does_not_run():
    with sampler_of_a_thread_that_stands() as sampler:
        stat = Path(f"/proc/self/task/{sampler.taken.native_id}/stat")
        until(lambda: stat.read_text().rpartition(") ")[2].startswith("S"))
        let_run(sampler)
    assert set(sampler.taken.rows()["running"]) == {0}


@pytest.mark.parametrize(
    ("line", "state"),
    [(b"7 (python) R 1 7", 1), (b"7 (a) R (b) S 1 7", 0), (b"7 (python) D 1", 0), (b"", UNKNOWN)],
)
def test_the_state_is_the_letter_after_the_name(tmp_path, line, state):
    (tmp_path / "stat").write_bytes(line)
    with (tmp_path / "stat").open("rb") as file:
        assert state_in(file.fileno()) == state


def test_the_cost_of_sampling_is_in_the_summary():
    summary = sampled(spin, period_ms=5.0, samples=4).taken.summary()
    assert summary["num_samples"] >= 4
    assert summary["period_ms"] == 5
    assert 0 < summary["cost_share"] < 1  # how much it is, evaluation/bench measures


def test_the_share_of_the_time_that_the_thread_stood_ready_without_a_core():
    ready_ns = iter([1_000_000, 4_000_000, 10_000_000, 10_000_000])
    sampler = sampled(spin, samples=1, counts=lambda _: (0, next(ready_ns)))
    assert sampler.taken.summary()["ready_share"] == round(3_000_000 / sampler.taken._watched_ns, 5)
    sampler.start()
    sampler.stop()
    assert sampler.taken.summary()["ready_share"] == round(3_000_000 / sampler.taken._watched_ns, 5)


def test_a_system_that_counts_nothing_gives_no_share():
    assert sampled(spin, samples=1, counts=lambda _: (0, None)).taken.summary()["ready_share"] is None


def test_this_system_s_count_is_read():
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not count how long threads wait for a core")
    assert module.schedstat(threading.get_native_id())[1] >= 0


@pytest.mark.parametrize(("depth", "pause"), [(1, 0.02), (6, 0.08)])
def test_samples_less_often_where_a_sample_is_dear(monkeypatch, depth, pause):
    """At 1 ms of CPU time a sample, 20 ms between samples keep it at 5 % of a core in a window, 80 ms at 1.25 %."""
    sampler = Sampler(Taken(threading.get_ident(), threading.get_native_id(), 2.0, depth=depth))
    pauses, used_ns = [], iter(range(0, 100_000_000, 1_000_000))

    def sleep(seconds):
        pauses.append(round(seconds, 6))
        sampler._enough = len(pauses) == 4

    for name, value in {"sleep": sleep, "thread_time_ns": lambda: next(used_ns)}.items():
        monkeypatch.setattr(module.time, name, value)
    sampler._run()
    assert pauses == [0.002, pause, pause, pause]


def test_stretches_add_up():
    sampler = Sampler(Taken(threading.get_ident(), threading.get_native_id(), 2.0))
    counts = [0]
    for _ in range(2):
        sampler.start()
        until(lambda: count(sampler) > counts[-1])
        sampler.stop()
        counts.append(count(sampler))
    assert counts[0] < counts[1] < counts[2]
    assert sampler.taken.rows()["time_ns"] == sorted(sampler.taken.rows()["time_ns"])


def spin_for(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.timing
def test_a_wait_shorter_than_the_period_is_told_from_what_runs_around_it():
    def nap():
        time.sleep(0.0047)  # no whole number of periods for both: samples fall on all of it

    def work():
        spin_for(0.006)
        nap()

    sampler = sampled(work, period_ms=5.0, samples=100)
    running = {"spin_for": [], "nap": []}
    for (_, _, function), runs in zip(places(sampler), sampler.taken.rows()["running"], strict=True):
        running.get(function, []).append(runs)
    assert statistics.mean(running["spin_for"]) - statistics.mean(running["nap"]) > 0.5


@pytest.mark.timing
def test_a_crowded_core_is_seen():
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not count how long threads wait for a core")
    here = min(os.sched_getaffinity(0))
    others = [subprocess.Popen([sys.executable, "-c", SPINNING.format(here)]) for _ in range(2)]
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(threading.get_native_id(), {here})  # of this thread: one core for three
        crowded = sampled(lambda: spin_for(0.1), samples=100).taken.summary()["ready_share"]
    finally:
        os.sched_setaffinity(threading.get_native_id(), allowed)
        for other in others:
            other.kill()
            other.wait()
    assert crowded > 0.3
    assert sampled(lambda: time.sleep(0.01), samples=50).taken.summary()["ready_share"] < 0.2

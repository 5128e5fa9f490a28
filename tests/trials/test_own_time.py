"""What others take from a thread, by the counts of the system that the tests run on."""

import os
import sys
import threading
import time

import pytest

from diagnose.trials import own_time
from diagnose.trials.own_time import CpuTime, queued_ns

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it")


def spin(seconds):
    """Work for so long by the thread's own clock; return what the wall's showed."""
    began, until = time.perf_counter_ns(), time.thread_time_ns() + seconds * 1e9
    while time.thread_time_ns() < until:
        pass
    return time.perf_counter_ns() - began


@needs_linux
def test_a_thread_that_shares_its_core_is_ready_without_it_for_what_the_other_one_takes():
    cores, pid = os.sched_getaffinity(0), os.fork()
    if not pid:
        os.sched_setaffinity(0, {min(cores)})
        spin(30.0)
        os._exit(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        before = queued_ns()
        wall_ns, queued = spin(0.3), queued_ns() - before
    finally:
        os.sched_setaffinity(0, cores)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert queued > 0.1e9
    assert wall_ns - queued == pytest.approx(0.3e9, rel=0.1)


def test_a_thread_that_works_alone_is_all_that_its_steps_take():
    began, before = CpuTime.now(), queued_ns()
    wall_ns = spin(0.2)
    assert began.apart(wall_ns - (queued_ns() - before)) < 0.1


def test_what_it_sleeps_and_what_others_of_its_process_work_is_apart():
    began, before = CpuTime.now(), queued_ns()
    time.sleep(0.1)
    assert began.apart(0.1e9 - (queued_ns() - before)) > 0.5
    began = CpuTime.now()
    helper = threading.Thread(target=spin, args=(0.1,))
    helper.start()
    helper.join()
    assert began.apart(0.2e9) > 0.9


def test_without_the_systems_counts_nothing_is_taken_off(monkeypatch):
    monkeypatch.setattr(own_time, "_counts", lambda _thread: os.open("/no such file", os.O_RDONLY))
    assert queued_ns() == 0

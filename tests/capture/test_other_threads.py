"""Where the script's other threads are, and whether they compute in Python."""

import dis
import sys
import threading
from types import SimpleNamespace

import pytest

from diagnose.capture.record.taken import LOOK_EVERY, OtherThreads


@pytest.fixture
def waiting():
    """Yield a thread that lives until the test is over."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="prefetch")
    thread.start()
    yield thread
    over.set()
    thread.join()


def stopped(at_jump):
    """Return a frame that stands at the end of a turn of a loop, or at a call in it."""
    code = compile("while ready: work()", "train.py", "exec")
    wanted = "JUMP" if at_jump else "CALL"
    at = next(each.offset for each in dis.get_instructions(code) if wanted in each.opname)
    return SimpleNamespace(f_code=code, f_lasti=at)


def looked_at(thread, frame, times=5):
    watch = OtherThreads(threading.get_ident())
    watch.begin()
    frames = {threading.get_ident(): sys._getframe(), -1: frame, thread.ident: frame}
    for _ in range(times * LOOK_EVERY):
        watch.look(frames, lambda _frame: ("train.py", 7, "features"))
    watch.end()
    return watch.rows()


@pytest.mark.parametrize(("at_jump", "in_python"), [(True, 5), (False, 0)])
def test_a_thread_is_in_python_where_it_takes_turns(waiting, at_jump, in_python):
    (row,) = looked_at(waiting, stopped(at_jump))
    assert (row["name"], row["num"]) == ("prefetch", 5)
    assert row["places"] == [[["train.py", 7, "features"], 5, in_python]]


def test_one_that_waits_for_another_is_left_out(waiting):
    assert looked_at(waiting, sys._current_frames()[waiting.ident]) == []


def test_so_are_ours(waiting):
    waiting.name = "diagnose-nvml"
    assert looked_at(waiting, stopped(True)) == []

"""Scripts that train on a thread: a stop ends the program, or nothing of it."""

import threading

import pytest

from diagnose.capture.process.process import Killed, StopSignals
from diagnose.capture.process.script import stop_script


@pytest.mark.parametrize("how", ["thread", "pool"])
def test_a_stop_ends_the_program_and_not_only_the_thread(capturing, how):
    run = capturing("thread.py", how, 10**9, steps=4, skip=4)
    assert (run.exit_code, run.info.ended) == (0, "stopped"), run.stderr
    assert "saved after" not in run.stdout
    assert "Traceback" not in run.stderr


def test_a_program_that_cannot_be_stopped_runs_to_its_end(capturing):
    run = capturing("thread.py", "handler", 1000, steps=4, skip=4)
    assert (run.exit_code, run.info.ended) == (0, "finished"), run.stderr
    assert run.stdout.endswith("saved after 1000\n")
    assert "own handler" not in run.stdout
    assert len([line for line in run.result["said"] if "cannot be stopped" in line]) == 1


def on_a_thread(call):
    """Return what the call on another thread raised or returned, after the thread has ended."""
    found = []

    def run():
        try:
            found.append(call())
        except BaseException as error:  # what is looked for
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_the_thread_ends_once_the_main_one_unwinds():
    signals, ended = StopSignals(), []
    with signals.installed(), pytest.raises(Killed):
        ended.append(on_a_thread(lambda: stop_script(print, signals)))
    assert ended == [], "the main thread went on"


def test_after_the_script_s_end_nothing_is_stopped():
    signals = StopSignals()
    with signals.installed():
        signals.defer()
        assert on_a_thread(lambda: stop_script(print, signals)) is None

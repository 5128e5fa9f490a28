"""Handlers of signals that raise: none of them costs a capture."""

import os
import signal

import pytest

from diagnose.capture.process.process import Killed, StopSignals
from diagnose.capture.steps.hooks import shut_workers


@pytest.fixture
def children_raise():
    """Handle SIGCHLD as torch's DataLoader does when a worker was killed."""

    def handler(number, frame):
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Terminated.")

    before = signal.signal(signal.SIGCHLD, handler)
    yield handler
    signal.signal(signal.SIGCHLD, before)


def test_while_a_signal_unwinds_the_script_no_dead_worker_raises(children_raise):
    with StopSignals().installed():
        with pytest.raises(Killed):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGCHLD)
    assert signal.getsignal(signal.SIGCHLD) is children_raise


def test_a_worker_that_dies_while_handlers_are_replaced_does_not_keep_them_in_place(children_raise, monkeypatch):
    real, numbers = signal.signal, [signal.SIGCHLD]

    def interrupted(number, handler):
        if numbers:
            os.kill(os.getpid(), numbers.pop())  # runs the script's handler here
        return real(number, handler)

    signals = StopSignals()
    with signals.installed():
        monkeypatch.setattr(signal, "signal", interrupted)
        signals.defer()
        monkeypatch.undo()
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert signals.deferred == signal.SIGINT
    assert signal.getsignal(signal.SIGCHLD) is children_raise


def test_an_interrupt_while_handlers_are_replaced_is_remembered(monkeypatch):
    real, numbers = signal.signal, [signal.SIGINT]

    def interrupted(number, handler):
        if numbers:
            os.kill(os.getpid(), numbers.pop())
        return real(number, handler)

    signals = StopSignals()
    with signals.installed():
        monkeypatch.setattr(signal, "signal", interrupted)
        signals.defer()
        monkeypatch.undo()
        assert signals.deferred == signal.SIGINT


def test_an_iterator_that_cannot_be_shut_leaves_the_others_to_be_shut():
    class Iterator:
        def __init__(self, failure):
            self.failure, self.is_shut = failure, False

        def _shutdown_workers(self):
            if self.failure:
                raise RuntimeError(self.failure)
            self.is_shut = True

    broken, whole = Iterator("DataLoader worker is killed"), Iterator("")
    shut_workers([broken, object(), whole])
    assert whole.is_shut

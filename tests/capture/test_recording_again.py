"""A window that was cut although its trace is small is recorded again, a few times, and no other."""

import pytest

from diagnose.capture.record import recording
from diagnose.capture.record.measurements import Measurements
from diagnose.capture.record.recording import Recorder
from tests.capture.test_bounds import hooks_of

LIMIT_MB = 10.0


@pytest.fixture
def windows(monkeypatch):
    """Let windows be stand-ins whose traces have these MB, one after the other; the list of those that were made."""
    made = []

    class Window:
        sizes = ()

        def __init__(self, kind, *, stacks):
            self.kind, self.num_steps, self.flags = kind, 0, {}
            self.running = False
            made.append(self)

        def start(self):
            self.running = True

        def begin_step(self, number):
            """Mark nothing."""

        def end_step(self):
            self.num_steps += self.running

        def stop(self):
            self.running = False

        def export(self, path):
            path.write_bytes(b"")
            return self.sizes[len(made) - 1]

    monkeypatch.setattr(recording, "Window", Window)
    monkeypatch.setattr("diagnose.capture.record.window.heap_mb", lambda: None)
    return Window, made


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let 10 ms pass with each step: at the highest rate three of them stay below the limit."""
    now = [0.0]
    monkeypatch.setattr("diagnose.capture.record.window.time.monotonic", lambda: now[0])
    return now


def record(windows, clock, tmp_path, sizes, cut_in):
    """Record three steps, with a cut in the second step of each attempt in ``cut_in``; return what was measured."""
    window, made = windows
    window.sizes = sizes
    measured = Measurements()
    recorder = Recorder(hooks_of(tmp_path), measured)
    steps = recorder.record("light", 3, LIMIT_MB, lambda: False, warm_up=False)
    next(steps)
    for number in range(100):
        recorder.begin_step(number)
        if len(made) in cut_in and made[-1].num_steps == 1:
            recorder.cut("--max-mb 10")
        recorder.end_step()
        clock[0] += 0.01
        try:
            steps.send(1_000_000)
        except StopIteration:
            return measured, len(made)
    raise AssertionError("it goes on for ever")


def test_a_small_trace_that_was_cut_is_recorded_again(windows, clock, tmp_path):
    measured, num = record(windows, clock, tmp_path, (1.0, 1.0), cut_in={1})
    assert (num, len(measured.timing), measured.mb["light"]) == (2, 3, 1.0)
    assert not measured.notes  # the second is whole


def test_a_trace_that_was_cut_and_is_as_large_as_allowed_is_kept(windows, clock, tmp_path):
    measured, num = record(windows, clock, tmp_path, (8.0, 1.0), cut_in={1})
    assert (num, len(measured.timing)) == (1, 1)
    assert measured.notes == ["The light window was stopped by --max-mb 10; it holds 1 whole steps."]


def test_it_is_not_recorded_again_for_ever(windows, clock, tmp_path):
    measured, num = record(windows, clock, tmp_path, (1.0,) * 10, cut_in=range(1, 11))
    assert (num, len(measured.timing)) == (3, 1)
    assert measured.notes == ["The light window was stopped by --max-mb 10; it holds 1 whole steps."]


def test_a_whole_window_is_recorded_once(windows, clock, tmp_path):
    measured, num = record(windows, clock, tmp_path, (1.0,), cut_in=())
    assert (num, len(measured.timing)) == (1, 3)

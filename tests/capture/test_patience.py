"""When a quick recording begins, by a clock that the test sets, and what it holds of a long first batch."""

import math

import pytest

from diagnose.capture.options import CaptureOptions
from diagnose.capture.record.session import Session


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("diagnose.capture.record.session.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def session(clock, tmp_path):
    made = Session(CaptureOptions(output=tmp_path / "c", quick=True), (), report=lambda _text: None, stop=None)
    yield made
    made.close()
    made.folder.discard()


def test_a_wait_for_the_first_batch_is_what_a_quick_recording_waits_for(session, clock):
    assert session._due_in() == math.inf  # the script prepares
    clock[0] += 2
    session.listener._loads(True)
    assert session._due_in() == 3
    clock[0] += 4
    assert session._due_in() < 0


def test_a_loader_that_is_begun_counts_as_well(session, clock):
    session.listener._loader_opened(None, [0])
    clock[0] += 3
    assert session._due_in() == 0


@pytest.mark.parametrize(("prepared", "left"), [(0, 3), (3, 3), (4, 2), (6, 0), (30, -24)])
def test_patience_counts_from_the_start_of_the_run(session, clock, prepared, left):
    clock[0] += prepared
    session.listener._on_event("forward", session)
    assert session._due_in() == left


@pytest.mark.parametrize(("elapsed", "window"), [(0, 4), (6, 4), (7, 3), (30, 2)])
def test_what_a_late_script_leaves_is_shorter(session, clock, elapsed, window):
    clock[0] += elapsed
    session._begin(at_once=False)
    assert session.plan._max_s == window


def test_a_first_batch_that_takes_long_is_recorded_and_named(captured):
    run = captured["first batch"]
    (wait,) = [e for e in run.events("light") if e.name.startswith("enumerate(DataLoader)#_SingleProcess")]
    assert wait.cat == "user_annotation"
    assert wait.end - wait.start > 0.1e9  # of 3 s, of which starting the profiler may take most
    assert run.info.light_ms == ()
    assert run.result["said"].count("capturing 10 steps (light window)") == 1


def test_a_wait_that_ends_within_the_window_ends_its_mark(session):
    over = []
    session.listener._loads(True, range(2))
    assert session.listener.join_wait(lambda: over.append(1)) == "range"
    session.listener._loads(False)
    session.listener._loads(True)
    session.listener._loads(False)
    assert over == [1]
    assert session.listener.join_wait(list) == ""

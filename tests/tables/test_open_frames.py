"""Frames that were open as the recording began, and where their lines are. In µs; the first step starts at 1000."""

import pytest

from diagnose.analyzers.common.locate import locate_one
from diagnose.tables.call_frames import open_frames


@pytest.fixture
def r(recording):
    """A recording that `main` begins in its line 88, with the profiler's own frames; then `main` calls `forward`."""
    r = recording()
    r.step(1, 1000, 2000)
    r.kernel("gemm", 1000, 2000, launched=(980, 985))
    r.frame("train.py(120): <module>", 0, 3000)
    r.frame("train.py(88): main", 1, 2990)
    r.frame("torch/profiler/profiler.py(700): start", 2, 100)
    r.frame("torch/autograd/profiler.py(289): _start_trace", 3, 90)
    r.frame("torch/profiler/profiler.py(740): step", 150, 160)
    r.frame("model.py(20): forward", 1100, 1300)
    return r


def names(t):
    return {t.name(row) for row in open_frames(t)}


def test_those_that_were_open_and_still_are_as_the_steps_begin(r):
    assert names(r.tables()) == {"train.py(120): <module>", "train.py(88): main"}


def test_a_function_called_later_is_none_however_long_it_runs(r):
    r.frame("train.py(30): epoch", 200, 2900)
    assert names(r.tables()) == {"train.py(120): <module>", "train.py(88): main"}


def test_one_that_begins_with_the_first_step_is_none(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    r.frame("train.py(41): main", 0, 1000)
    assert not open_frames(r.tables())


def test_without_frames_there_are_none(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    assert not open_frames(r.tables())


@pytest.mark.parametrize(
    ("time", "place"),
    [
        (1500, (None, None, None)),  # line 88 began the recording: which line runs by now is not known
        (1200, ("model.py", 20, "forward")),
    ],
)
def test_the_line_that_began_the_recording_is_no_place(r, time, place):
    where = locate_one(r.tables(), 0, time * 1000)
    assert (where.file, where.line, where.function) == place


def test_the_line_that_calls_an_open_frame_still_runs(recording):
    r = recording()
    r.step(1, 1000, 2000)
    r.kernel("gemm", 1000, 2000, launched=(980, 985))
    r.frame("train.py(54): <module>", 0, 3000)
    r.frame("lightning/pytorch/loops/fit_loop.py(455): advance", 1, 2990)
    where = locate_one(r.tables(), 0, 1_500_000)
    assert (where.file, where.line, where.library) == ("train.py", 54, "lightning/pytorch/loops/fit_loop.py in advance")

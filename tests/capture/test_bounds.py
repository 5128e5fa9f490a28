"""The bounds on a capture's size and time hold inside a window and inside a step."""

import os
import signal
import threading

import pytest

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.process import heap_mb
from diagnose.capture.record.interrupt import StepInterrupt
from diagnose.capture.record.measurements import Measurements, PlanHooks
from diagnose.capture.record.plan import Plan
from diagnose.capture.record.trace_size import TraceSize


@pytest.fixture(scope="module")
def bounded(tmp_path_factory, capturing_in):
    """Traces of steps that exceed a bound on their own."""
    capturing = capturing_in(tmp_path_factory.mktemp("bounded"))
    jobs = {
        "frames": capturing.job("bounds.py", "frames", steps=2, skip=0, max_mb=5.0),
        "endless": capturing.job("bounds.py", "endless", max_seconds=1.0),
    }
    return dict(zip(jobs, capturing.run(list(jobs.values())), strict=True))


def test_a_step_of_many_frames_is_cut_at_the_size(bounded):
    run = bounded["frames"]
    size_mb = uncompressed(run) / 1e6
    assert size_mb < 1.5 * 5
    assert run.info.attribution_ms == ()
    assert any("--max-mb 5 inside step" in note and "a part of one step" in note for note in run.info.notes)


def test_a_step_without_an_end_is_stopped(bounded):
    result = bounded["endless"].result
    assert (result["kind"], result["exit_code"]) == ("CaptureError", 5)
    assert "--max-seconds 1 inside step" in result["failure"]


def uncompressed(run):
    import gzip

    return sum(len(gzip.decompress(path.read_bytes())) for path in run.folder.glob("*.pt.trace.json.gz"))


def test_the_time_bounds_the_size_where_the_heap_does_not(monkeypatch):
    monkeypatch.setattr("diagnose.capture.record.trace_size.heap_mb", lambda: None)
    size = TraceSize("attribution", mb_per_s=1e-6)
    assert size.safe_s(1.0) > 900_000
    assert size.mb() < 1e-3


def test_what_the_script_gives_back_does_not_hide_the_growth_after_it(monkeypatch):
    heap = iter([100.0, 40.0, 44.0])
    monkeypatch.setattr("diagnose.capture.record.trace_size.heap_mb", lambda: next(heap))
    size = TraceSize("attribution", mb_per_s=1e9)
    assert size.mb() == 0
    assert size.mb() == pytest.approx(46)  # 4 MB of heap


def test_the_heap_s_growth_is_seen():
    before = heap_mb()
    if before is None:
        pytest.skip("this system's allocator does not tell")
    block = bytearray(10_000_000)
    assert 9 < heap_mb() - before < 11
    del block


def test_the_main_thread_is_interrupted_and_the_signal_is_left_as_it_was():
    acted = threading.Event()
    interrupt = StepInterrupt(lambda: 1.0 if acted.is_set() else 0.0, acted.set)
    interrupt.start()
    while not acted.is_set():
        pass
    interrupt.stop()
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL


def test_a_script_s_own_handler_stays():
    mine = signal.signal(signal.SIGURG, lambda *_: None)
    try:
        own = signal.getsignal(signal.SIGURG)
        interrupt = StepInterrupt(lambda: 0.0, os.abort)
        interrupt.start()
        interrupt.stop()
        assert signal.getsignal(signal.SIGURG) is own
    finally:
        signal.signal(signal.SIGURG, mine)


def test_long_steps_go_to_the_windows_not_to_the_wait(tmp_path, monkeypatch):
    """With 30 s for steps of 7 s no step is spent on waiting or timing once four more would be too late."""
    now = [0.0]
    monkeypatch.setattr("diagnose.capture.record.plan.time.monotonic", lambda: now[0])
    monkeypatch.setattr("diagnose.capture.record.plan.time.perf_counter_ns", lambda: int(now[0] * 1e9))
    nothing = lambda *_: 0
    hooks = PlanHooks(
        folder=tmp_path, prefix="rank0", num_ranks=1, say=nothing, other_active=lambda: False,
        undecided=lambda: False, compiled=nothing, look=nothing, settled=nothing, sampling=nothing, wrote=nothing,
        stepped=nothing,
    )  # fmt: skip
    windows = []

    def record(kind, *_args, warm_up):
        windows.append((kind, now[0], warm_up))
        yield

    plan = Plan(CaptureOptions(output=tmp_path, max_seconds=30), hooks, Measurements())
    monkeypatch.setattr(plan._recorder, "record", record)
    for _ in range(4):
        now[0] += 7
        plan.boundary()
    assert windows[0] == ("light", 7.0, True)

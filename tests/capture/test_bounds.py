"""The bounds on a capture's size and time hold inside a window and inside a step."""

import os
import signal
import sys
import threading
from dataclasses import replace

import pytest

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.process import heap_mb
from diagnose.capture.record.measurements import Measurements, PlanHooks
from diagnose.capture.record.plan import Plan
from diagnose.capture.record.recording import Recorder, StepInterrupt
from diagnose.capture.record.session import Session
from diagnose.capture.record.window import (
    MAX_STEP_CALLS,
    TRACE_POLL_S,
    FrameCount,
    ScriptHeap,
    StepSize,
    TraceSize,
)


def test_a_step_of_many_functions_is_recorded_without_them(captured):
    run = captured["frames"]
    assert uncompressed(run) < 200_000
    assert len(run.info.attribution_ms) == 1
    assert run.info.flags.attribution["with_stack"] is False
    assert any("more than 50,000 Python functions" in note for note in run.info.notes)


def test_a_step_of_many_operators_is_cut_at_the_size(captured):
    run = captured["operators"]
    assert run.info.light_ms == ()
    (note,) = [note for note in run.info.notes if note.startswith("The light window was stopped by --max-mb 5 inside")]
    assert note.endswith("the figures cover a part of one step.")


def test_a_step_without_an_end_is_stopped(captured):
    result = captured["endless"].result
    assert (result["kind"], result["exit_code"]) == ("CaptureError", 5)
    assert "--max-seconds 1 inside step" in result["failure"]


def hooks_of(folder):
    nothing = lambda *_: 0
    return PlanHooks(
        folder=folder, prefix="rank0", num_ranks=1, report=nothing, other_active=lambda: False, undecided=lambda: False,
        compiled=nothing, look=nothing, converged=nothing, sampling=nothing, wrote=nothing,
        stepped=nothing,
    )  # fmt: skip


def uncompressed(run):
    import gzip

    return sum(len(gzip.decompress(path.read_bytes())) for path in run.folder.glob("*.pt.trace.json.gz"))


def test_the_time_bounds_the_size_where_the_heap_does_not(monkeypatch):
    monkeypatch.setattr("diagnose.capture.record.window.heap_mb", lambda: None)
    size = TraceSize("attribution", mb_per_s=1e-6)
    assert size.safe_s(1.0) > 900_000
    assert size.mb() < 1e-3


def test_what_the_script_gives_back_does_not_hide_the_growth_after_it(monkeypatch):
    heap = iter([100.0, 40.0, 44.0])
    monkeypatch.setattr("diagnose.capture.record.window.heap_mb", lambda: next(heap))
    size = TraceSize("attribution", mb_per_s=1e9)
    assert size.mb() == 0
    assert size.mb() == pytest.approx(46)  # 4 MB of heap


@pytest.fixture
def heap(monkeypatch):
    """A heap and a clock that the test sets, MB and s."""
    known = {"mb": 100.0, "s": 0.0}
    monkeypatch.setattr("diagnose.capture.record.window.heap_mb", lambda: known["mb"])
    monkeypatch.setattr("diagnose.capture.record.window.time.monotonic", lambda: known["s"])
    return known


def test_what_a_script_takes_within_a_step_is_not_the_trace(heap):
    script = ScriptHeap()
    for _ in range(3):
        script.boundary()
        heap["mb"] = 900.0  # activations
        script.look()
        heap["mb"] = 100.0
    size = TraceSize("light", script=script)
    heap.update(mb=902.0, s=10.0)
    assert size.mb() == pytest.approx(4)  # 2 MB of heap: not 1604
    heap["mb"] = 130.0
    size.boundary()  # at a step's end nothing hides the 30 MB of records
    heap["mb"] = 500.0
    assert size.mb() == pytest.approx(60)


def test_what_a_script_keeps_from_step_to_step_is_not_the_trace(heap):
    script = ScriptHeap()
    for second in range(5):
        heap.update(mb=100.0 + 40 * second, s=float(second))
        script.boundary()
    size = TraceSize("attribution", script=script)
    heap.update(mb=heap["mb"] + 402, s=14.0)
    assert size.mb() == pytest.approx(2 * 11.5)  # not 4623


def test_a_bound_that_is_acted_upon_is_not_acted_upon_again(tmp_path):
    """Stopping a profiler takes long; StopScript raised in it would leave the window without its events."""
    session = Session(CaptureOptions(output=tmp_path / "capture"), (), report=lambda _text: None, stop=None)
    cuts = []

    class Plan:
        done, due_in = False, 0.0

        def cut(self):
            cuts.append(1)
            session._in_step()
            return False

    try:
        session.plan = Plan()
        session._in_step()
        assert len(cuts) == 1
    finally:
        session.plan = None
        session.close()
        session.folder.discard()


def test_what_stopping_a_profiler_takes_of_the_heap_is_not_to_be_written(heap, tmp_path):
    recorder, size = (
        Recorder(hooks_of(tmp_path), Measurements(write_s_per_mb=0.2)),
        TraceSize("attribution", mb_per_s=1e3),
    )

    class Window:
        def stop(self):
            heap["mb"] += 1_000  # objects of Python, one an event

    recorder._window, recorder._size = Window(), size
    heap.update(mb=110.0, s=60.0)
    assert recorder.write_s == pytest.approx(0.2 * 115)
    recorder.cut("--max-mb 100")
    assert recorder.write_s == pytest.approx(0.2 * 115)  # not 2323 s, which would be over any bound


def test_functions_are_counted_up_to_what_a_step_may_call():
    counting = FrameCount()
    counting.start()
    for _ in range(10):
        len(())
    counting.stop()
    assert (counting.is_known, 10 <= counting.functions <= 12, sys.getprofile()) == (True, True, None)
    counting.start()
    for _ in range(MAX_STEP_CALLS + 10):
        len(())
    assert sys.getprofile() is None
    counting.stop()
    assert counting.functions > MAX_STEP_CALLS


def test_a_profile_function_of_the_script_s_stays():
    mine = lambda *_: None
    sys.setprofile(mine)
    try:
        counting = FrameCount()
        counting.start()
        counting.stop()
        assert (sys.getprofile() is mine, counting.is_known) == (True, False)
    finally:
        sys.setprofile(None)


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
    windows = []

    def record(kind, *_args, warm_up):
        windows.append((kind, now[0], warm_up))
        yield

    plan = Plan(CaptureOptions(output=tmp_path, max_seconds=30), hooks_of(tmp_path), Measurements())
    monkeypatch.setattr(plan._recorder, "record", record)
    for _ in range(4):
        now[0] += 7
        plan.boundary()
    assert windows[0] == ("light", 7.0, False)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(("num_ranks", "is_over"), [(1, True), (2, False)])
def test_ranks_that_record_together_have_no_bound_of_time(tmp_path, monkeypatch, quick, num_ranks, is_over):
    now = [0.0]
    monkeypatch.setattr("diagnose.capture.record.plan.time.monotonic", lambda: now[0])
    hooks = replace(hooks_of(tmp_path), num_ranks=num_ranks)
    plan = Plan(CaptureOptions(output=tmp_path, quick=quick, max_seconds=8.0), hooks, Measurements())
    now[0] = 9.0
    assert plan.cut() is is_over


def test_few_long_steps_are_waited_for_and_recorded(tmp_path, monkeypatch):
    now, windows = [0.0], []
    monkeypatch.setattr("diagnose.capture.record.plan.time.monotonic", lambda: now[0])
    monkeypatch.setattr("diagnose.capture.record.plan.time.perf_counter_ns", lambda: int(now[0] * 1e9))
    measured = Measurements()
    plan = Plan(CaptureOptions(output=tmp_path), hooks_of(tmp_path), measured)

    def record(kind, num_steps, *_args, warm_up):
        windows.append((kind, num_steps, now[0]))
        measured.timing, measured.mb["light"] = [2_000_000_000] * num_steps, 1.0
        for _ in range(warm_up + num_steps):
            yield

    monkeypatch.setattr(plan._recorder, "record", record)
    while not plan.done:
        now[0] += 2.0
        plan.boundary()
    # Two steps are steady and a third is timed, 1 + 3 are recorded, in one functions are counted, one has stacks, and
    # two are recorded as a program.
    assert windows == [("light", 3, 6.0), ("attribution", 1, 18.0)]
    assert now[0] <= 24.0


def test_very_long_steps_are_recorded_from_the_first_on(tmp_path, monkeypatch):
    """Six steps of 10 s are enough for both windows and two for the data flow, besides the one before the plan."""
    now, windows = [0.0], []
    monkeypatch.setattr("diagnose.capture.record.plan.time.monotonic", lambda: now[0])
    monkeypatch.setattr("diagnose.capture.record.plan.time.perf_counter_ns", lambda: int(now[0] * 1e9))
    measured = Measurements()
    plan = Plan(CaptureOptions(output=tmp_path), hooks_of(tmp_path), measured)

    def record(kind, num_steps, *_args, warm_up):
        windows.append((kind, num_steps, warm_up))
        measured.timing, measured.mb["light"] = [10_000_000_000] * num_steps, 1.0
        for _ in range(warm_up + num_steps):
            yield

    monkeypatch.setattr(plan._recorder, "record", record)
    while not plan.done:
        now[0] += 10.0
        plan.boundary()
    assert windows == [("light", 2, False), ("attribution", 1, False)]
    assert now[0] <= 90.0


@pytest.mark.parametrize(("light_mb", "steps"), [(20.0, 4), (2.0, 5), (100.0, 3)])
def test_large_steps_are_few_in_the_attribution_window(tmp_path, light_mb, steps):
    """Ten steps of 2 MB are taken to give 7 MB each with stacks: 4 of them are 30 MB; of larger ones 3 are enough."""
    measured = Measurements()
    plan = Plan(CaptureOptions(output=tmp_path, max_mb=1000), hooks_of(tmp_path), measured)
    plan._num_steps, measured.timing, measured.mb["light"] = 10, [20_000_000] * 10, light_mb
    assert plan._attribution_steps() == steps


def test_a_busy_machine_does_not_cut_a_window_of_ordinary_steps(heap):
    """Seven steps of 13 MB each: neither how long they take, nor what the script takes of the heap, makes them more."""
    size = TraceSize("attribution", mb_per_s=260.0, step=StepSize(13.0, 0.1))
    for step in range(1, 7):
        heap.update(mb=100.0 + 8 * step, s=0.2 * step)
        size.boundary()
    assert size.whole_steps_mb == pytest.approx(2 * 6 * 13)  # not 312 by time, or 552 by the heap
    heap["s"] += 0.5  # a step that lasts longer than any before: its like may give anything
    assert size.mb() == pytest.approx((1.2 + 0.5 + TRACE_POLL_S) * 260.0)

"""What the host was in while the device was idle, by cause."""

from diagnose.pipeline.find import build_tables
from diagnose.pipeline.timeline import flames

OWN, LIBRARY = "/home/ada/train.py(42): main", "torch/nn/functional.py(10): linear"


def drawn(t, cause, named=None, **most):
    flame = next(f for f in flames(t, named, **most) if f.cause == cause)
    return [(f.depth, f.kind, f.name, f.time_ns // 1000) for f in flame.frames]


def stalled(recording, *, steps=1):
    """Each step computes for 300 of 1000 µs; then Python runs in train.py for 500 µs, of it 200 in a library."""
    r = recording()
    for number in range(steps):
        at = 1000 * number
        r.step(number + 1, at, at + 1000)
        r.op("aten::mm", at, at + 10)
        r.kernel("gemm", at + 5, at + 300, launched=(at, at + 4))
        r.op("aten::relu", at + 790, at + 799)
        r.kernel("relu", at + 800, at + 1000, launched=(at + 790, at + 795))
    return r


def test_a_box_is_as_long_as_the_idle_time_in_it_and_lies_in_what_called_it(recording):
    r = stalled(recording)
    r.frame(OWN, 0, 1000)
    r.frame(LIBRARY, 500, 700)
    assert drawn(r.tables(), "python-stall") == [(0, "own", OWN, 490), (1, "library", LIBRARY, 200)]


def test_the_function_that_the_recording_was_begun_in_has_no_line(recording):
    r = stalled(recording)
    r.frame(OWN, -50, 1050)
    r.frame(LIBRARY, 500, 700)
    shown = "/home/ada/train.py: main"
    assert drawn(r.tables(), "python-stall") == [(0, "own", shown, 490), (1, "library", LIBRARY, 200)]


def test_times_are_of_a_step_and_what_is_alike_is_one_box(recording):
    r = stalled(recording, steps=2)
    for at in (0, 1000):
        r.frame(OWN, at, at + 1000)
        r.frame(f"<built-in method acquire of lock object at 0x7f{at:04}>", at + 400, at + 500)
    name = "<built-in method acquire of lock object>"
    assert drawn(r.tables(), "python-stall") == [(0, "own", OWN, 490), (1, "library", name, 100)]


def test_wrappers_and_marks_of_steps_are_left_out(recording):
    r = stalled(recording)
    r.frame("<frozen runpy>(88): _run_code", 0, 1000)
    r.frame(OWN, 0, 1000)
    r.frame("torch/nn/modules/module.py(1774): _wrapped_call_impl", 310, 780)
    r.frame("nn.Module: Linear_0", 311, 779)
    largest = flames(r.tables(), None)[0]
    assert [(f.depth, f.kind) for f in largest.frames] == [(0, "own"), (1, "module")]


def test_another_thread_stands_below_what_the_main_thread_waits_in(recording):
    r = stalled(recording)
    r.frame("torch/autograd/graph.py(800): _engine_run_backward", 310, 790)
    r.op("MulBackward0", 400, 600, thread="autograd")
    r.kernel("mul", 900, 950, launched=(590, 595), thread="autograd")
    boxes = [box for flame in flames(r.tables(), None) for box in flame.frames]
    assert {(f.depth, f.name) for f in boxes} >= {
        (0, "torch/autograd/graph.py(800): _engine_run_backward"), (1, "MulBackward0"),
    }  # fmt: skip


def test_frames_of_the_attribution_window_are_brought_to_the_time_of_the_timing_window(recording):
    timing, named = stalled(recording).tables(), stalled(recording)
    for row in named.rows:
        row.start, row.end = 2 * row.start, 2 * row.end
    named.frame(OWN, 0, 2000)
    flame = next(f for f in flames(timing, named.tables()) if f.cause == "python-stall")
    assert flame.is_scaled
    assert [(f.name, f.time_ns // 1000) for f in flame.frames] == [(OWN, 490)]


def test_without_stacks_the_sampled_lines_divide_the_time_outside_operators(recording):
    r = stalled(recording)
    r.samples_every(100, 310, 610, ("/home/ada/train.py", 42, "main"), 1)  # three
    r.samples_every(100, 610, 710, ("/home/ada/train.py", 43, "main"), 1)  # and one
    assert drawn(r.tables(), "python-stall") == [
        (0, "own", "/home/ada/train.py(42): main", 367), (0, "own", "/home/ada/train.py(43): main", 122),
    ]  # fmt: skip


def test_too_few_samples_show_nothing(recording):
    r = stalled(recording)
    r.sample(400, ("/home/ada/train.py", 42, "main"))
    assert "python-stall" not in {f.cause for f in flames(r.tables(), None)}


def test_the_smallest_boxes_are_left_out_and_none_loses_what_is_around_it(recording):
    r = stalled(recording)
    r.frame(OWN, 0, 1000)
    r.frame(LIBRARY, 310, 710)
    for i in range(10):
        r.frame(f"torch/a.py({i}): f", 320 + 20 * i, 339 + 20 * i)
    assert [(depth, name) for depth, _, name, _ in drawn(r.tables(), "python-stall", most=2)] == [
        (0, OWN),
        (1, LIBRARY),
    ]


def test_without_a_device_the_hosts_time_is_drawn(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 600)
    t = r.tables()
    assert drawn(build_tables(t.capture, t.trace), "operators") == [(0, "operator", "aten::mm", 600)]

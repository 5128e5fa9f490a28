"""Where a step goes by phase, module and function: sums that a reader can add up."""

from pathlib import Path

import pytest

from diagnose.model.charts import CodeTimes
from diagnose.pipeline.code_times import code_times
from diagnose.pipeline.find import build_tables
from diagnose.pipeline.rank import analyze_rank
from diagnose.trace_reader import open_captures

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
TRAIN = "/home/ada/train.py"
ENGINE = "autograd::engine::evaluate_function: "


def us(*times):
    return tuple(None if ns is None else round(ns / 1000, 6) for ns in times)


def modules(code):
    """Return name, calls, µs with what it calls and without it."""
    return [(m.name, m.calls, *us(m.host_ns, m.self_ns)) for m in code.modules]


def functions(code):
    return {f.name.rpartition("/")[2]: (f.calls, *us(f.host_ns, f.self_ns)) for f in code.functions}


def phases(code):
    return {p.name: us(p.host_ns)[0] for p in code.phases}


@pytest.fixture
def cpu(recording):
    """Two steps of 1000 µs without a device: a model of two layers for 400, its loss for 50, backward for 300.

    Reading the batch takes 100, of it 40 to collate; the optimizer takes 80. Of the rest main itself takes all.
    """
    r = recording(devices=())
    r.frame(f"{TRAIN}(10): main", -50, 2050)
    for number, at in ((1, 0), (2, 1000)):
        r.step(number, at, at + 1000)
        r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 100)
        r.frame(f"{TRAIN}(20): collate_batch", at + 60, at + 100)
        r.frame("nn.Module: Net_0", at + 100, at + 500)
        r.frame(f"{TRAIN}(30): forward", at + 105, at + 500)
        for layer, begin, sequence in ((0, at + 150, 7), (1, at + 300, 8)):
            r.frame(f"nn.Module: Linear_{layer}", begin, begin + 100)
            r.op("aten::linear", begin + 10, begin + 90, sequence=sequence + number * 10)
            r.op("aten::addmm", begin + 20, begin + 80, sequence=sequence + number * 10)
        r.frame(f"{TRAIN}(41): compute_loss", at + 500, at + 550)
        r.frame("torch/_tensor.py(566): backward", at + 560, at + 860)
        r.op(f"{ENGINE}AddmmBackward0", at + 570, at + 770, sequence=8 + number * 10)
        r.op("aten::mm", at + 580, at + 700, sequence=8 + number * 10)
        r.op(f"{ENGINE}AddmmBackward0", at + 770, at + 830, sequence=7 + number * 10)
        r.annotation("Optimizer.step#SGD.step", at + 870, at + 950)
    return r


def test_modules_are_a_tree_with_the_backward_of_what_they_call(cpu):
    code = code_times(cpu.tables())
    assert (code.source, code.as_timed, code.step_ns) == ("frames", True, 1_000_000)
    assert modules(code) == [
        ("Net_0", 1, 400, 200), ("Net_0.Linear_1", 1, 100, 100), ("Net_0.Linear_0", 1, 100, 100),
    ]  # fmt: skip
    assert [us(m.backward_ns) for m in code.modules] == [(260,), (200,), (60,)]
    assert [m.share for m in code.modules] == [0.4, 0.1, 0.1]
    assert {m.device_ns for m in code.modules} == {None}


def test_functions_are_the_users_and_main_calls_all_of_them(cpu):
    code = code_times(cpu.tables())
    assert functions(code) == {
        "train.py main": (0, 1000, 1000 - 40 - 395 - 50),
        "train.py:30 forward": (1, 395, 395),
        "train.py:41 compute_loss": (1, 50, 50),
        "train.py:20 collate_batch": (1, 40, 40),
    }
    assert code.functions[0].name == f"{TRAIN} main"


def test_phases_sum_to_the_step(cpu):
    code = code_times(cpu.tables())
    assert phases(code) == {
        "loading": 60, "collate": 40, "forward": 400, "loss": 50, "backward": 300, "optimizer": 80, "other": 70,
    }  # fmt: skip
    assert sum(p.share for p in code.phases) == pytest.approx(1)


def test_of_recursive_calls_the_outermost_counts_and_comprehensions_are_part_of_their_function(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    for depth in range(300):  # deeper than layers are told apart
        r.frame(f"{TRAIN}(5): walk", 100 + depth, 900 - depth)
    r.frame(f"{TRAIN}(9): build", 910, 1000)
    r.frame(f"{TRAIN}(11): <listcomp>", 920, 990)
    found = functions(code_times(r.tables()))
    assert found.keys() == {"train.py:5 walk", "train.py:9 build"}
    assert found["train.py:5 walk"] == (200, 800, 800)
    assert found["train.py:9 build"] == (1, 90, 90)


def test_a_module_that_is_called_in_two_places_stands_in_both_and_recursion_is_a_path(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.frame("nn.Module: Tree_0", 0, 400)
    r.frame("nn.Module: Tree_0", 100, 300)
    r.frame("nn.Module: Norm_0", 150, 200)
    r.frame("nn.Module: Norm_0", 500, 600)
    assert modules(code_times(r.tables())) == [
        ("Tree_0", 1, 400, 200), ("Tree_0.Tree_0", 1, 200, 150), ("Tree_0.Tree_0.Norm_0", 1, 50, 50),
        ("Norm_0", 1, 100, 100),
    ]  # fmt: skip


def test_tasks_count_where_they_were_launched_on_either_of_two_threads(recording):
    """The model runs on the main thread and on a second one; autograd's own thread launches the backward."""
    r = recording()
    r.step(1, 0, 1000)
    for thread, first in (("main", 0), ("replica", 10)):
        r.frame("nn.Module: Net_0", first, first + 100, thread)
        r.op("aten::mm", first + 5, first + 50, thread, sequence=3 + first)
        r.kernel("gemm", 30 + 6 * first, 90 + 6 * first, launched=(first + 10, first + 20), thread=thread)
    r.op(f"{ENGINE}MmBackward0", 400, 500, "autograd", sequence=3)
    r.kernel("gemm_backward", 430, 730, launched=(410, 420), thread="autograd")
    r.kernel("fill", 930, 940, launched=(910, 920))
    code = code_times(r.tables())
    (net,) = code.modules
    assert (net.calls, *us(net.host_ns, net.device_ns, net.backward_ns, net.backward_device_ns)) == (
        2, 200, 120, 100, 300,
    )  # fmt: skip
    assert net.share == 0.2
    assert {p.name: us(p.host_ns, p.device_ns) for p in code.phases} == {
        "forward": (100, 120), "backward": (100, 300), "other": (800, 10),
    }  # fmt: skip


def test_a_backward_that_recomputes_counts_no_time_twice(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.frame("nn.Module: Block_0", 0, 100)
    r.op("CheckpointFunction", 10, 90, sequence=1)
    r.op(f"{ENGINE}CheckpointFunctionBackward", 200, 600, sequence=1)
    r.frame("nn.Module: Linear_0", 220, 300)
    r.op("aten::linear", 230, 290, sequence=2)
    r.op(f"{ENGINE}AddmmBackward0", 400, 550, sequence=2)
    found = {m.name: us(m.host_ns, m.backward_ns) for m in code_times(r.tables()).modules}
    assert found == {"Block_0": (100, 250), "Linear_0": (80, 150)}
    assert phases(code_times(r.tables())) == {"forward": 100, "backward": 400, "other": 500}


def test_times_of_the_window_with_stacks_are_brought_to_those_of_the_other(recording):
    """With stacks the Python before an operator takes ten times as long, and the operator what it took."""
    timing, named = recording(devices=()), recording(devices=())
    for r, python in ((timing, 100), (named, 1000)):
        r.step(1, 0, 2 * python + 300)
        r.op("aten::mm", python, python + 300)
        r.op("aten::add", python + 300 + python // 2, python + 300 + python // 2)
    named.frame(f"{TRAIN}(5): encode", 0, 1000)
    named.frame(f"{TRAIN}(7): multiply", 1000, 1400)
    capture = timing.capture(named)
    code = code_times(build_tables(capture, capture.trace))
    assert (code.as_timed, code.step_ns) == (True, 500_000)
    assert functions(code) == {"train.py:5 encode": (1, 100, 100), "train.py:7 multiply": (1, 310, 310)}
    named.op("aten::mul", 2200, 2210)
    capture = timing.capture(named)
    code = code_times(build_tables(capture, capture.trace))
    assert (code.as_timed, code.step_ns) == (True, 500_000), "the operators before and behind it are the same"
    named = recording(devices=())
    named.step(1, 0, 2300)
    named.op("aten::conv2d", 1000, 1300)
    named.frame(f"{TRAIN}(5): encode", 0, 1000)
    capture = timing.capture(named)
    code = code_times(build_tables(capture, capture.trace))
    assert (code.as_timed, code.step_ns) == (False, 2_300_000)
    assert functions(code) == {"train.py:5 encode": (1, 1000, 1000)}


def test_without_frames_functions_are_those_that_the_sampler_saw(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 100)
    r.samples_every(100, 0, 600, (TRAIN, 42, "collate"), 1)
    r.samples_every(100, 600, 900, ("/usr/lib/python3.11/json/decoder.py", 7, "decode"), 1)
    r.sample(950, (TRAIN, 99, "rare"))
    code = code_times(r.tables())
    assert (code.source, code.modules) == ("samples", ())
    assert [(f.name, f.calls, f.host_ns, f.self_ns, f.share) for f in code.functions] == [
        (f"{TRAIN}:42 collate", None, None, 600_000, 0.6)
    ]


def test_without_stacks_and_samples_there_are_phases_alone(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op(f"{ENGINE}AddmmBackward0", 100, 400, sequence=1)
    r.annotation("Optimizer.step#SGD.step", 500, 600)
    code = code_times(r.tables())
    assert (code.source, code.modules, code.functions) == ("none", (), ())
    assert phases(code) == {"backward": 300, "optimizer": 100, "other": 600}


def test_without_frames_phases_are_of_the_timing_window(recording):
    timing, named = recording(devices=()), recording(devices=())
    for r, begin, length in ((timing, 5000, 1000), (named, 0, 3000)):
        r.step(1, begin, begin + length)
        r.op("aten::mm", begin, begin + 100)
        r.annotation("Optimizer.step#SGD.step", begin + length // 2, begin + length)
    capture = timing.capture(named)
    code = code_times(build_tables(capture, capture.trace))
    assert (code.source, code.step_ns, phases(code)) == ("none", 1_000_000, {"optimizer": 500, "other": 500})


def test_where_nothing_is_marked_there_is_nothing_to_show(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 600)
    assert code_times(r.tables()) == CodeTimes("none", 1_000_000)


def test_a_loss_leaves_the_model_that_it_calls_to_the_forward_and_keeps_the_modules_of_a_loss(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.frame(f"{TRAIN}(5): compute_loss", 0, 300)
    r.frame("nn.Module: Net_0", 10, 210)
    r.frame("torch/nn/functional.py(3419): cross_entropy", 180, 210)
    r.frame("nn.Module: PerceptualLoss_0", 400, 500)
    r.frame("nn.Module: VGG_0", 410, 490)
    r.frame(f"{TRAIN}(9): evaluate", 600, 900)
    r.frame("nn.Module: Net_0", 610, 890)
    r.frame(f"{TRAIN}(12): lossless", 900, 1000)
    assert phases(code_times(r.tables())) == {"forward": 170, "loss": 230, "evaluation": 300, "other": 300}


def test_a_kept_capture_has_both_tables_and_phases_that_sum_to_its_step():
    (capture,) = open_captures([CAPTURES / "feature_service"])
    d = analyze_rank(capture, draw=False)
    assert d.code is not None
    assert (d.code.source, d.code.as_timed) == ("frames", True)
    assert d.code.step_ns == pytest.approx(d.step_ns, rel=0.02)
    assert [m.name for m in d.code.modules][:3] == ["DLRM_0", "DLRM_0.Sequential_1", "DLRM_0.Sequential_1.Linear_3"]
    assert [f.name for f in d.code.functions][:3] == [
        "feature_service.py main", "models.py:129 forward", "feature_service.py:50 answer",
    ]  # fmt: skip
    assert sum(p.host_ns for p in d.code.phases) == pytest.approx(d.code.step_ns)
    root = d.code.modules[0]
    inner = [m for m in d.code.modules if m.depth == 1]
    assert root.self_ns + sum(m.host_ns for m in inner) == pytest.approx(root.host_ns, rel=0.01)
    assert root.backward_ns > root.host_ns

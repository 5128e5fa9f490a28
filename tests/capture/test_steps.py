"""Every way of stepping is found, and each recorded step goes from boundary to boundary."""

import statistics
import sys
from itertools import groupby, pairwise

import pytest
import torch

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.run import Tracer
from diagnose.model.launched import usable_cores
from diagnose.model.records import AutocastRecord
from diagnose.trace_reader.documents import read_steps


def optimizer_steps_in(mark, events):
    return sum(e.name.startswith("Optimizer.step#") and mark.start <= e.start < mark.end for e in events)


@pytest.mark.parametrize(
    ("kind", "source", "events_per_step"),
    [
        ("train", "optimizer", 1),
        ("gan", "optimizer", 4),
        ("in_backward", "optimizer", 4),
        ("lbfgs", "optimizer", 1),
        ("scaler", "optimizer", 1),
        ("inference", "forward", 2),
        ("marker", "marker", 1),
        ("load", "optimizer", 1),
        ("batches", "dataloader", 1),
        ("train on loader", "dataloader", 1),
    ],
)
def test_found(captured, kind, source, events_per_step):
    info = captured[kind].info
    assert (info.found_steps_by, info.events_per_step) == (source, events_per_step)
    assert info.ended == ("finished" if kind == "train" else "stopped")
    assert info.exit_code == 0
    assert (len(info.light_ms), len(info.attribution_ms)) == (6, 3)
    assert len(info.unprofiled_ms) >= 6


@pytest.mark.parametrize("kind", ["train", "gan", "in_backward", "inference", "batches"])
def test_marks_are_the_steps(captured, kind):
    run = captured[kind]
    marks = run.marks("light")
    assert len(marks) == len(run.info.light_ms)
    numbers = [int(mark.name.partition("#")[2]) for mark in marks]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert min(b.start - a.end for a, b in pairwise(marks)) >= 0
    ops = [e.start for e in run.events("light") if e.cat == "cpu_op"]
    assert not [start for a, b in pairwise(marks) for start in ops if a.end <= start < b.start]


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["train", "gan", "in_backward", "inference", "batches"])
def test_marks_are_as_long_as_the_steps_were_timed(captured, kind):
    run = captured[kind]
    marks = run.marks("light")
    apart = [abs((m.end - m.start) / 1e6 - ms) for m, ms in zip(marks, run.info.light_ms, strict=True)]
    assert statistics.median(apart) < 0.1 + 0.05 * statistics.median(run.info.light_ms)
    assert statistics.median(b.start - a.end for a, b in pairwise(marks)) < 1_000_000


def test_a_step_holds_its_optimizer_steps(captured):
    for kind, expected in (("gan", 4), ("in_backward", 4)):
        events = captured[kind].events("light")
        counts = [optimizer_steps_in(mark, events) for mark in captured[kind].marks("light")]
        assert statistics.median(counts) == expected, kind


def test_a_step_holds_its_loading(captured):
    events = captured["load"].events("light")
    loads = [e for e in events if e.name.startswith("enumerate(DataLoader)#")]
    for mark in captured["load"].marks("light"):
        assert any(mark.start <= load.start and load.end <= mark.end for load in loads)


def test_an_inference_step_begins_with_its_first_module(captured):
    events = captured["inference"].events("attribution")
    for mark in captured["inference"].marks("attribution"):
        ops = [e.name for e in events if e.cat == "cpu_op" and mark.start <= e.start and e.end <= mark.end]
        assert ops.count("aten::linear") == 2
        assert ops.index("aten::relu") > ops.index("aten::linear")


@pytest.mark.full
def test_compiling_is_not_disturbed(capturing):
    run = capturing("steps.py", "compiled", steps=6, keep_going=True)
    assert (run.info.found_steps_by, run.info.events_per_step) == ("forward", 1)
    assert "graphs 1 breaks 0" in run.stdout
    assert run.info.ended == "finished"


def test_windows_record_what_they_should(captured):
    run = captured["train"]
    light, attribution = run.events("light"), run.events("attribution")
    assert not any(e.cat == "python_function" or "Input Dims" in e.args for e in light)
    assert any(e.cat == "python_function" and "train.py" in e.name for e in attribution)
    assert any("Input Dims" in e.args for e in attribution)
    assert any(e.name == "[memory]" for e in attribution)
    assert run.info.flags.attribution["with_modules"] is False


def test_what_the_script_runs_with(captured):
    loader, optimizer = captured["fork"].info.loader, captured["train"].info.optimizer
    assert (loader.num_workers, loader.batch_size, loader.start_method) == (2, 4, "fork")
    assert (loader.persistent_workers, loader.pin_memory, loader.dataset) == (True, False, "Slow")
    assert (optimizer.name, optimizer.foreach, optimizer.num_tensors) == ("AdamW", True, 4)
    num = 16 * 32 + 32 + 32 + 1
    assert (optimizer.num_params, optimizer.param_bytes) == (num, 4 * num)
    assert optimizer.state_bytes == 2 * 4 * num + 4 * 4  # two moments, and a count of steps for each tensor
    assert captured["scaler"].info.flags.autocast == AutocastRecord(device="cpu", dtype="bfloat16")
    assert captured["train"].info.flags.matmul_precision == "highest"
    assert captured["train"].info.flags.cores == usable_cores()
    assert captured["train"].info.nvml.available is False
    assert "no NVIDIA GPU" in captured["train"].info.nvml.reason


def test_short_steps_get_a_longer_window(captured):
    run = captured["auto"]
    assert len(run.info.light_ms) > 10 or max(run.info.unprofiled_ms) >= 50  # half a second, and at least ten steps
    assert run.info.sampler.num_samples > 0
    assert (run.info.sampler.method, run.info.sampler.fallback) == ("memory", None)
    assert run.info.sampler.cost_share > 0  # the bar is tested in test_sampler, over more than a few samples


def test_phases_are_told_apart(captured):
    run = read_steps(captured["phases"].folder / "rank0.steps.json.gz")
    assert run.num >= 20
    assert (run.phase("backwards") == 1).all()
    assert (run.phase("rollout") > 0).all()
    assert (run.phase("work") == 6).all()
    for phase in ("evaluation", "checkpoint"):
        (rows,) = (run.phase(phase) > 0).nonzero()
        assert set((rows[1:] - rows[:-1]).tolist()) == {7}
    parts = sum(run.phase(name) for name in ("evaluation", "rollout", "checkpoint", "loading", "inference", "other"))
    assert (parts <= run.took_ns).all()


def test_a_frozen_teacher_is_no_evaluation(captured):
    run = read_steps(captured["teacher"].folder / "rank0.steps.json.gz")
    assert (run.phase("evaluation")[1:] == 0).all()
    assert (run.phase("inference") > 0).all()


def test_every_step_is_timed_whatever_is_recorded_of_it(captured):
    run = read_steps(captured["train"].folder / "rank0.steps.json.gz")
    assert [int((run.state == state).sum()) for state in (1, 2)] == [6, 3]
    light = [round(float(ms), 4) for ms in captured["train"].info.light_ms]
    assert [round(ns / 1e6, 4) for ns in run.took_ns[run.state == 1].tolist()] == light
    assert (run.began_ns[1:] >= (run.began_ns + run.took_ns)[:-1] - 1_000_000).all()
    began, ended = run.began_ns[run.state == 1], (run.began_ns + run.took_ns)[run.state == 1]
    marks = captured["train"].marks("light")  # by the wall clock too
    assert began[0] - 2_000_000 < marks[0].start < marks[-1].end < ended[-1] + 2_000_000


def test_a_short_script_gives_what_it_has(captured):
    run = captured["short"]
    assert run.info.ended == "finished"
    assert run.info.light_file
    assert not run.info.attribution_file
    assert any("attribution window" in note for note in run.info.notes)
    assert len(run.marks("light")) == len(run.info.light_ms) < 22


def test_a_profiler_of_the_script_is_left_alone(captured):
    run = captured["profiled"]
    assert "own events True" in run.stdout
    assert len(run.marks("light")) == 6
    assert any("its own profiler" in note and "steps.py:" in note for note in run.info.notes)


def test_a_profiler_that_never_ends_is_named(captured):
    result = captured["profiled_always"].result
    assert result["kind"] == "CaptureError"
    assert "its own profiler" in result["failure"]
    assert "steps.py:" in result["failure"]


def test_steps_of_a_child_process_are_supposed(captured):
    result = captured["in_child"].result
    assert (result["kind"], result["exit_code"]) == ("CaptureError", 5)
    assert "its child processes may have" in result["failure"]


def test_never_stepping_is_an_error(captured):
    result = captured["never"].result  # of a process whose child has ended before
    assert (result["kind"], result["exit_code"]) == ("CaptureError", 5)
    assert "diagnose.step()" in result["failure"]


def test_too_few_steps_are_an_error(captured):
    result = captured["shorter"].result
    assert (result["kind"], result["exit_code"]) == ("CaptureError", 5)
    assert "finished after" in result["failure"]


def test_progress_names_each_phase(captured):
    said = captured["train"].result["said"]
    kinds = [line.split()[0] for line in said]
    assert kinds[0] == "waiting"
    windows = ["capturing", "writing", "capturing", "writing", "recording", "writing"]
    assert [k for k in kinds if k != "waiting"][-7:-1] == windows


def test_nothing_of_the_profiler_reaches_the_terminal(captured):
    stderr = captured["train"].stderr
    assert "USDT" not in stderr
    assert "CPUAllocator" not in stderr


@pytest.mark.gpu
def test_on_a_gpu(capturing):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    run = capturing("steps.py", "cuda", steps=6)
    kernels = [e for e in run.events("light") if e.cat == "kernel"]
    first, last = run.marks("light")[0], run.marks("light")[-1]
    assert sum(first.start <= k.start <= last.end for k in kernels) > 6
    assert any(e.cat == "cuda_sync" for e in run.events("attribution"))
    assert run.info.gpus[0].in_use
    assert run.info.nvml.available or run.info.nvml.reason


def test_a_step_passes_between_counting_functions_and_recording_them(tmp_path):
    """Of a call that begins under the one profile function and ends under the other, torch 2.6 keeps nothing."""
    model = torch.nn.Linear(8, 1)
    seen = []
    with Tracer(CaptureOptions(output=tmp_path / "capture", steps=3, skip=2, dataflow=False)) as tracer:
        for _ in range(60):
            model(torch.randn(4, 8)).sum().backward()
            seen.append(type(sys.getprofile()).__name__)
            tracer.step()
    assert tracer.folder is not None
    kinds = [kind for kind, _ in groupby(seen)]
    counting = kinds.index("method")
    assert kinds[counting + 1] == "NoneType"
    assert len(kinds) > counting + 2  # the window with functions follows

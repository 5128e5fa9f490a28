"""The steps of a recording that are recorded as a program, and what a reader gets of them."""

import gzip
import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from diagnose.capture import CaptureOptions, Tracer, capture_steps
from diagnose.capture.dataflow.window import DataflowWindow
from diagnose.capture.record.measurements import Measurements, PlanHooks
from diagnose.capture.record.recording import FLOW_STEPS, FlowSteps
from diagnose.trace_reader.folders import open_captures
from tests.capture.flows import record_dataflow

NAME = "rank0.dataflow.json.gz"


@pytest.fixture
def step_fn():
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()

    return step


@pytest.fixture
def hooks(tmp_path):
    nothing = lambda *_: 0
    return PlanHooks(
        folder=tmp_path, prefix="rank2", num_ranks=1, report=nothing, other_active=lambda: False,
        undecided=lambda: False, compiled=nothing, look=nothing, converged=nothing, sampling=nothing,
        wrote=nothing, stepped=nothing,
    )  # fmt: skip


def run(flow, *steps):
    """Let steps pass until the recording is over; return how many."""
    passing = flow.record()
    next(passing)
    for number, step in enumerate(steps, 1):
        step()
        try:
            passing.send(0)
        except StopIteration:
            return number
    passing.close()
    return len(steps)


def test_a_capture_holds_two_steps_with_its_own_names_of_files(step_fn, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    folder = capture_steps(step_fn, steps=3, skip=2, output=tmp_path / "capture")
    (capture,) = open_captures([folder])
    flow = capture.dataflow
    assert (flow.num_steps, flow.rank) == (2, 0)
    forward = next(operator for operator in flow.operators if operator.name == "aten::addmm")
    assert (forward.place.file, forward.place.function) == (Path(__file__).name, "step")
    assert json.loads((folder / "capture.json").read_text())["dataflow_file"] == NAME


def test_steps_recorded_as_a_program_are_no_plain_steps(step_fn, tmp_path):
    folder = capture_steps(step_fn, steps=3, skip=2, output=tmp_path / "capture")
    rows = json.loads(gzip.decompress((folder / "rank0.steps.json.gz").read_bytes()))
    assert rows["state"][-FLOW_STEPS:] == [3, 3]  # neither plain nor of a window
    assert rows["state"].count(3) > FLOW_STEPS


def test_it_can_be_left_out(step_fn, tmp_path):
    folder = capture_steps(step_fn, steps=3, skip=2, output=tmp_path / "capture", dataflow=False)
    assert not (folder / NAME).exists()
    assert open_captures([folder])[0].dataflow is None
    assert not capture_steps(step_fn, quick=True, steps=3, output=tmp_path / "quick").joinpath(NAME).exists()


def test_a_damaged_file_is_a_note_and_the_rest_is_read(step_fn, tmp_path):
    folder = capture_steps(step_fn, steps=3, skip=2, output=tmp_path / "capture")
    (folder / NAME).write_bytes(gzip.compress(b'{"schema_version": 1, "operators": 3}'))
    (capture,) = open_captures([folder])
    assert capture.dataflow is None
    assert [note.text for note in capture.trace.trust if NAME in note.text]


def test_a_loop_that_ends_in_the_second_of_them_keeps_the_first(step_fn, tmp_path):
    with Tracer(CaptureOptions(output=tmp_path / "capture", steps=3, skip=2)) as tracer:
        for _ in range(60):
            step_fn()
            if tracer._session.plan is not None and tracer._session.plan._recorder.flow.is_open:
                break
            tracer.step()
        tracer.step()
    assert open_captures([tracer.folder])[0].dataflow.num_steps == 1


def test_every_rank_lets_as_many_steps_pass(hooks, monkeypatch):
    """One that cannot record waits for the others all the same."""
    measured = Measurements()

    def fail(_window):
        raise RuntimeError("planted")

    monkeypatch.setattr(DataflowWindow, "start", fail)
    assert run(FlowSteps(hooks, measured), *[lambda: None] * 3) == FLOW_STEPS
    assert measured.notes == ["The data flow could not be recorded: RuntimeError: planted."]
    assert measured.dataflow_file == ""


def test_a_cut_inside_a_step_drops_that_step(hooks, step_fn):
    measured = Measurements()
    flow = FlowSteps(hooks, measured)

    def cut():
        step_fn()
        flow.cut()
        step_fn()

    run(flow, step_fn, cut)
    assert measured.dataflow_file == "rank2.dataflow.json.gz"
    held = json.loads(gzip.decompress((hooks.folder / measured.dataflow_file).read_bytes()))
    assert (held["num_steps"], held["rank"]) == (1, 2)


def test_what_cannot_be_written_is_a_note(hooks, step_fn):
    measured = Measurements()
    hooks.folder.joinpath("rank2.dataflow.json.gz").mkdir()
    run(FlowSteps(hooks, measured), step_fn, step_fn)
    assert measured.dataflow_file == ""
    assert "The data flow could not be recorded: " in measured.notes[0]


@pytest.mark.filterwarnings("ignore")
def test_a_rank_of_a_distributed_model(tmp_path):
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))

        def step():
            model(torch.ones(3, 4)).sum().backward()
            model.zero_grad()

        step()
        step()  # here it orders its buckets anew
        flow = record_dataflow(step)
    finally:
        distributed.destroy_process_group()
    reductions = [operator for operator in flow.operators if operator.is_collective]
    assert {operator.name for operator in reductions} == {"c10d::allreduce_"}
    bucket = flow.values[reductions[0].writes[0].value]
    assert bucket.version == flow.values[reductions[0].reads[0].value].version + 1
    assert bucket.fingerprint == ""  # it may not have arrived


@pytest.mark.parametrize("compiles", [False, True])
def test_python_functions_are_not_recorded_of_steps_that_compile(step_fn, tmp_path, monkeypatch, compiles):
    """The Python tracer of torch's profiler crashes there now and then."""
    graphs = itertools.count() if compiles else itertools.repeat(1)
    monkeypatch.setattr("diagnose.capture.record.session.compiled_graphs", lambda: next(graphs))
    folder = capture_steps(step_fn, steps=3, skip=2, output=tmp_path / "capture")
    info = json.loads((folder / "capture.json").read_text())
    assert info["flags"]["attribution"]["with_stack"] is not compiles
    assert any("torch.compile compiles in these steps" in note for note in info["notes"]) is compiles

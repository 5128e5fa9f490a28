"""Which operators enclosed a moment of a thread, and the user's line behind it."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers.common.locate import enclosing_operators, locate, locate_one, sampled_lines
from diagnose.model.intervals import span
from diagnose.model.locations import is_own_file, is_user_file
from diagnose.pipeline.find import build_tables
from tests.analyzers.flow_tables import tables
from tests.dataflow.table import Table


@pytest.mark.parametrize(
    ("file", "mine"),
    [
        ("train.py", True),
        ("/home/ada/project/model/block.py", True),
        ("src/data/loading.py", True),
        ("/home/ada/venv/lib/python3.11/site-packages/lightning/loop.py", False),
        ("/usr/lib/python3.12/json/decoder.py", False),
        ("torch/nn/modules/module.py", False),
        ("/opt/conda/lib/python3.10/site-packages/torch/optim/adam.py", False),
        ("json/decoder.py", False),
        ("threading.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
    ],
)
def test_whose_file_it_is(file, mine):
    assert is_user_file(file) == mine


@pytest.fixture
def r(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    return r


def test_operators_outermost_first_without_the_step_mark(r):
    r.op("aten::linear", 100, 200)
    r.op("aten::addmm", 110, 190)
    t = r.tables()
    assert enclosing_operators(t, 0, np.array([500_000, 150_000])) == [
        "between operators",
        "aten::linear > aten::addmm",
    ]
    assert enclosing_operators(t, 99, np.array([150_000])) == ["between operators"]


def test_the_mark_of_a_step_that_the_recording_ended_in_is_no_operator(r):
    r.annotation("UnfinishedProfilerStep#2", 0, 1000)
    assert locate_one(r.tables(), 0, 150_000).op is None


def test_the_innermost_frame_of_the_user(r):
    r.frame("train.py(3): main", 0, 1000)
    r.frame("model.py(20): forward", 50, 300)
    r.frame("torch/nn/modules/linear.py(114): forward", 60, 290)
    r.op("aten::linear", 100, 200)
    where = locate_one(r.tables(), 0, 150_000)
    assert (where.file, where.line, where.function, where.op) == ("model.py", 20, "forward", "aten::linear")
    assert where.stack == ("torch/nn/modules/linear.py(114): forward", "model.py(20): forward", "train.py(3): main")


def test_modules_and_builtins_are_no_lines(r):
    r.frame("nn.Module: Linear_0", 0, 1000)
    r.frame("<built-in function linear>", 50, 300)
    where = locate_one(r.tables(), 0, 150_000)
    assert (where.file, where.op) == (None, None)
    assert where.stack == ("<built-in function linear>", "nn.Module: Linear_0")


def test_call_stacks_of_old_exporters(r):
    stack = "torch/nn/functional.py(1): linear;model.py(21): forward;train.py(5): main"
    r.op("aten::linear", 100, 200, detail=stack)
    r.op("aten::addmm", 110, 190)
    where = locate_one(r.tables(), 0, 150_000)
    assert (where.file, where.line, where.op) == ("model.py", 21, "aten::linear")


def test_without_frames_the_operators_are_the_stack(r):
    r.op("aten::linear", 100, 200)
    r.op("aten::addmm", 110, 190)
    where = locate_one(r.tables(), 0, 150_000)
    assert (where.file, where.op, where.stack) == (None, "aten::linear", ("aten::addmm", "aten::linear"))


def test_lines_by_their_share_of_the_samples(r):
    for i in range(3):
        r.sample(100 + i, ("a.py", 1, "f"))
    r.sample(110, ("b.py", 2, "g"))
    r.sample(500, ("elsewhere.py", 3, "h"))
    found = sampled_lines(r.tables(), span(100_000, 200_000))
    assert [(where.file, where.line, share) for where, share in found] == [("a.py", 1, 0.75), ("b.py", 2, 0.25)]


def test_no_samples_no_lines(r):
    assert sampled_lines(r.tables(), span(0, 1000)) == []
    r.sample(500)
    assert sampled_lines(r.tables(), span(0, 1000)) == []


def test_only_lines_that_the_capture_holds_are_quoted(r, tmp_path):
    file = tmp_path / "secret.py"
    file.write_text("first\nsecond\n")
    r.sample(100, (str(file), 1, "f"))
    r.sample(101, (str(file), 2, "f"))
    capture = replace(r.capture(), lines={(str(file), 2): "as recorded"})
    found = sampled_lines(build_tables(capture, capture.trace), span(100_000, 200_000))
    assert [(where.line, where.code) for where, _ in found] == [(1, None), (2, "as recorded")]


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("train.py", True),
        ("/home/ada/datasets/train.py", True),
        ("/home/ada/transformers/examples/run.py", True),
        ("transformers/models/vit/modeling_vit.py", False),
        ("/work/sglang/python/sglang/srt/layers/linear.py", False),
        ("/home/ada/vllm/vllm/worker.py", False),
        ("/home/ada/src/diffusers/pipeline.py", False),
        ("/tmp/torchinductor_ada/3q/x.py", False),
        (f"3q/c{'a' * 51}.py", False),
        ("/opt/venv/lib/python3.11/site-packages/mine/loop.py", False),
    ],
)
def test_which_files_the_user_can_edit(file, own):
    assert is_own_file(file) == own


def test_a_library_stands_beside_the_users_line(r):
    r.frame("train.py(3): main", 0, 1000)
    r.frame("transformers/models/vit/modeling_vit.py(252): forward", 50, 300)
    r.frame("torch/nn/modules/linear.py(114): forward", 60, 290)
    r.op("aten::linear", 100, 200)
    where = locate_one(r.tables(), 0, 150_000)
    assert (where.file, where.line, where.op) == ("train.py", 3, "aten::linear")
    assert where.library == "transformers/models/vit/modeling_vit.py:252 in forward"


def test_without_a_line_of_the_users_the_operator_is_the_place(r):
    r.frame("/venv/lib/python3.11/site-packages/lightning/loop.py(9): run", 0, 1000)
    r.frame("torch/nn/modules/linear.py(114): forward", 60, 290)
    r.op("aten::linear", 100, 200)
    where = locate_one(r.tables(), 0, 150_000)
    assert (where.file, where.line, where.op) == (None, None, "aten::linear")
    assert where.library == "lightning/loop.py:9 in run"


@pytest.mark.parametrize(
    ("frames", "caller"),
    [
        (["train.py(3): main"], ""),
        (["train.py(3): main", "torch/nn/modules/module.py(1779): _call_impl", "model.py(9): forward"], "module"),
        (["train.py(3): main", "nn.Module: Net_0", "transformers/x.py(9): forward"], "module"),
        (["train.py(3): main", "diffusers/hooks/offload.py(9): onload", "torch/x.py(1): modules"], "hook"),
        (["hooks.py(3): main", "train.py(9): step"], ""),  # the hook runs the user's step, and not the other way
    ],
)
def test_what_called_it(r, frames, caller):
    for i, frame in enumerate(frames):
        r.frame(frame, i, 1000 - i)
    assert locate_one(r.tables(), 0, 150_000).caller == caller


def test_the_call_stack_of_a_steps_mark_is_no_place(recording):
    r = recording()
    r.step(1, 0, 1000).values["detail"] = r._name("torch/profiler/profiler.py(313): step;train.py(54): main")
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    assert locate_one(r.tables(), 0, 150_000).file is None


def test_the_launch_itself_is_no_place(r):
    r.runtime("hipExtModuleLaunchKernel", 100, 200)
    assert locate_one(r.tables(), 0, 150_000).op is None
    r.op("aten::mm", 90, 210)
    assert locate_one(r.tables(), 0, 150_000).op == "aten::mm"


def test_of_two_lines_of_a_loop_and_a_single_one_the_loop_comes_first(recording):
    """Its lines have fewer samples each, and more together."""
    r = recording(devices=())
    r.step(1, 0, 1000)
    seen = {("data.py", 23, "__getitem__"): 9, ("data.py", 33, "draw"): 7, ("data.py", 32, "draw"): 8}
    seen |= {("other.py", 24, "tidy"): 8}
    for number, place in enumerate(place for place, num in seen.items() for _ in range(num)):
        r.sample(100 + number, place)
    found = sampled_lines(r.tables(), span(100_000, 200_000), most=4)
    assert [(where.file, where.line) for where, _ in found] == [
        ("data.py", 32),
        ("data.py", 33),
        ("data.py", 23),
        ("other.py", 24),
    ]


def test_a_sampled_line_has_the_operator_that_was_open_while_it_ran(late):
    late.op("aten::layer_norm", 200, 690)  # then relu launches what ends the gap
    late.sampled = [(at, ("train.py", 38, "main"), 1) for at in range(310, 680, 10)]
    place, *_ = late.find("launch-bound").where
    assert (place.line, place.op) == (38, "aten::layer_norm")


def test_where_work_was_queued_the_line_that_runs_in_the_pause_is_no_place(recording):
    # Kernels of 6 µs with pauses of 3 were queued from 0 to 50; line 60 runs during the pauses.
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 60)
    for i in range(100):
        r.kernel("gemm", 80 + 9 * i, 86 + 9 * i, launched=(i / 2, i / 2 + 0.4))
    r.sampled = [(at, ("train.py", 60, "main"), 1) for at in range(80, 990, 5)]
    assert [w.line for w in r.find("kernel-latency").where if w.file] == []


def test_a_loop_s_head_stands_behind_lines_that_do_something(late):
    late.lines |= {("train.py", 8): "for batch, target in loader:", ("log.py", 3): "sys.stdout.write(text)"}
    late.samples_every(10, 300, 500, ("train.py", 8, "train"), running=1)
    late.samples_every(10, 510, 690, ("log.py", 3, "bar"), running=1)
    assert [where.line for where in late.find("python-stall").where[:2]] == [3, 8]


BACKWARD = "autograd::engine::evaluate_function: "


@pytest.fixture
def trained(recording):
    """Two steps of 1000 µs: model.py's forward calls linear and relu, whose gradients main's line 9 takes."""

    def make(*, frames: bool):
        r = recording(devices=())
        for begin in (0, 1000):
            r.step(1 + begin // 1000, begin, begin + 1000)
            r.op("aten::linear", begin + 100, begin + 200, sequence=7)
            r.op("aten::relu", begin + 300, begin + 400, sequence=8)
            r.op(f"{BACKWARD}ReluBackward0", begin + 500, begin + 600, sequence=8)
            r.op(f"{BACKWARD}AddmmBackward0", begin + 600, begin + 900, sequence=7)
            if frames:
                r.frame("train.py(9): main", begin + 1, begin + 990)
                r.frame("model.py(20): forward", begin + 50, begin + 450)
        return r

    return make


def of(where):
    return where.file, where.line, where.function, where.op


def test_a_node_of_the_backward_pass_is_placed_at_its_forward(trained):
    r = trained(frames=True)
    assert of(locate_one(r.tables(), 0, 1_700_000)) == ("model.py", 20, "forward", f"{BACKWARD}AddmmBackward0")


def test_a_function_of_the_users_that_the_backward_pass_calls_is_the_place(trained):
    r = trained(frames=True)
    r.frame("scale.py(31): backward", 1610, 1890)
    assert of(locate_one(r.tables(), 0, 1_700_000)) == ("scale.py", 31, "backward", f"{BACKWARD}AddmmBackward0")


@pytest.mark.parametrize(("at", "op"), [(150, "aten::linear"), (700, f"{BACKWARD}AddmmBackward0")])
def test_an_operator_without_frames_has_those_of_the_same_call_in_the_attribution_window(trained, at, op):
    capture = trained(frames=False).capture(trained(frames=True))
    t = build_tables(capture, capture.trace)
    assert of(locate_one(t, 0, at * 1000)) == ("model.py", 20, "forward", op)


def test_which_of_another_number_of_calls_it_is_is_not_known(trained):
    beside = trained(frames=True)
    for begin in (0, 1000):
        beside.op("aten::linear", begin + 420, begin + 440)
    capture = trained(frames=False).capture(beside)
    t = build_tables(capture, capture.trace)
    assert of(locate_one(t, 0, 150_000)) == (None, None, None, "aten::linear")
    assert of(locate_one(t, 0, 350_000)) == ("model.py", 20, "forward", "aten::relu")


@pytest.mark.parametrize("at", [150, 700, 1150])
def test_the_line_that_was_sampled_during_the_call_in_any_step_takes_the_place_of_the_functions_first(trained, at):
    r = trained(frames=False)
    r.sample(1160, ("/src/model.py", 23, "forward"))  # in the second step's linear
    r.sample(350, ("/src/model.py", 24, "forward"))  # in relu
    capture = r.capture(trained(frames=True))
    where = locate_one(build_tables(capture, capture.trace), 0, at * 1000)
    assert (where.file, where.line, where.function) == ("/src/model.py", 23, "forward")


def test_lines_that_differ_during_a_call_are_no_line_of_it(trained):
    r = trained(frames=False)
    for time, line in ((1160, 23), (1170, 25)):
        r.sample(time, ("model.py", line, "forward"))
    capture = r.capture(trained(frames=True))
    assert locate_one(build_tables(capture, capture.trace), 0, 150_000).line == 20


def test_the_data_flow_has_the_line_of_each_operator(recording):
    flow = Table()
    for flow.step in range(2):
        flow.read_on_host(flow.op("mul", flow.op("exp", flow.value(4), line=3), line=8, phase="backward"), line=9)
    t = tables(recording, flow)
    for row, line in ((0, 3), (1, 8), (2, 9)):
        event = int(t.flow.rows[row][0])
        place = locate_one(t, t.main, int(t.trace.events.start[event]) + 1)
        assert (place.file, place.line, place.function) == ("train.py", line, "step")


def test_a_call_that_the_data_flow_does_not_know_hides_no_line(recording):
    flow = Table()
    for flow.step in range(2):
        flow.read_on_host(flow.op("exp", flow.value(4), line=3))
    t = tables(recording, flow)
    first, second = t.flow.rows[0].tolist()  # as where the recording began within the first step
    vars(t)["flow"] = t.flow._replace(lines={second: t.flow.lines[second]})
    places = locate(t, np.full(2, t.main), t.trace.events.start[[first, second]] + 1)
    assert [place.line for place in places] == [None, 3]

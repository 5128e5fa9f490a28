"""Which operators enclosed a moment of a thread, and the user's line behind it."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers.common.locate import enclosing_operators, is_user_file, locate_one, sampled_lines
from diagnose.model.intervals import span
from diagnose.pipeline.rank import build_tables


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

"""Like is compared with like; what a report does not hold is no difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagnose.cli.main import run
from diagnose.compare.setup import differences, setup_of
from diagnose.reports.json_reading import from_json

SETUP = {"batch_size": 32, "num_params": 1000, "matmul_precision": "highest", "autocast": "off"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"command": "eval.py --epochs 1"}, "The script differs: train.py before, eval.py after."),
        ({"command": "train.py --epochs 2"}, "The list of arguments differs: --epochs 1 before, --epochs 2 after."),
        ({"command": "-m pack.train"}, "The script differs: train.py before, -m pack.train after."),
        ({"world_size": 2}, "The number of processes differs: 1 before, 2 after."),
        ({"devices": ("NVIDIA A100",)}, "The device differs: NVIDIA H100 before, NVIDIA A100 after."),
        ({"torch": "2.7.0"}, "The torch version differs: 2.6.0 before, 2.7.0 after."),
        ({"setup": {**SETUP, "batch_size": 64}}, "The batch size differs: 32 before, 64 after."),
        ({"setup": {**SETUP, "num_params": 9}}, "The number of parameters differs: 1000 before, 9 after."),
        (
            {"setup": {**SETUP, "matmul_precision": "high"}},
            "The precision of float32 matrix products differs: highest before, high after.",
        ),
        ({"setup": {**SETUP, "autocast": "cuda bfloat16"}}, "The autocast differs: off before, cuda bfloat16 after."),
    ],
)
def test_each_difference_is_one_sentence(diagnosis, change, sentence):
    known = {"command": "train.py --epochs 1", "torch": "2.6.0", "devices": ("NVIDIA H100",), "setup": SETUP}
    before, after = diagnosis(20, **known), diagnosis(20, **{**known, **change})
    found = differences([setup_of(before)], [setup_of(after)])
    assert found[0].sentence() == sentence
    assert all(d.what in ("script", "list of arguments") for d in found[1:])


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("train.py", "/ci/build-7/train.py", True),
        ("/ci/build-7/train.py", "/ci/build-8/train.py", True),
        ("./train.py", "train.py", True),
        ("../train.py", "/ci/train.py", True),
        ("a/train.py", "b/train.py", False),
        ("/ci/a.py", "/ci/b.py", False),
    ],
)
def test_a_script_in_another_checkout_is_the_same(diagnosis, one, other, alike):
    sides = [[setup_of(diagnosis(20, command=command))] for command in (one, other)]
    assert (differences(*sides) == ()) is alike


def test_what_an_older_report_lacks_is_unknown(reports, capsys):
    (old,) = reports("old", 20)
    data = json.loads(Path(old).read_text())
    del data["source"]["setup"]
    Path(old).write_text(json.dumps(data))
    (new,) = reports("new", 20, command="train.py", torch="2.6.0", setup=SETUP)
    assert run(["compare", "--json", old, new]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


def test_unlike_sides_are_not_comparable_unless_that_is_allowed(reports, capsys):
    before, after = reports("a", 20, 20.1, 19.9, devices=("A",)), reports("b", 26, 26.1, 25.9, devices=("B",))
    both = ["--before", before[0], "--before", before[1], "--before", before[2], *after]
    assert run(["compare", *both]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("Not comparable. The device differs: A before, B after. Record both alike")
    assert "differences, which compares them anyway and lists what differs. before" in shown
    assert "Below:" not in shown
    assert "Where the" not in shown
    assert run(["compare", "--json", *both]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["outcome"], plain["slower"]) == ("not comparable", False)
    assert (plain["parts"], plain["causes"], plain["findings"], plain["kernels"]) == ([], [], [], [])
    assert run(["compare", "--allow-differences", *both]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Below: the mean recorded step" in shown
    assert shown.startswith("1.30x slower: 20.0 ms before, 26.0 ms after")
    assert "The device differs: A before, B after." in shown


def test_runs_of_one_side_that_differ_are_named_too(reports, capsys):
    names = [*reports("a", 20, setup={"batch_size": 8}), *reports("b", 20, setup={"batch_size": 16})]
    (after,) = reports("c", 20, setup={"batch_size": 8})
    assert run(["compare", "--before", names[0], "--before", names[1], after]) == 0
    assert "The batch size differs: 8 and 16 before, 8 after." in " ".join(capsys.readouterr().out.split())


def test_what_a_capture_holds_comes_into_its_report(late):
    late.with_info(
        loader={"batch_size": 32},
        optimizer={"num_params": 900, "num_tensors": 4, "dtypes": ["torch.float32"], "others": [{"num_params": 100}]},
        flags={"matmul_precision": "high", "num_threads": 2, "autocast": {"device": "cuda", "dtype": "bfloat16"}},
    )
    source = json.loads(late.diagnosis().to_json())["source"]
    assert source["setup"] == {
        "batch_size": 32,
        "num_params": 1000,
        "num_tensors": 4,
        "param_dtypes": ["torch.float32"],
        "matmul_precision": "high",
        "autocast": "cuda bfloat16",
        "num_threads": 2,
    }
    assert from_json(late.diagnosis().to_json(), source="r.json").source.setup == source["setup"]


def test_what_may_be_the_change_is_a_note_of_a_comparison_and_stops_a_gate(reports, capsys):
    before = reports("a", 20, 20.1, 19.9, command="train.py", torch="2.6.0")
    after = reports("b", 16, 16.1, 15.9, command="train.py --compile", torch="2.7.0")
    assert run(["compare", "--before", before[0], "--before", before[1], "--before", before[2], *after]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("1.25x faster: 20.0 ms before, 16.0 ms after")
    assert "The list of arguments differs: none before, --compile after." in shown
    assert run(["gate", "--baseline", before[0], "--baseline", before[1], *after]) == 7

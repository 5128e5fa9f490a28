"""The gate: its verdicts, exit codes, baselines and reports."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from diagnose.cli import gate as cli_gate
from diagnose.cli.main import run
from diagnose.compare.compare import compare
from diagnose.compare.gate import evaluate_gate, junit


def gate(before, after, tolerance=0.05):
    return evaluate_gate(compare(before, after, tolerance=tolerance))


def test_verdicts(side):
    assert gate(side(20), side(20.8)).verdict == "passed"
    assert gate(side(20), side(26)).verdict == "failed"
    assert gate(side(20), side(26), 0.5).verdict == "passed"
    assert gate(side(26), side(20)).verdict == "passed"
    assert gate(side(20, runs_ms=(20,)), side(26, runs_ms=(26,))).verdict == "undecided"
    assert gate(side(20, torch="2.6.0"), side(26, torch="2.7.0")).verdict == "not comparable"


def test_what_changed_is_named_where_it_failed(side):
    failed = gate(side(20, {"data-stall": 4}), side(26, {"data-stall": 10}))
    assert failed.changed[0] == ("data-stall: 6.00 ms more per recorded step (4.00 ms before, 10.0 ms after, 150.0 %).")


@pytest.mark.parametrize(
    ("before", "after", "element"),
    [
        ({}, {"step_ms": 20}, None),
        ({}, {"step_ms": 26}, "failure"),
        ({"runs_ms": (20,)}, {"step_ms": 26}, "skipped"),
        ({"torch": "1"}, {"step_ms": 26, "torch": "2"}, "error"),
    ],
)
def test_junit_carries_the_verdict(side, before, after, element):
    later = {"step_ms": 26, "causes": {"data-stall": 6}, **after}
    result = gate(side(20, **before), side(**later))
    suite = ElementTree.fromstring(junit(result)).find("testsuite")
    counts = {name: int(suite.get(name)) for name in ("failures", "errors", "skipped")}
    assert sum(counts.values()) == (element is not None)
    case = suite.find("testcase")
    assert [child.tag for child in case] == [*([element] if element else []), "system-out"]
    if element:
        assert case.find(element).get("message") == result.text


def test_one_run_a_side_is_undecided_and_passes(reports, capsys):
    """Formerly the steps within the two captures decided, and an equal run in a slow spell failed."""
    names = [*reports("a", 20), *reports("b", 28)]
    assert run(["gate", "--junit", "j.xml", *names]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("undecided: 1.40x slower, not tested: 20.0 ms before, 28.0 ms after")
    assert "Record at least 2 runs of the baseline" in shown


def test_several_captures_a_side(reports, capsys):
    before, after = reports("a", 20, 20.1, 19.9), reports("b", 26, 26.1, 25.9)
    named = [word for name in before for word in ("--baseline", name)]
    assert run(["gate", *named, *after]) == 3
    assert capsys.readouterr().out.startswith(
        "failed: The step is more than 5 % slower than the baseline: 1.30x slower: 20.0 ms before, 26.0"
    )
    assert run(["gate", *named, before[0], before[2]]) == 0
    capsys.readouterr()
    assert run(["gate", "--json", *named, *after]) == 3
    assert json.loads(capsys.readouterr().out)["gate"] == "failed"
    assert run(["gate", *named]) == 2


def write_trace(name, step_ms):
    """Write a trace as torch.profiler exports it: three steps on the CPU, each with one operator that fills it."""
    events = []
    for i in range(3):
        at = {"ph": "X", "pid": 1, "tid": 1, "ts": 1e3 * (1 + i * step_ms), "dur": 1e3 * step_ms}
        events += [
            {**at, "cat": "user_annotation", "name": f"ProfilerStep#{i}"},
            {**at, "cat": "cpu_op", "name": "aten::mm"},
        ]
    Path(name).write_text(json.dumps({"traceEvents": events}))
    return name


def test_traces_are_gated_as_captures_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = [write_trace(f"before{i}.json", 20 + i / 10) for i in range(3)]
    after = [write_trace(f"after{i}.json", 26 + i / 10) for i in range(3)]
    assert run(["gate", "--update", "base.json", *before]) == 0
    capsys.readouterr()
    assert run(["gate", "base.json", *before]) == 0
    assert capsys.readouterr().out.startswith("passed: ")
    assert run(["gate", "--html", "gate.html", "base.json", *after]) == 3
    assert "1.30x slower: 20.1 ms before, 26.1 ms after" in capsys.readouterr().out
    assert "26.1 ms" in Path("gate.html").read_text()
    assert run(["gate", before[0], after[0]]) == 0  # one run a side decides nothing
    assert capsys.readouterr().out.startswith("undecided: ")


def test_a_run_that_is_named_twice_is_one_run(reports, capsys):
    (before,), (after,) = reports("a", 20), reports("b", 40)
    assert run(["gate", "--baseline", before, "--baseline", before, after, after]) == 0
    assert "the baseline is 1 run" in capsys.readouterr().out


def test_a_baseline_holds_its_runs(reports, capsys, monkeypatch):
    before, after = reports("a", 20, 20.1, 19.9), reports("b", 26, 26.1, 25.9)
    monkeypatch.setattr("diagnose.model.diagnosis._bound", [])  # the command imports no Python face
    assert run(["gate", "new.json", *before]) == 4
    assert "create it with --update" in capsys.readouterr().err
    assert run(["gate", "--update", "new.json", *before]) == 0
    assert "wrote the baseline new.json (3 runs)" in capsys.readouterr().err
    assert json.loads(Path("new.json").read_text())["step_ms"] == 20
    assert run(["gate", "new.json", *before[:2]]) == 0
    assert run(["gate", "new.json", *after]) == 3
    assert run(["gate", "--update", "new.json", *after]) == 0
    assert run(["gate", "new.json", *after]) == 0
    assert run(["compare", "new.json", after[0]]) == 0


def test_a_baseline_of_unlike_runs_is_refused(reports, capsys):
    names = [*reports("a", 20, torch="2.6.0"), *reports("b", 20, torch="2.7.0")]
    assert run(["gate", "--update", "new.json", *names]) == 4
    assert "the runs differ in their torch version" in capsys.readouterr().err
    assert not Path("new.json").exists()


@pytest.mark.parametrize(
    ("runs", "field"),
    [([{"step_times_ms": [-1]}], "step_times_ms"), ([{}], "step_times_ms"), ({}, "runs"), ([1], r"runs\[0\]")],
)
def test_a_damaged_baseline_is_one_sentence(reports, capsys, runs, field):
    (name,) = reports("a", 20)
    Path("bad.json").write_text(json.dumps({**json.loads(Path(name).read_text()), "runs": runs}))
    assert run(["gate", "bad.json", name]) == 4
    shown = capsys.readouterr().err
    assert shown.startswith("diagnose: error: bad.json")
    assert shown.count("\n") == 1


def test_times_without_bounds_do_not_overflow(reports, capsys):
    (name,) = reports("a", 20)
    runs = [{"step_times_ms": [ms]} for ms in (1e-6, 1e12, 1e-300, 5e11)]
    Path("odd.json").write_text(json.dumps({**json.loads(Path(name).read_text()), "runs": runs}))
    assert run(["gate", "--json", "odd.json", name]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["outcome"] == "undecided"


def test_unlike_sides_end_with_exit_code_7(reports, capsys):
    before, after = reports("a", 20, 20.1, 19.9, world_size=1), reports("b", 20, 20.1, 19.9, world_size=2)
    assert run(["gate", "--update", "base.json", *before]) == 0
    assert run(["gate", "base.json", *after]) == 7
    assert "not comparable: The number of processes differs: 1 before, 2" in capsys.readouterr().out
    assert run(["gate", "--allow-differences", "base.json", *after]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("passed: The step is no more than 5 % slower than the baseline: 1.00x faster: 20.0 ms")
    assert "The number of processes differs: 1 before, 2 after." in shown


def test_reports_are_written_over_with_force_only(reports, capsys):
    before, after = reports("a", 20, 20.1, 19.9), reports("b", 26, 26.1, 25.9)
    assert run(["gate", "--update", "base.json", *before]) == 0
    assert run(["gate", "--junit", "j.xml", "base.json", *after]) == 3
    assert Path("j.xml").exists()
    assert run(["gate", "--junit", "j.xml", "base.json", *after]) == 6
    assert "j.xml exists already" in capsys.readouterr().err
    assert run(["gate", "--junit", "j.xml", "--force", "base.json", *after]) == 3
    assert run(["gate", "--junit", after[1], "--force", "base.json", *after]) == 2
    assert json.loads(Path(after[1]).read_text())["step_ms"] == 26.1
    assert run(["gate", "--tolerance", "50%", "base.json", *after]) == 0


def test_options_behind_the_target_are_named(reports, capsys):
    (before,), (after,) = reports("a", 20), reports("b", 26)
    assert run(["gate", before, after, "--junit", "x"]) == 2
    assert "options go before BASELINE" in capsys.readouterr().err
    assert run(["gate", "--runs", "2", before, after]) == 2
    assert "--runs needs a script" in capsys.readouterr().err


def test_a_script_is_traced_three_times_unless_told_otherwise(reports, monkeypatch, diagnosis):
    steps = iter((26.0, 26.1, 25.9, 20.0, 20.1))
    Path("train.py").write_text("")
    names = reports("a", 20, 20.1, 19.9)
    assert run(["gate", "--update", "base.json", *names]) == 0
    opened, open_side = [], cli_gate.open_side

    def open_or_make(path):
        if not Path(path).name.startswith("run-"):
            return open_side(path)
        opened.append(Path(path).name)
        (made,) = reports(f"made{len(opened)}", next(steps))
        return open_side(made)

    monkeypatch.setattr(cli_gate, "open_side", open_or_make)
    monkeypatch.setattr(cli_gate, "_trace", lambda *_: None)
    assert run(["gate", "base.json", "train.py", "--epochs", "1"]) == 3
    assert opened == ["run-1", "run-2", "run-3"]
    assert run(["gate", "--runs", "2", "base.json", "train.py"]) == 0
    assert opened[3:] == ["run-1", "run-2"]

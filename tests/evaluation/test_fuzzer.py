"""The fuzzer itself: what is planted is found, for a fuzzer that cannot fail shows nothing."""

import json
import random
import sys
from pathlib import Path

import pytest
from fuzzing import made, values
from fuzzing.cases import Case
from fuzzing.checks import problems
from fuzzing.minimize import minimized
from fuzzing.pool import Setting, run_all
from fuzzing.running import run_case, watch_rules
from fuzzing.summary import BEGIN, END, Summary
from fuzzing.worker import Result

from diagnose.analyzers import data_stall
from diagnose.cli import main as cli
from diagnose.cli import output
from diagnose.pipeline import find as noting
from diagnose.pipeline import rank
from diagnose.reports import html, text
from diagnose.reports import json as json_report


def traced(*argv, flavour="stalled"):
    data = values.dump(made.trace(flavour, random.Random(1))).encode()
    return Case(argv or ("analyze", "t.json", "--json", "--quiet"), {"t.json": data})


def kinds(case):
    return {kind for kind, _ in problems(case, run_case(case))}


PAGE = ("--html", "r.html", "-o", "r.txt")


@pytest.mark.parametrize(
    ("flavour", "argv"),
    [*((flavour, ("--json",)) for flavour in made.FLAVOURS), ("gpu", ()), ("cpu", ()), ("attribution", PAGE)],
)
def test_nothing_is_wrong_with_a_sound_trace(flavour, argv):
    case = traced("analyze", "t.json", "--quiet", *argv, flavour=flavour)
    assert problems(case, run_case(case)) == []


def crash(*_args, **_options):
    raise ZeroDivisionError("planted")


def test_a_crash_is_found_with_its_origin(monkeypatch):
    monkeypatch.setattr(rank, "analyze_rank", crash)
    case = traced()
    ((kind, origin),) = problems(case, run_case(case))
    assert kind == "traceback"
    assert origin.startswith("tests/evaluation/test_fuzzer.py:")
    assert origin.endswith(":ZeroDivisionError: planted")


def test_a_crash_within_a_rule_is_found_with_its_origin(monkeypatch, noted):
    monkeypatch.setattr(noting, "Note", noting.Note)  # undoes what watch_rules does
    watch_rules()
    monkeypatch.setattr(data_stall, "find", crash)
    case = traced()
    found = problems(case, run_case(case))
    assert ("rule failed", "ZeroDivisionError") in [(kind, text.split(":")[2]) for kind, text in found]


def test_an_exception_that_leaves_the_command_is_found(monkeypatch):
    monkeypatch.setattr(cli, "run", crash)
    assert "traceback" in kinds(traced())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d["partition"].update(idle=0.9), "invariant"),
        (lambda d: d["idle_by_cause"].update({"data-stall": 0.99}), "invariant"),
        (lambda d: d["findings"][0].update(lost_ms=d["step_ms"] * 2), "invariant"),
        (lambda d: d["prescriptions"][0].update(saves_ms=[2.0, 1.0]), "invariant"),
        (lambda d: d["prescriptions"][0].update(predicted_step_ms=-1.0), "invariant"),
        (lambda d: d.update(step_ms=float("nan")), "no valid JSON"),
        (lambda d: d.update(verdict="fine"), "schema"),
        (lambda d: d["findings"][0].pop("rule"), "schema"),
    ],
)
def test_a_broken_report_is_found(monkeypatch, change, expected):
    sound = json_report.render

    def broken(diagnosis):
        document = json.loads(sound(diagnosis))
        change(document)
        return json.dumps(document)

    monkeypatch.setattr(json_report, "render", broken)
    case = traced()
    outcome = run_case(case)
    try:
        found = {kind for kind, _ in problems(case, outcome)}
    except KeyError:  # a field is missing: the schema's check stands before those that need the field
        found = {"schema"}
    assert expected in found


@pytest.mark.parametrize("hidden", ["\x1b[31m", "\u202e", "\x9b", "\r"])
def test_a_control_character_in_the_text_is_found(monkeypatch, hidden):
    for name, options in (("render_answer", ()), ("render", ("--verbose",))):
        sound = getattr(text, name)
        monkeypatch.setattr(text, name, lambda *a, sound=sound, **k: sound(*a, **k) + hidden + "\n.")
        assert kinds(traced("analyze", "t.json", "--quiet", *options)) == {"control character"}
        monkeypatch.setattr(text, name, sound)


def test_markup_in_the_page_is_found(monkeypatch):
    sound = html.render
    monkeypatch.setattr(html, "render", lambda d: sound(d).replace("</h1>", "<script>zq(1)</script></h1>", 1))
    assert kinds(traced("analyze", "t.json", "--quiet", "--html", "r.html")) == {"unescaped in HTML"}


def test_wrong_exits_noise_and_changed_inputs_are_found(monkeypatch):
    def run(_argv):
        Path("t.json").write_text("gone")
        print("progress", file=sys.stderr)
        return 1

    monkeypatch.setattr(cli, "run", run)
    assert kinds(traced()) == {"exit code", "not one sentence", "input changed"}


def test_a_warning_is_found(monkeypatch):
    import numpy as np

    def warn(*_args, **_options):
        np.ones(1) / np.zeros(1)
        return ""

    monkeypatch.setattr(output, "print_result", warn)
    assert "warning" in kinds(traced())


@pytest.fixture
def planted(monkeypatch):
    """Return a function that lets a worker run into planted faults: kinds of problems by the fault's number."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))

    def run(*faults, **options):
        asked = [{"kind": "trace", "index": index} for index in faults]
        results = list(run_all(asked, Setting(module="planted_faults", **options)))
        return {result.index: [kind for kind, _ in result.problems] for result in results}

    return run


def test_a_hang_is_ended_and_the_rest_goes_on(planted):
    assert planted(1, 0, limit_s=2.0) == {1: ["hang"], 0: []}


def test_memory_deaths_and_stray_output_are_found(planted):
    assert planted(2, 3, 4) == {2: ["too much memory"], 3: ["process ended"], 4: ["written past the streams"]}


def test_a_summary_groups_by_origin_and_fails():
    summary = Summary(1, jobs=2)
    for index in range(5):
        summary.add(Result("trace", index, [("traceback", "a.py:1:KeyError: x")] if index else [], code=70))
    assert summary.failed
    assert list(summary.counts.items()) == [(("traceback", "a.py:1:KeyError: x"), 4)]
    assert any(line.split(maxsplit=1)[0] == "4" for line in summary.lines())
    page = summary.write_table(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "| tracebacks | 4 |" in page
    assert "old" not in page


def test_a_failing_mutant_is_made_small(monkeypatch):
    sound = rank.analyze_rank

    def picky(capture, **options):
        if "culprit" in capture.trace.names:
            raise ZeroDivisionError("planted")
        return sound(capture, **options)

    monkeypatch.setattr(noting, "Note", noting.Note)
    monkeypatch.setattr(rank, "analyze_rank", picky)
    case = traced()
    document = json.loads(case.files["t.json"])
    document["traceEvents"][9]["name"] = "culprit"
    case = Case(case.argv, {"t.json": json.dumps(document).encode()})
    (problem,) = problems(case, run_case(case))
    small = minimized(case, problem)
    assert problem in problems(small, run_case(small))
    assert len(small.files["t.json"]) < 300

"""What differs between two diagnoses, and when a gate fails."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from diagnose.cli.main import run
from diagnose.compare.compare import compare
from diagnose.compare.format import as_json, as_text, sentence
from diagnose.compare.gate import judge, junit, parse_tolerance, sarif
from diagnose.compare.sides import KernelUse, Side
from diagnose.errors import InputError, UsageError
from diagnose.model.diagnosis import Diagnosis, Finding, Partition, Source, Where
from diagnose.reports.json_reading import from_dict, from_json

MS = 1_000_000


def side(step_ms, causes, *, spread=0.02, num=20, kernels=None, place=None):
    """A step of which ``causes`` (ms) are idle and the rest is compute; step times differ by ``spread`` up and down."""
    idle = sum(causes.values())
    shares = {rule: ms / step_ms for rule, ms in causes.items()}
    where = (Where(place, 7),) if place else ()
    diagnosis = Diagnosis(
        verdict="gaps" if idle > 0.2 * step_ms else "kernel-bound",
        headline="A step.",
        dominant=next(iter(causes), None),
        step_ns=step_ms * MS,
        step_times_ns=tuple(int(step_ms * MS * (1 + spread * (i % 3 - 1))) for i in range(num)),
        queue=None,
        partition=Partition(1 - idle / step_ms, 0.0, 0.0, idle / step_ms),
        idle_by_cause=shares,
        findings=tuple(Finding(rule, f"About {rule}", ms * MS, where=where) for rule, ms in causes.items()),
        prescriptions=(),
        trust=(),
        source=Source("trace.json"),
    )
    return Side(f"{step_ms} ms", diagnosis, kernels or {})


def test_a_step_that_grew_is_slower_and_its_causes_are_named():
    c = compare(side(20, {"data-stall": 4}), side(26, {"data-stall": 8, "gc-pause": 2}))
    assert c.is_slower
    assert c.ratio == pytest.approx(1.3)
    assert [(x.name, x.by_ns) for x in c.causes] == [("data-stall", 4 * MS), ("gc-pause", 2 * MS)]
    assert [(x.name, round(x.by_ns)) for x in c.parts] == [("idle", 6 * MS)]
    assert sum(x.by_ns for x in c.parts) == pytest.approx(6 * MS)


def test_a_difference_within_the_spread_is_none():
    c = compare(side(20, {}, spread=0.2), side(20.4, {}, spread=0.2))
    assert not c.is_slower
    assert not c.is_faster
    assert "the same, as far as" in sentence(c)


def test_unprofiled_steps_are_compared_where_both_have_them():
    plain = [
        replace(s, diagnosis=replace(s.diagnosis, source=replace(s.diagnosis.source, unprofiled_step_ns=times)))
        for s, times in ((side(20, {}), (10 * MS,) * 5), (side(20, {}), (12 * MS,) * 5))
    ]
    c = compare(*plain)
    assert c.measured == "unprofiled"
    assert c.ratio == pytest.approx(1.2)


def test_kernels_that_came_and_went_are_told():
    before = side(20, {}, kernels={"gemm": KernelUse(10, 5 * MS), "old": KernelUse(1, 2 * MS)})
    after = side(20, {}, kernels={"gemm": KernelUse(20, 9 * MS), "new": KernelUse(1, 3 * MS)})
    told = {x.name: (x.by_ns, x.note) for x in compare(before, after).kernels}
    assert told == {
        "gemm": (4 * MS, "10 to 20 calls a step"),
        "old": (-2 * MS, "vanished"),
        "new": (3 * MS, "appeared"),
    }
    assert max(map(len, as_text(compare(before, after)).splitlines())) <= 100


def test_the_gate_lets_through_what_is_within_the_tolerance():
    before = side(20, {"data-stall": 4})
    assert judge(compare(before, side(20.8, {"data-stall": 4})), 0.05).passed
    failed = judge(compare(before, side(26, {"data-stall": 10})), 0.05)
    assert not failed.passed
    assert any("data-stall: 6.00 ms more per step" in line for line in failed.changed)
    assert judge(compare(before, side(26, {"data-stall": 10})), 0.5).passed
    assert judge(compare(side(26, {}), side(20, {})), 0.0).passed


def test_junit_and_sarif_name_the_failure():
    failed = judge(compare(side(20, {}), side(26, {"data-stall": 6}, place="/repo/train<1>.py")), 0.05)
    suite = ElementTree.fromstring(junit(failed)).find("testsuite")
    assert suite.get("failures") == "1"
    assert "slower than the baseline" in suite.find("testcase/failure").get("message")
    (ran,) = json.loads(sarif(failed))["runs"]
    assert [r["ruleId"] for r in ran["results"]] == ["step-time", "data-stall"]
    assert {r["id"] for r in ran["tool"]["driver"]["rules"]} == {"step-time", "data-stall"}
    place = ran["results"][1]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "repo/train<1>.py"}, "region": {"startLine": 7}}
    passed = judge(compare(side(20, {}), side(20, {})), 0.05)
    assert json.loads(sarif(passed))["runs"][0]["results"] == []
    assert ElementTree.fromstring(junit(passed)).find("testsuite").get("failures") == "0"


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("0", 0.0), ("12.5 %", 0.125)])
def test_tolerances(text, value):
    assert parse_tolerance(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "five", "-1%", "5%%", "2000%"])
def test_a_tolerance_that_is_none(text):
    with pytest.raises(UsageError, match="--tolerance"):
        parse_tolerance(text)


def test_a_diagnosis_comes_back_from_its_json(late):
    d = late.diagnosis()
    back = from_json(d.to_json(), source="x.json")
    assert [f.rule for f in back.findings] == [f.rule for f in d.findings]
    for name in ("verdict", "headline", "dominant", "partition", "queue", "trust", "step_times_ns"):
        assert getattr(back, name) == getattr(d, name), name
    assert back.idle_by_cause == pytest.approx(d.idle_by_cause)
    assert [p.saves_ns for p in back.prescriptions] == [pytest.approx(p.saves_ns, abs=1) for p in d.prescriptions]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON"),
        ("[]", "expected object, got array"),
        ('{"traceEvents": []}', "is not a diagnosis"),
        ('{"schema_version": 99, "verdict": "gaps"}', "newer diagnose"),
        ('{"schema_version": 1, "verdict": "gaps"}', "missing required field headline"),
        ('{"schema_version": "x", "verdict": "gaps"}', r"schema_version is wrong \(expected int, got str\)"),
    ],
)
def test_what_is_no_diagnosis_is_one_sentence(text, said):
    with pytest.raises(InputError, match=said):
        from_json(text, source="x.json")


def test_an_unknown_verdict_is_damage(late):
    data = json.loads(late.diagnosis().to_json())
    with pytest.raises(InputError, match="invalid enum value 'fine'"):
        from_dict({**data, "verdict": "fine"}, source="x.json")


def without(data, key):
    del data[key]


def put(*path):
    """Return a change that puts the last of ``path`` where the others lead."""

    def change(data):
        *keys, last, value = path
        for key in keys:
            data = data[key]
        data[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (put("step_ms", -1), "step_ms"),
        (put("step_ms", "20"), "step_ms"),
        (put("step_ms", 10**400), "step_ms"),
        (put("step_ms", None), "no step with a length"),
        (put("step_ms", 0), "no step with a length"),
        (put("step_times_ms", 0, [1]), r"step_times_ms\[0\]"),
        (put("step_times_ms", {}), "step_times_ms"),
        (put("findings", 0, "count", float("inf")), "JSON"),
        (put("findings", 0, "count", -3), r"findings\[0\].count"),
        (put("findings", 0, "count", 10**30), r"findings\[0\].count"),
        (put("findings", 0, "lost_ms", float("nan")), "JSON"),
        (put("findings", 0, "confidence", "sure"), r"findings\[0\].confidence"),
        (put("findings", 0, "rule", "x" * 10_000), r"findings\[0\].rule"),
        (put("findings", 0, "rule", "a\x1b[31m"), r"findings\[0\].rule"),
        (put("findings", 0, "where", [{}]), r"findings\[0\].where\[0\]"),
        (put("idle_by_cause", {"gc-pause": 1.5}), "idle_by_cause"),
        (put("idle_by_cause", {"\x1b]0;": 0.5}), "idle_by_cause"),
        (put("partition", "idle", -0.5), "partition.idle"),
        (put("source", "world_size", 0), "source.world_size"),
        (put("trust", [1]), r"trust\[0\]"),
        (put("schema_version", 2), "newer diagnose"),
        (put("schema_version", -1), "schema_version"),
        (lambda data: without(data, "source"), "field source"),
    ],
)
def test_a_report_that_was_changed_is_one_sentence(late, tmp_path, capsys, change, field):
    data = json.loads(late.diagnosis().to_json())
    (tmp_path / "good.json").write_text(json.dumps(data))
    change(data)
    (tmp_path / "bad.json").write_text(json.dumps(data))
    assert run(["compare", str(tmp_path / "good.json"), str(tmp_path / "bad.json")]) == 4
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(field, shown.err)
    assert shown.err.startswith(f"diagnose: error: {tmp_path}")
    assert (len(shown.err) < 1200, shown.err.count("\n"), shown.err.strip().isprintable()) == (True, 1, True)


def test_a_report_that_is_nested_without_end_is_one_sentence(late, tmp_path, capsys):
    text = late.diagnosis().to_json().replace('"samples": {}', f'"samples": {{"deep": {"[" * 9000}{"]" * 9000}}}')
    (tmp_path / "bad.json").write_text(text)
    assert run(["compare", str(tmp_path / "bad.json"), str(tmp_path / "bad.json")]) == 4
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(InputError, match="nested too deeply"):
        from_json(text, source="bad.json")


def test_step_times_of_zero_do_not_divide(late, tmp_path, capsys):
    data = json.loads(late.diagnosis().to_json())
    data["source"]["unprofiled_step_ms"], data["step_times_ms"] = [0, 0, 0, 0, None], [0, 1, 0]
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert run(["compare", "--json", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    answer = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (answer["measured"], answer["ratio"], answer["interval"]) == ("recorded", 1.0, [1.0, 1.0])


@pytest.fixture
def reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "before.json").write_text(side(20, {"data-stall": 4}).diagnosis.to_json())
    (tmp_path / "after.json").write_text(side(26, {"data-stall": 10}).diagnosis.to_json())
    return tmp_path


def test_the_command_compares_reports(reports, capsys):
    assert run(["compare", "before.json", "after.json"]) == 0
    assert "The step is slower: 20.0 ms before, 26.0 ms after" in capsys.readouterr().out
    assert run(["compare", "--json", "before.json", "after.json"]) == 0
    assert json.loads(capsys.readouterr().out)["slower"] is True


def test_the_command_gates_with_exit_code_3(reports, capsys):
    assert run(["gate", "--junit", "j.xml", "--sarif", "s.sarif", "before.json", "after.json"]) == 3
    assert capsys.readouterr().out.startswith("failed: The step is more than 5% slower")
    assert (reports / "j.xml").exists()
    assert (reports / "s.sarif").exists()
    assert run(["gate", "--junit", "j.xml", "before.json", "after.json"]) == 6
    assert "j.xml exists already" in capsys.readouterr().err
    assert run(["gate", "--junit", "j.xml", "--force", "before.json", "after.json"]) == 3
    assert run(["gate", "--sarif", "after.json", "--force", "before.json", "after.json"]) == 2
    assert json.loads((reports / "after.json").read_text())["step_ms"] == 26
    assert run(["gate", "--tolerance", "50%", "before.json", "after.json"]) == 0
    assert run(["gate", "after.json", "before.json"]) == 0


def test_a_baseline_is_written_on_request(reports, capsys):
    assert run(["gate", "new.json", "after.json"]) == 4
    assert "create it with --update" in capsys.readouterr().err
    assert run(["gate", "--update", "new.json", "after.json"]) == 0
    assert run(["gate", "new.json", "after.json"]) == 0
    assert run(["gate", "--update", "before.json", "after.json"]) == 0
    assert run(["gate", "before.json", "after.json"]) == 0


def test_options_behind_the_target_are_told_of(reports, capsys):
    assert run(["gate", "before.json", "after.json", "--junit", "x"]) == 2
    assert "options go before BASELINE" in capsys.readouterr().err


def test_json_of_a_comparison_is_whole(reports):
    c = compare(side(20, {"data-stall": 4}), side(26, {"data-stall": 10}))
    plain = json.loads(as_json(c))
    assert plain["interval"][0] <= plain["ratio"] <= plain["interval"][1]
    assert plain["causes"] == [{"name": "data-stall", "before_ms": 4, "after_ms": 10, "by_ms": 6, "note": ""}]

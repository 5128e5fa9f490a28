"""What differs between two sides, and what is read back from a report."""

from __future__ import annotations

import json
import re

import pytest

from diagnose.cli.main import run
from diagnose.compare.compare import compare
from diagnose.compare.format import as_json, as_text, sentence
from diagnose.compare.gate import parse_tolerance
from diagnose.compare.sides import KernelUse
from diagnose.errors import InputError, UsageError
from diagnose.reports.json_reading import from_json

MS = 1_000_000


def test_a_step_that_grew_is_slower_and_its_causes_are_named(side):
    c = compare(side(20, {"data-stall": 4}), side(26, {"data-stall": 8, "gc-pause": 2}))
    assert c.is_slower
    assert c.ratio == pytest.approx(1.3)
    assert [(x.name, x.by_ns) for x in c.causes] == [("data-stall", 4 * MS), ("gc-pause", 2 * MS)]
    assert [(x.name, round(x.by_ns)) for x in c.parts] == [("idle", 6 * MS)]


def test_a_difference_within_the_spread_of_the_runs_is_undecided(side):
    c = compare(side(20, runs_ms=(18, 20, 22)), side(22, runs_ms=(21, 22, 23)))
    assert (c.is_slower, c.is_faster, c.evaluation.outcome) == (False, False, "undecided")
    assert sentence(c).startswith("1.10x slower, not certain: 20.0 ms before, 22.0 ms after, mean recorded steps (")


def test_unprofiled_steps_are_compared_where_every_run_has_them(reports, capsys):
    plain = [*reports("a", 20, 20.1, unprofiled_ms=(10,) * 5), *reports("b", 20, unprofiled_ms=(13,) * 5)]
    without = reports("c", 20)
    for later, measured, steps in ((plain[2:], "unprofiled", (10, 13)), (without, "recorded", (20.05, 20))):
        assert run(["compare", "--json", "--before", plain[0], "--before", plain[1], *later]) == 0
        c = json.loads(capsys.readouterr().out)
        assert (c["measured"], c["before"]["step_ms"], c["after"]["step_ms"]) == (measured, *steps)
        assert c["ratio"] == pytest.approx(steps[1] / steps[0])


def test_the_steps_that_are_printed_are_those_that_were_evaluated(reports, capsys):
    """The recorded step grew while the unprofiled one shrank, as where the profiler was slower in the later run."""
    before = reports("a", 50.9, 51.0, 50.8, unprofiled_ms=(48, 48, 48))
    after = reports("b", 54.5, 54.6, 54.4, unprofiled_ms=(40, 40, 40))
    assert run(["compare", "--before", before[0], "--before", before[1], "--before", before[2], *after]) == 0
    first, _, rest = " ".join(capsys.readouterr().out.split()).partition(".json: ")
    assert first.startswith("1.20x faster: 48.0 ms before, 40.0 ms after, mean unprofiled steps (1.20x")
    assert "51.0" not in first
    assert "Below: the mean recorded step, 51.0 ms before and 54.6 ms after" in rest


def test_kernels_that_came_and_went_are_named(side):
    before = side(20, kernels={"gemm": KernelUse(10, 5 * MS), "old": KernelUse(1, 2 * MS)})
    after = side(20, kernels={"gemm": KernelUse(20, 9 * MS), "new": KernelUse(1, 3 * MS)})
    named = {x.name: (x.by_ns, x.note) for x in compare(before, after).kernels}
    assert named == {
        "gemm": (4 * MS, "10 to 20 calls a step"),
        "old": (-2 * MS, "vanished"),
        "new": (3 * MS, "appeared"),
    }
    assert max(map(len, as_text(compare(before, after)).splitlines())) <= 100


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
        from_json(json.dumps({**data, "verdict": "fine"}), source="x.json")


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


def test_json_of_a_comparison_is_whole(side):
    c = compare(side(20, {"data-stall": 4}), side(26, {"data-stall": 10}))
    plain = json.loads(as_json(c))
    assert plain["interval"][0] <= plain["ratio"] <= plain["interval"][1]
    assert (plain["outcome"], plain["slower"], plain["interval_of"]) == ("slower", True, "runs")
    assert plain["before"]["run_steps_ms"] == [19.8, 20, 20.2]
    assert plain["causes"] == [{"name": "data-stall", "before_ms": 4, "after_ms": 10, "by_ms": 6, "note": ""}]


def test_one_report_a_side_is_undecided(reports, capsys):
    """Formerly two such reports were called slower for certain, from the spread of the steps within each."""
    names = [*reports("a", 20), *reports("b", 26)]
    assert run(["compare", *names]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("1.30x slower, not tested: 20.0 ms before, 26.0 ms after")
    assert "Record at least 2 runs of the baseline, better 3 of each side; " in shown


def test_a_narrow_terminal_gets_narrow_lines(side):
    name = "void at::native::a_kernel_with_a_long_name_that_goes_on_and_on_and_on"
    kernels = [{name: KernelUse(calls, ms * MS)} for calls, ms in ((10, 5), (20, 9))]
    c = compare(side(20, {"data-stall": 4}, kernels=kernels[0]), side(26, {"gc-pause": 9}, kernels=kernels[1]))
    text = as_text(c, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "10 to 20 calls a step" in text


def test_parts_that_went_the_other_way_are_not_said_to_be_the_reason(reports, capsys):
    before = reports("a", 50.9, 51.0, 50.8, unprofiled_ms=(48, 48, 48))
    after = reports("b", 54.5, 54.6, 54.4, unprofiled_ms=(40, 40, 40))
    assert run(["compare", "--before", before[0], "--before", before[1], "--before", before[2], *after]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "While it was recorded the step became longer, so these parts do not show why it is faster." in shown


def test_a_cost_that_falls_on_every_tenth_step_makes_a_step_slower(reports, capsys):
    costs = [(100.0,) * 9 + (100.0 + cost,) for cost in (0, 190)]
    paths = [
        path
        for name, steps in zip("ab", costs, strict=True)
        for path in reports(name, 110, 110.1, 110.2, unprofiled_ms=steps * 3)
    ]
    named = [word for path in paths[:3] for word in ("--before", path)]
    assert run(["compare", "--json", *named, *paths[3:]]) == 0
    c = json.loads(capsys.readouterr().out)
    assert (c["outcome"], c["ratio"]) == ("slower", pytest.approx(1.19))

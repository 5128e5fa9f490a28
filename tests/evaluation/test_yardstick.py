"""The open yardstick: its cases, the rules that judge, the sheet of the reader, and the page."""

import ast
import json
import sys

import pytest
import run
from yardstick import sets as registry
from yardstick.answer import Answer
from yardstick.case import Case, Recording, Script, Truth, digest
from yardstick.firsts import judged_firsts
from yardstick.page import first_answers, page, table
from yardstick.readers import entries_of, truth_of
from yardstick.scoring import judge, wilson
from yardstick.sheet import read_sheet, with_judgements, write_sheet
from yardstick.tools import TOOLS, families

from diagnose.analyzers import RULES

SETS = registry.read_sets()
CASES = [case for each in SETS for case in each.cases]
OWN = TOOLS["diagnose"]
TRUTH = Truth("loads in one process", healthy=False, lines=(("a.py", 7),), names=("data-stall",), saved=0.5)
HEALTHY = Truth("", healthy=True, names=("none",))
ANSWER = Answer("waits for data", ("data-stall",), (("a.py", 6, 8),), "Load in workers", "load-in-workers", 0.4)


def case(truth=TRUTH, name="one"):
    return Case("some", name, Recording(), lambda: truth)


def mark(truth=TRUTH, answer=ANSWER, tool=OWN, name="one", failed=""):
    return judge(tool, case(truth, name), answer, 2.0, failed)


OPENED = [case for each in SETS if each.opened for case in each.cases]  # no test prints a sealed truth


@pytest.mark.parametrize("case", [case for case in OPENED if case.set != "simulated"], ids=lambda case: case.id)
def test_every_case_is_whole(case):
    truth = case.truth()
    assert bool(truth.cause) or truth.healthy
    assert not (truth.healthy and (truth.lines or truth.helps))
    assert set(truth.names) <= {"none"} | {rule.META.id for rule in RULES} | {"convolution"}
    if isinstance(case.subject, Script) and case.subject.file.is_file():
        tree = ast.parse(case.subject.file.read_text(encoding="utf-8"))
        last = max((node.end_lineno for node in ast.walk(tree) if hasattr(node, "end_lineno")), default=0)
        assert all(1 <= line <= last for file, line in truth.lines if file == case.subject.file.name)


def test_no_truth_has_changed_since_it_was_fixed():
    assert registry.changed(CASES) == []


def test_sets_have_an_origin_and_those_of_strangers_have_hashes():
    fixed = json.loads(registry.HASHES.read_text(encoding="utf-8"))
    for each in SETS:
        assert all((each.title, each.author, each.machine, each.licence))
        assert each.absent or each.cases
        assert each.name in fixed or not each.is_blind
    assert len({case.id for case in CASES}) == len(CASES)


def test_simulated_cases_know_what_a_repair_saves():
    known = next(case for case in CASES if case.set == "simulated").truth()
    assert known.healthy or (known.saved > 0.02 and known.names)


def test_families_are_made_of_ids():
    ids = {rule.META.id for rule in RULES}
    assert all(set(getattr(families, name)) <= ids for name in families.__all__)


ENTRY = {"name": "a", "healthy": False, "cause": "slow", "lines": [1], "repair": "less", "share_saved": 0.5}


@pytest.fixture
def sealed(tmp_path):
    (tmp_path / "a.py").write_text("pass\n")
    (tmp_path / "truth.json").write_text(json.dumps([ENTRY]))
    source = {"name": "new", "title": "scripts", "author": "a stranger", "is_blind": True, "machine": "CPU"}
    source |= {"licence": "MIT", "opened": "2026-01-01", "reader": "entries"}
    source |= {"truth": str(tmp_path / "truth.json"), "script": str(tmp_path / "{name}.py")}
    manifest, hashes = tmp_path / "manifest.json", tmp_path / "hashes.json"
    manifest.write_text(json.dumps([source]))
    hashes.write_text("{}")
    registry.fix(registry.read_sets(manifest, hashes)[0], hashes)
    manifest.write_text(json.dumps([source | {"opened": ""}]))
    return manifest, hashes


def test_a_sealed_set_is_listed_without_reading_its_truth(sealed, monkeypatch):
    monkeypatch.setattr("yardstick.readers.entries_of", lambda _: pytest.fail("the truth was read"))
    (listed,) = registry.read_sets(*sealed)
    assert listed.part == "sealed"
    assert [case.name for case in listed.cases] == ["a"]


def test_opening_a_set_makes_it_development_data(sealed):
    manifest, hashes = sealed
    registry.open_set("new", "2026-12-01", manifest)
    (opened,) = registry.read_sets(manifest, hashes)
    assert (opened.part, opened.opened) == ("development", "2026-12-01")
    assert opened.cases[0].truth().saved == 0.5


def test_a_truth_that_was_changed_is_found_and_hashes_are_written_once(sealed, tmp_path):
    (each,) = registry.read_sets(*sealed)
    assert registry.changed(each.cases, sealed[1]) == []
    (tmp_path / "truth.json").write_text(json.dumps([ENTRY | {"lines": [2]}]))
    assert registry.changed(each.cases, sealed[1]) == ["new/a"]
    with pytest.raises(ValueError, match="fixed before"):
        registry.fix(each, sealed[1])


def test_a_hash_leaves_out_what_was_added_to_an_entry_later():
    source = {"name": "blind-1", "truth": "evaluation/blind/truth.json", "only": "2026-11-27, 20 scripts"}
    assert "first_answer" in next(iter(entries_of(source).values()))
    first = next(case for case in CASES if case.set == "blind-1")
    assert "first_answer" not in first.entry()
    assert len(digest(first)) == 16


def test_entries_of_other_forms_mean_the_same():
    waste = {"kind": "waste", "cause": "slow", "line": [3], "fix": "less", "measured_ms": {"planted": 4, "repaired": 3}}
    truth = truth_of(waste, "a.py")
    assert (truth.lines, truth.helps, truth.saved, truth.names) == ((("a.py", 3),), ("less",), 0.25, ())
    assert truth_of({"kind": "unfused", "cause": "x"}, "a.py").names[0] == "unfused"
    assert truth_of({"kind": "", "cause": ""}, "a.py").healthy


def test_a_slice_is_the_same_for_each_call_and_leaves_out_what_cannot_run():
    first = registry.drawn(CASES, 5, 3)
    assert [case.id for case in first] == [case.id for case in registry.drawn(CASES, 5, 3)]
    assert not any(case.missing for case in registry.drawn(CASES, 10_000, 1))


def test_the_true_cause_and_line_are_right():
    judged = mark()
    assert (judged.cause, judged.line, judged.change) == ("right", "right", "")
    assert judged.error == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("truth", "answer", "cause"),
    [
        (TRUTH, Answer("waits", ("data-stall", "host-sync")), "fair"),
        (TRUTH, Answer("waits", ("host-sync",)), "wrong"),
        (TRUTH, Answer("something"), "open"),
        (TRUTH, Answer(), "missed"),
        (Truth("slow", healthy=False), ANSWER, "open"),
        (Truth("slow", healthy=False, names=("host-sync", "none")), Answer(), "right"),
        (HEALTHY, Answer(), "allowed"),
        (HEALTHY, ANSWER, "false"),
        (Truth("", healthy=True, names=("slow-kernel", "none")), Answer("slow", ("slow-kernel",)), "allowed"),
    ],
)
def test_what_rules_judge_of_a_cause(truth, answer, cause):
    assert mark(truth, answer).cause == cause


def test_a_tool_is_judged_only_by_what_its_answers_have():
    profiler, breakdown = TOOLS["py-spy"], TOOLS["hta"]
    assert (mark(tool=profiler).cause, mark(tool=profiler).line) == ("", "right")
    assert (mark(HEALTHY, tool=breakdown).cause, mark(tool=breakdown).line) == ("", "")


def test_no_answer_is_not_right():
    judged = mark(answer=Answer(), failed="more than 900 s")
    assert (judged.cause, judged.line) == ("no answer", "none")
    assert "0 of 1" in table([judged])[1]


def test_changes_are_right_by_their_id_and_else_wait_for_a_reader():
    helped = Truth("slow", healthy=False, names=("data-stall",), helps=("workers",), changes=("load-in-workers",))
    assert mark(helped).change == "right"
    assert mark(Truth("slow", healthy=False, helps=("workers",))).change == "open"
    assert mark(helped, Answer("waits", ("data-stall",))).change == "none"


@pytest.mark.parametrize(
    ("hits", "num", "low", "high"), [(5, 10, 0.2366, 0.7634), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (0, 0, 0, 1)]
)
def test_intervals_are_wilsons(hits, num, low, high):
    assert wilson(hits, num) == pytest.approx((low, high), abs=1e-4)


WORDS = Truth("the loop copies", healthy=False, lines=(("a.py", 7),), helps=("no copy",), harms=("a larger batch",))


def test_the_sheet_is_blind_and_what_is_filled_in_counts(tmp_path):
    sheet = tmp_path / "sheet.csv"
    marks = [mark(WORDS), mark(WORDS, tool=TOOLS["hotpath"])]
    assert write_sheet(sheet, marks, {}) == 2
    text = sheet.read_text()
    assert "hotpath" not in text
    assert "diagnose" not in text
    rows = read_sheet(sheet)
    assert len(rows) == 2
    for row in rows.values():
        row.update(cause="fair", change="harmful")
    judged = with_judgements(marks, rows)
    assert [(each.cause, each.change) for each in judged] == [("fair", "harmful")] * 2
    assert write_sheet(sheet, judged, rows) == 0
    assert read_sheet(sheet) == rows
    changed = mark(WORDS, Answer("another", change="other"))
    assert with_judgements([changed], rows)[0].cause == "open"


def test_a_judgement_in_other_words_is_refused(tmp_path):
    sheet = tmp_path / "sheet.csv"
    write_sheet(sheet, [mark(WORDS)], {})
    rows = read_sheet(sheet)
    next(iter(rows.values()))["change"] = "good"
    write_sheet(sheet, [], rows)
    with pytest.raises(ValueError, match="'good'"):
        read_sheet(sheet)


def test_rules_are_not_overruled_by_the_sheet(tmp_path):
    sheet = tmp_path / "sheet.csv"
    wrong = mark(Truth("x", healthy=False, names=("host-sync",), helps=("y",)))
    write_sheet(sheet, [wrong], {})
    rows = read_sheet(sheet)
    next(iter(rows.values())).update(cause="right", change="right")
    assert (with_judgements([wrong], rows)[0].cause, with_judgements([wrong], rows)[0].change) == ("wrong", "right")


def test_the_table_has_shares_with_intervals():
    row = table([mark(), mark(answer=Answer(), name="two"), mark(HEALTHY, name="three"), mark(WORDS, name="four")])[1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["diagnose", "4 of 4", "1 of 2 (9–91%), 1 open"]
    assert cells[7] == "1 of 1 (21–100%)"
    assert cells[8] == "-10 points in the median of 1"


def test_the_page_names_the_worst_misses_and_what_was_not_run():
    marks = [mark(answer=Answer(), name="missed"), mark(failed="more than 900 s", name="slow")]
    text = page(marks, SETS, {}, "Two cases.")
    assert "some/missed, loads in one process (50% of the step); answered: nothing" in text
    assert "some/slow: more than 900 s" in text
    assert "nsys-ai" in text
    assert "| all, sealed | " in text


def test_first_answers_are_those_that_readers_judged():
    rows = {line.split("|")[1].strip(): line for line in first_answers(judged_firsts({}))}
    assert "| 15 | 5 (15–58%) | 6 (" in rows["blind-1"]
    assert "| 9 | 5 (" in rows["h200-2"]
    assert rows["h200-2"].endswith("3 of 3 |")


def test_the_command_asks_once_and_prints_the_table(tmp_path, monkeypatch, capsys):
    name = "slow_dataset-planted"
    words = ["--tool", "diagnose", "--set", "recordings", "--only", name, "--keep", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["run.py", *words, "--write", str(tmp_path / "page.md")])
    assert run.main() == 0
    assert "[cause right]" in capsys.readouterr().out
    kept = tmp_path / "diagnose" / f"recordings.{name}.json"
    asked = json.loads(kept.read_text())
    assert (asked["failed"], asked["seconds"] > 0) == ("", True)
    kept.write_text(json.dumps(asked | {"raw": "", "failed": "no answer"}))
    assert run.main() == 0
    assert "no answer" in capsys.readouterr().out
    assert "1 recording and 0 scripts" in (tmp_path / "page.md").read_text()


def test_no_sealed_set_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--part", "sealed", "--set", "blind-1"])
    assert run.main() == 0
    assert "no sealed set" in capsys.readouterr().out


def test_the_sheet_of_the_repository_can_be_read():
    assert read_sheet(run.JUDGED)

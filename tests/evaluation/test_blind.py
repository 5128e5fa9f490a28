"""Blind scripts: the table beside their truth, and what was judged of the first answers."""

import ast
import json

import blind
import pytest

CASES = json.loads((blind.FOLDER / "truth.json").read_text(encoding="utf-8"))
CASE = {"name": "one", "healthy": False, "lines": [7, 8], "share_saved": 0.31}


def found(line=7, worth_ms=4.0, dominant="data-stall", diff=""):
    first = {"rule": "data-stall", "worth_ms": worth_ms, "where": [{"file": "a.py", "line": line}]}
    card = {"rule": "data-stall", "title": "Load in workers", "diff": diff}
    return {"findings": [first], "prescriptions": [card], "dominant": dominant, "step_ms": 10.0}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_case_is_whole(case):
    tree = ast.parse((blind.FOLDER / case["file"]).read_text(encoding="utf-8"))
    last = max(node.end_lineno for node in ast.walk(tree) if hasattr(node, "end_lineno"))
    assert all(1 <= line <= last for line in case["lines"])
    assert bool(case["lines"]) != case["healthy"]
    assert (case["share_saved"] > 0.1) != case["healthy"]
    assert case["first_answer"].keys() >= {"cause", "line", "change"}


def test_a_row_has_the_truth_and_the_answer():
    assert blind.row(CASE, found()).split(maxsplit=2)[:2] == ["yes", "one"]
    assert blind.row(CASE, found()).endswith("data-stall at line 7, 40 %; Load in workers")
    assert blind.row(CASE, found(diff="--- a/a.py")).endswith("; Load in workers (diff)")
    assert blind.row(CASE, found(line=9)).split()[0] == "-"
    assert blind.row({**CASE, "healthy": True}, found()).split()[0] == "-"
    assert blind.row({**CASE, "healthy": True}, found(dominant="")).split()[0] == "yes"


def test_first_answers_are_summed_set_by_set():
    answer = {"cause": "right", "line": "right", "change": "fair"}
    cases = [{**CASE, "set": "a", "first_answer": answer}, {**CASE, "set": "b", "first_answer": answer}]
    assert blind.judged(cases).count("cause: right 1") == 2

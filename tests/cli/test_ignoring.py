"""Findings that are left out: by id, or by a comment in the program; everything else stays as it is."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.answer.screen import answer
from diagnose.api import analyze_trace
from diagnose.cli.ignoring import RuleChoice, leave_out
from diagnose.errors import UsageError
from diagnose.model.locations import Where
from diagnose.model.words import english
from diagnose.reports.json import to_dict

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
ANSWER = {
    "findings",
    "prescriptions",
    "also_possible",
    "waterfall",
    "ignored",
    "trust",
    "dominant",
    "headline",
    "summary",
    "answer",
}


@pytest.fixture(scope="module")
def diagnosis():
    return analyze_trace(TRACES / "slow_dataset-planted")


def placed(diagnosis, **where):
    """Return the diagnosis with its first finding at a place."""
    first, *rest = diagnosis.findings
    return replace(diagnosis, findings=(replace(first, where=(Where(**where),)), *rest))


def cautions(d):
    return [english(caution) for caution in answer(d).cautions]


def test_an_ignored_rule_is_left_out_with_its_changes_and_stated(diagnosis):
    found = leave_out(diagnosis, RuleChoice.of(ignore=["data-stall"]))
    assert diagnosis.dominant == "data-stall"
    assert "data-stall" not in {f.rule for f in found.findings} | {p.rule for p in found.prescriptions}
    assert cautions(found)[0] == "Left out as asked: 1 finding: data-stall (75.2 ms per step, by an option or setting)."
    (ignored,) = to_dict(found)["ignored"]
    assert ignored["by"] == "option"
    assert ignored["finding"] == to_dict(diagnosis)["findings"][0]


def test_the_most_valuable_of_what_is_left_answers(diagnosis):
    """A step of 87.8 ms: loading is worth 77.5 of it, launches 1.89."""
    found = leave_out(diagnosis, RuleChoice.of(ignore=["data-stall"]))
    assert found.dominant == "launch-bound"
    words = "the GPU waits for kernel launches (costs 2.2 % of the step)"
    assert found.headline == f"Small gains only: {words}"
    assert [card.prescription.rule for card in answer(found).cards] == ["launch-bound"]
    assert found.summary[1] == found.headline


def test_below_the_floor_there_is_little_else_to_gain(diagnosis):
    """A fiftieth of 87.8 ms is 1.76."""
    first, other = diagnosis.findings
    small = replace(diagnosis, findings=(first, replace(other, worth_ns=1.75e6)))
    found = leave_out(small, RuleChoice.of(ignore=["data-stall"]))
    assert found.dominant is None
    assert found.headline.startswith("Little else to gain: the GPU idles 88.")
    assert answer(found).cards == ()
    none = leave_out(small, RuleChoice.of(ignore=["data-stall", "launch-bound"]))
    assert none.headline.startswith("Nothing else to fix: ")


def test_every_other_number_stays(diagnosis):
    before, after = to_dict(diagnosis), to_dict(leave_out(diagnosis, RuleChoice.of(ignore=["data-stall"])))
    assert {key: after[key] for key in set(after) - ANSWER} == {key: before[key] for key in set(before) - ANSWER}
    assert {f["rule"]: f for f in after["findings"]}.items() <= {f["rule"]: f for f in before["findings"]}.items()


def test_selected_rules_are_the_only_ones(diagnosis):
    found = leave_out(diagnosis, RuleChoice.of(select=["data_stall"]))
    assert [f.rule for f in found.findings] == ["data-stall"]
    assert found.headline == diagnosis.headline
    assert len(found.ignored) == len(diagnosis.findings) - 1


@pytest.mark.parametrize(
    ("lines", "is_left_out"),
    [
        (["", "for x in loader:  # diagnose: ignore=data-stall"], True),
        (["# diagnose: ignore=host-sync, data-stall", "for x in loader:"], True),
        (["n = 1  # diagnose: ignore=data-stall", "for x in loader:"], False),  # of the line above
        (["", "for x in loader:  # diagnose: ignore=host-sync"], False),
        (["# diagnose: ignore=data-stall", "for y in loader:"], False),  # not the line that was recorded
    ],
)
def test_a_comment_leaves_out_the_finding_at_its_line(diagnosis, tmp_path, lines, is_left_out):
    script = tmp_path / "train.py"
    script.write_text("\n".join(lines))
    code = lines[1].strip().replace("y in", "x in")
    found = leave_out(placed(diagnosis, file=str(script), line=2, code=code), RuleChoice())
    assert ([one.by for one in found.ignored] == ["comment"]) is is_left_out
    if is_left_out:
        assert cautions(found)[0].endswith("per step, by the comment at train.py:2).")


def test_the_captured_line_counts_where_the_file_is_elsewhere(diagnosis):
    place = {"file": "/elsewhere/train.py", "line": 7, "code": "for x in loader:  # diagnose: ignore=data-stall"}
    assert len(leave_out(placed(diagnosis, **place), RuleChoice()).ignored) == 1


def test_an_unknown_id_is_an_error_or_a_note_with_the_nearest_one(diagnosis):
    with pytest.raises(UsageError, match=r"Unknown rule 'data-stal' of --ignore: the nearest is data-stall\."):
        RuleChoice.of(ignore=["launch-bound,data-stal"])
    found = leave_out(placed(diagnosis, file="a.py", line=1, code="x  # diagnose: ignore=data-stal"), RuleChoice())
    assert (
        found.trust[-1].text == "The comment at a.py:1 ignores an unknown rule 'data-stal': the nearest is data-stall."
    )
    assert not found.ignored


def test_without_anything_to_leave_out_it_is_the_same_diagnosis(diagnosis):
    assert leave_out(diagnosis, RuleChoice()) == diagnosis

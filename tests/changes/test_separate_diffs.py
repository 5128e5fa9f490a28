"""Diffs of two prescriptions that edit lines near each other."""

import itertools
import subprocess

import pytest

from diagnose.changes.common.call_edits import calls_in, diff_of, edited
from diagnose.changes.edits.separate_diffs import applies_in, separated
from diagnose.model.diagnosis import Prescription

LINES = ["import x", "", "loader = DataLoader(data)", "model = Model()", "optimizer = Adam(params)", "", "run()"]


def prescribed(lines, number, **values):
    """Return a change of the call in a line, with three lines around it."""
    line = lines[number - 1]
    start = line.index("= ") + 2
    first, last = max(1, number - 3), min(len(lines), number + 3)
    made = {
        "name": "Any",
        "file": "train.py",
        "first": first,
        "lines": lines[first - 1 : last],
        "begin": [number, start],
        "end": [number, len(line)],
        "parameters": ["first", *values],
        "ends_file": last == len(lines),
    }
    diff = diff_of([edited(one, values) for one in calls_in({"made": made}, ("Any",))])
    return Prescription("", "", "", "", "", (0.0, 0.0), None, "", diff=diff)


def applied(folder, lines, diffs):
    (folder / "train.py").write_text("\n".join(lines))
    for diff in diffs:
        subprocess.run(["git", "apply", "-"], cwd=folder, input=diff, text=True, check=True)
    return (folder / "train.py").read_text().splitlines()


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
def test_edits_with_a_line_between_them_apply_in_any_order(tmp_path, order):
    changes = separated([prescribed(LINES, 3, num_workers=2), prescribed(LINES, 5, fused=True)])
    after = applied(tmp_path, LINES, [changes[i].diff for i in order])
    assert after == [
        *LINES[:2],
        "loader = DataLoader(data, num_workers=2)",
        LINES[3],
        "optimizer = Adam(params, fused=True)",
        *LINES[5:],
    ]
    for change in changes:
        applied(tmp_path, LINES, [change.diff])


@pytest.mark.parametrize(
    ("around", "context"), [((9, 4), (4, 4)), ((3, 3), (3, 3)), ((1, 7), (1, 2)), ((6, 0), (6, 0))]
)
def test_a_hunk_has_as_much_context_before_its_edits_as_behind_them(around, context):
    """GNU patch takes one that has much less behind them for one at the end of the file."""
    before, behind = around
    text = [*(f" above {n}" for n in range(before)), "-old", "+new", *(f" below {n}" for n in range(behind))]
    head = f"--- a/train.py\n+++ b/train.py\n@@ -11,{before + behind + 1} +11,{before + behind + 1} @@\n"
    (change,) = separated([Prescription("", "", "", "", "", (0.0, 0.0), None, "", diff=head + "\n".join(text) + "\n")])
    lines = change.diff.splitlines()[3:]
    assert (lines.index("-old"), len(lines) - lines.index("+new") - 1) == context
    first, num = 11 + before - context[0], sum(context) + 1
    assert change.diff.splitlines()[2] == f"@@ -{first},{num} +{first},{num} @@"


def test_of_edits_one_below_the_other_the_upper_one_comes_first(tmp_path):
    lines = [line for line in LINES if line != "model = Model()"]
    changes = separated([prescribed(lines, 4, fused=True), prescribed(lines, 3, num_workers=2)])
    assert applied(tmp_path, lines, [changes[1].diff, changes[0].diff])[2:4] == [
        "loader = DataLoader(data, num_workers=2)",
        "optimizer = Adam(params, fused=True)",
    ]


def test_two_changes_of_one_line_and_changes_without_a_diff_stay_as_they_are():
    same = [prescribed(LINES, 5, fused=True), prescribed(LINES, 5, foreach=True)]
    none = Prescription("", "", "", "", "", (0.0, 0.0), None, "")
    assert separated([*same, none]) == (*same, none)


def test_a_diff_applies_where_its_lines_are_and_the_result_is_python(tmp_path):
    change, other = prescribed(LINES, 3, num_workers=2), prescribed(LINES, 5, fused=True)
    assert not applies_in(tmp_path, change.diff), "the file is not here"
    (tmp_path / "train.py").write_text("\n".join(LINES))
    broken = change.diff.replace(
        "+loader = DataLoader(data, num_workers=2)", "+loader = DataLoader(data, num_workers=2"
    )
    assert [applies_in(tmp_path, diff) for diff in (change.diff, other.diff, broken, "")] == [True, True, False, False]
    (tmp_path / "train.py").write_text("\n".join(LINES).replace("Model()", "Net()"))
    assert applies_in(tmp_path, change.diff) is False

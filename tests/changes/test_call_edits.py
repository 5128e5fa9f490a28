"""Arguments set in a call as it stands in a source, and the diff of it."""

import ast
import subprocess

import pytest

from diagnose.changes.common.call_arguments import set_arguments
from diagnose.changes.common.call_edits import call_of, calls_in, diff_of, edited, other_classes_of
from diagnose.changes.common.change import REMOVED
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding
from diagnose.reports.language import language, translated

WORKERS = {"num_workers": 2, "persistent_workers": True}
LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "persistent_workers")


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("DataLoader(ds)", "DataLoader(ds, num_workers=2, persistent_workers=True)"),
        (
            "DataLoader(train_set, 32, sampler=sampler, collate_fn=pad, drop_last=True)",
            "DataLoader(train_set, 32, sampler=sampler, collate_fn=pad, drop_last=True, num_workers=2, "
            "persistent_workers=True)",
        ),
        (
            "DataLoader(ds, 32, True, None, None, 0)",
            "DataLoader(ds, 32, True, None, None, 2, persistent_workers=True)",
        ),
        (
            "DataLoader(\n    ds,\n    shuffle=True,  # a, b\n)",
            "DataLoader(\n    ds,\n    shuffle=True,  # a, b\n    num_workers=2,\n    persistent_workers=True,\n)",
        ),
        ("DataLoader((d for d in ds))", "DataLoader((d for d in ds), num_workers=2, persistent_workers=True)"),
        ("DataLoader(d for d in ds)", "DataLoader((d for d in ds), num_workers=2, persistent_workers=True)"),
        ("DataLoader(é, num_workers = 0)", "DataLoader(é, num_workers = 2, persistent_workers=True)"),
    ],
)
def test_only_the_new_arguments_are_written(text, after):
    assert set_arguments(text, WORKERS, parameters=LOADER) == (after, "")


@pytest.mark.parametrize("spread", [("num_workers", "batch_size"), (), None])
def test_a_key_of_a_mapping_is_not_passed_twice_whatever_keys_it_has_elsewhere(spread):
    text = "DataLoader(ds, **settings)"
    after = "DataLoader(ds, **{**settings, 'num_workers': 2, 'persistent_workers': True})"
    assert set_arguments(text, WORKERS, spread=spread) == (after, "")


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("DataLoader(ds, num_workers=0, **more)", "DataLoader(ds, num_workers=2, **{**more, 'pin': 1})"),
        ("DataLoader(ds, **(a or b))", "DataLoader(ds, **({**(a or b), 'num_workers': 2, 'pin': 1}))"),
        ('DataLoader(**{"a": 1, })', "DataLoader(**{**{\"a\": 1, }, 'num_workers': 2, 'pin': 1})"),
        ("DataLoader(**a, num_workers=0)", "DataLoader(**{**a, 'pin': 1}, num_workers=2)"),
    ],
)
def test_calls_with_a_mapping_still_mean_the_same(text, after):
    changed, why = set_arguments(text, {"num_workers": 2, "pin": 1}, spread=())
    assert (changed, why) == (after, "")
    ast.parse(changed)


def test_what_cannot_be_known_of_mappings_is_left_alone():
    assert set_arguments("f(**a)", {"x": REMOVED}, spread=None) == ("f(**a)", "it takes its arguments from a mapping")
    assert set_arguments("f(**a, **b)", {"x": 1}, spread=("x",))[0] == "f(**a, **b)"
    assert set_arguments("f(**a, **b)", {"x": 1}, spread=()) == ("f(**a, **b, x=1)", "")


def call(line, column, text, name="Adam", **others):
    """Return the record of a call in LINES."""
    first, last = max(1, line - 1), min(len(LINES), line + 1)
    return {
        "name": name,
        "file": "train.py",
        "first": first,
        "lines": LINES[first - 1 : last],
        "begin": [line, column],
        "end": [line, column + len(text)],
        "parameters": ["params", "lr", "fused"],
        "ends_file": last == len(LINES),
        **others,
    }


LINES = ["import x", "d = Adam(netD.parameters(), lr=lr)", "g = Adam(netG.parameters(), lr=lr)", "print(d, g)"]
FIRST, SECOND = call(2, 4, LINES[1][4:]), call(3, 4, LINES[2][4:])


@pytest.mark.parametrize(
    ("text", "named"), [("optim.Adam(p, lr)", []), ("kinds.of(p, lr)", ["kinds.of may be another class"])]
)
def test_a_call_through_a_variable_may_make_other_classes(text, named):
    record = call(2, 4, text)
    record["lines"] = [LINES[0], f"d = {text}", LINES[2]]
    edit = edited(call_of(record), {"fused": True})
    assert [clause[: len("kinds.of may be another class")] for clause in other_classes_of([edit])] == named


def test_the_calls_of_two_optimizers_are_one_diff_that_git_applies(tmp_path):
    calls = calls_in({"made": FIRST, "others": [{"made": SECOND}, {"made": FIRST}, {}]}, ("Adam",))
    assert [one.begin for one in calls] == [(2, 4), (3, 4)]
    diff = diff_of([edited(one, {"fused": True}) for one in calls])
    script = tmp_path / "train.py"
    script.write_text("\n".join(LINES))  # no newline at its end
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff, text=True, check=True)
    assert script.read_text().splitlines() == [
        "import x",
        "d = Adam(netD.parameters(), lr=lr, fused=True)",
        "g = Adam(netG.parameters(), lr=lr, fused=True)",
        "print(d, g)",
    ]


def test_a_line_that_makes_two_optimizers_is_named_once():
    line = "d, g = Adam(a), Adam(b)"
    calls = [{**call(2, at, "Adam(a)"), "lines": [LINES[0], line, LINES[2]]} for at in (7, 16)]
    facts = {"name": "Adam", "made": calls[0], "others": [{"made": calls[1]}]}
    change = next(p for p in prescribe(Finding("unfused-optimizer", "", 5e6, facts=facts), 10e6) if p.diff)
    assert [edit.line for edit in change.edits] == [2]
    assert "+d, g = Adam(a, fused=True), Adam(b, fused=True)" in change.diff


def test_what_a_class_does_not_take_is_not_written():
    (one,) = calls_in({"made": call(2, 4, LINES[1][4:], parameters=["params", "lr"])}, ("Adam",))
    assert edited(one, {"fused": True}) is None
    assert calls_in({"made": FIRST}, ("SGD",)) == []


@pytest.mark.parametrize("wrong", [{"begin": [9, 0]}, {"lines": "x"}, {"first": -1}, {"end": [1, 0]}])
def test_a_record_that_was_edited_makes_no_diff(wrong):
    assert calls_in({"made": {**FIRST, **wrong}}, ("Adam",)) == []


@pytest.mark.parametrize(
    ("given", "clause"),
    [
        ("num_workers=args.workers", "in the script args.workers sets num_workers: --workers 2"),
        (
            "num_workers=opt.num_workers",
            "in the script opt.num_workers sets num_workers: --num-workers 2, or --num_workers 2",
        ),
        ("num_workers=cfg.data.workers", "in the script cfg.data.workers sets num_workers: cfg.data.workers = 2"),
        ("num_workers=self.args.workers", "in the script self.args.workers sets num_workers: --workers 2"),
        ("8, args.workers", "in the script args.workers sets num_workers: --workers 2"),
        ("num_workers=0", ""),
        ("num_workers=workers", ""),
        ("pin_memory=args.pin", ""),
        ("*given", ""),
    ],
)
def test_the_scripts_own_argument_is_named_beside_the_edit(given, clause):
    line = f"loader = DataLoader(data, {given})"
    record = {
        "name": "DataLoader", "file": "train.py", "first": 1, "lines": [line], "begin": [1, 9], "end": [1, len(line)],
        "parameters": ["dataset", "batch_size", "num_workers", "pin_memory", "persistent_workers"],
    }  # fmt: skip
    facts = {"single_process": True, "waits": True, "batch_ns": 1_000_000, "made": record}
    finding = Finding("data-stall", "", 5e6, facts=facts)
    p = next(p for p in prescribe(finding, 1e7) if p.id == "load-in-workers")
    assert p.needs.partition("; ")[2] == clause


def test_the_scripts_own_argument_is_named_in_chinese_too():
    with language("zh"):
        shown = translated("memory for a larger batch; in the script args.workers sets num_workers: --workers 2")
    assert shown == "容纳更大批次的显存；脚本中由 args.workers 设置 num_workers：--workers 2"

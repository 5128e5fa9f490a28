"""Changes that no patch can make are made in the text that a trial runs; the user's file stays."""

import importlib
import io
import linecache
import py_compile
import sys

import pytest

from diagnose.changes.common.change import CannotApply
from diagnose.changes.edits.source_edits import Edits, edited_files, file_diff
from diagnose.errors import UsageError
from diagnose.trials.candidates import check_ids
from diagnose.trials.child import edited
from diagnose.trials.runs import Command, Runner

SCRIPT = """import torch

layer = torch.nn.Linear(2, 1)
batches = torch.utils.data.DataLoader(range(60))
total = 0.0
for _ in batches:
    loss = layer(torch.ones(1, 2)).square().mean()
    loss.backward()
    with torch.no_grad():
        layer.bias -= 0.1 * layer.bias.grad
    total += loss.item()
"""
AT = {"defer-sync": {"lines": [11], "device": "cpu"}}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def opened(path):
    with io.open_code(str(path)) as file:
        return file.read().decode()


def edits(script, **fields):
    return Edits(script, script.parent, arguments=AT, **fields)


def test_whoever_opens_or_shows_the_script_gets_it_with_the_change(script):
    files, made = edited_files(edits(script), ("defer-sync",))
    before = io.open_code
    with edited({str(path): text for path, text in files.items()}):
        text = opened(script)
        other = opened(__file__)
        shown = linecache.getline(str(script), 11)
    assert "total = total + loss.detach()" in text
    assert shown.strip() == "total = total + loss.detach()"
    assert "whoever_opens" in other
    assert script.read_text() == SCRIPT
    assert opened(script) == SCRIPT
    assert io.open_code is before
    assert made == {"defer-sync": "defer-sync, in the text of train.py"}


def test_a_module_is_imported_with_its_edit_whatever_bytecode_it_has(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "edited_module.py"
    path.write_text("value = 1\n")
    py_compile.compile(str(path))
    with edited({str(path): "value = 2\n"}):
        module = importlib.import_module("edited_module")
    assert module.value == 2
    del sys.modules["edited_module"]
    assert importlib.import_module("edited_module").value == 1  # nothing of the edit was kept


def test_what_cannot_be_made_is_a_sentence(script):
    at_7 = Edits(script, arguments={"defer-sync": {"lines": [7]}})
    with pytest.raises(CannotApply, match="defer-sync cannot be made: line 7 of the script"):
        edited_files(at_7, ("defer-sync",))
    with pytest.raises(CannotApply, match="in the text of a script, and the file of this module is not"):
        edited_files(Edits(script.parent), ("defer-sync",))
    with pytest.raises(CannotApply, match="own-edit needs --against FILE"):
        edited_files(edits(script), ("own-edit",))


def test_other_changes_leave_the_text_as_it_is(script):
    assert edited_files(edits(script), ("sham",)) == ({}, {})


def test_without_libcst_a_sentence(script, monkeypatch):
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(UsageError, match=r"install torch-diagnose again"):
        edited_files(edits(script), ("defer-sync",))


def test_a_printed_diff_is_what_is_tried_whatever_else_is_edited(script):
    """Each change is made in the script as it stands: none moves the lines of another one."""
    diff = file_diff(SCRIPT, SCRIPT.replace("Linear(2, 1)", "Linear(2, 2)"), "train.py")
    own = script.with_name("edited.py")
    own.write_text("# one line more\n" * 5 + SCRIPT.replace("-= 0.1", "-= 0.2"))
    files, made = edited_files(edits(script, diffs={"any": diff}, own=own), ("any", "own-edit", "defer-sync"))
    after = own.read_text().replace("Linear(2, 1)", "Linear(2, 2)").replace("+= loss.item()", "= total + loss.detach()")
    assert files == {script: after}
    assert list(made.values()) == [
        "any, the printed diff of train.py", "your edit, edited.py", "defer-sync, in the text of train.py",
    ]  # fmt: skip
    own.write_text(SCRIPT.replace("Linear(2, 1)", "Linear(2, 3)"))
    with pytest.raises(CannotApply, match=r"own-edit cannot be made: it edits what any edits."):
        edited_files(edits(script, diffs={"any": diff}, own=own), ("any", "own-edit"))
    script.write_text(SCRIPT.replace("layer", "model"))
    with pytest.raises(CannotApply, match=r"any cannot be made: its diff does not fit train.py."):
        edited_files(edits(script, diffs={"any": diff}), ("any",))


def test_edits_of_two_lines_do_not_shift_each_other(script):
    """The first one adds a line above that of the second."""
    saved = SCRIPT.replace("total = 0.0", "total = 0.0\nsaved = []").replace("    total", "    saved += [1]\n    total")
    diff = file_diff(SCRIPT, saved, "train.py")
    for order in (("any", "defer-sync"), ("defer-sync", "any")):
        files, _ = edited_files(edits(script, diffs={"any": diff}), order)
        assert files == {script: saved.replace("total += loss.item()", "total = total + loss.detach()")}


def test_two_changes_of_one_call_go_together(script):
    call = "DataLoader(range(60))"
    each = {name: SCRIPT.replace(call, f"{call[:-1]}, {name}=True)") for name in ("pin_memory", "drop_last")}
    diffs = {name: file_diff(SCRIPT, after, "train.py") for name, after in each.items()}
    files, _ = edited_files(edits(script, diffs=diffs), tuple(diffs))
    assert files == {script: SCRIPT.replace(call, f"{call[:-1]}, pin_memory=True, drop_last=True)")}


def test_a_change_with_a_diff_is_not_patched_as_well(script, tmp_path):
    """The diff sets three workers, the patch would set two."""
    script.write_text(SCRIPT.replace("total = 0.0", "print('workers', batches.num_workers)"))
    after = script.read_text().replace("range(60))", "range(60), num_workers=3)")
    runner = Runner(
        Command(("train.py",), tmp_path),
        tmp_path / "runs",
        arguments={"load-in-workers": {"workers": 2}},
        diffs={"load-in-workers": file_diff(script.read_text(), after, "train.py")},
        timed=5,
    )
    run = runner.time(("load-in-workers",), timeout_s=120)
    assert run.applied == ("load-in-workers, the printed diff of train.py",)
    assert "workers 3" in runner.last_log.read_text()
    runner.diffs = {}
    run = runner.time(("load-in-workers",), timeout_s=120)
    assert run.applied == ("DataLoader: num_workers 0 to 2, persistent_workers=True",)


def test_an_edit_that_does_not_fit_leaves_its_change_to_the_patch(script):
    script.write_text("import loop\n")
    assert edited_files(edits(script), ("autocast", "no-fills")) == ({}, {})
    script.write_text(SCRIPT.replace("    with", "    layer.zero_grad(False)\n    with"))
    files, _ = edited_files(edits(script), ("autocast", "no-fills"))
    assert "layer.zero_grad()" in files[script]


@pytest.mark.parametrize("cwd_mode", ["copy", "same"])
@pytest.mark.parametrize("words", [("src/train.py",), ("-m", "src.train")])
def test_an_edit_of_a_module_of_the_project_is_what_runs(tmp_path, cwd_mode, words):
    """In a copy, processes that the script starts read it too; the user's files stay."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "settings.py").write_text("factor = 1\n")
    (source / "train.py").write_text(
        "import os, subprocess, sys\n"
        "sys.path.insert(0, os.path.dirname(__file__))\nimport settings\n"
        "code = 'import settings; print(settings.factor, \"there\")'\n"
        "print(settings.factor, 'here', flush=True)\n"
        "subprocess.run([sys.executable, '-c', code], cwd=os.path.dirname(__file__))\n" + SCRIPT
    )
    diff = file_diff("factor = 1\n", "factor = 2\n", "src/settings.py")
    runner = Runner(Command(words, tmp_path), tmp_path / "runs", cwd_mode, diffs={"any": diff}, timed=5)
    for ids, factor in ((("any",), 2), ((), 1)):
        assert runner.time(ids, timeout_s=120).failure == ""
        printed = runner.last_log.read_text()
        assert f"{factor} here" in printed
        assert f"{factor if cwd_mode == 'copy' else 1} there" in printed
    assert (source / "settings.py").read_text() == "factor = 1\n"


def test_a_step_function_has_no_text():
    check_ids(["defer-sync"])
    with pytest.raises(UsageError, match="in the text of a script; run the script with diagnose prove"):
        check_ids(["defer-sync"], own_process=False)


def test_a_trial_runs_the_changed_text(script, tmp_path):
    (tmp_path / "runs").mkdir()
    runner = Runner(Command(("train.py",), tmp_path), tmp_path / "runs", cwd_mode="same", arguments=AT, timed=5)
    run = runner.time(("defer-sync",), timeout_s=120)
    assert (run.failure, run.applied) == ("", ("defer-sync, in the text of train.py",))
    assert len(run.step_ns) == 5
    assert script.read_text() == SCRIPT


def test_a_trial_of_one_s_own_edit_runs_it_under_the_script_s_name(script, tmp_path):
    (tmp_path / "runs").mkdir()
    own = tmp_path / "edited.py"
    own.write_text(SCRIPT.replace("total = 0.0", "total = 0.0; print(__file__, 'edited')"))
    runner = Runner(Command(("train.py",), tmp_path), tmp_path / "runs", own=own, timed=5)
    run = runner.time(("own-edit",), timeout_s=120)
    assert (run.failure, run.applied) == ("", ("your edit, edited.py",))
    assert "train.py edited" in runner.last_log.read_text()

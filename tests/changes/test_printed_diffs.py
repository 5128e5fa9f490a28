"""Changes printed as diffs of the script that the command ran."""

import itertools
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from diagnose.changes.edits.source_edits import file_diff, with_diffs
from diagnose.model.diagnosis import Diagnosis, Finding, Prescription, Queue, Source, Where

SCRIPT = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)


def main():
    model = Net().to("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for x in torch.ones(3, 4, 2):
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        total += loss.item()
        torch.save(model.state_dict(), "model.pt")
    print(model._compiled_call_impl is not None, float(total) != 0)


main()
"""
EDITED = {  # rule, line that time is lost in, line to edit
    "compile-model": ("launch-bound", 20, 15),
    "defer-sync": ("cpu-sync", 23, 23),
    "save-in-background": ("periodic-stall", 24, 24),
    "allow-tf32": ("fp32-matmul", 20, 2),
    "no-fills": ("memset-traffic", 19, 19),
    "autocast": ("fp32-matmul", 20, 20),
}


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(autouse=True)
def precision():
    """Put back the precision of products, which an edited script sets for its process."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def diagnosed(*names, file="train.py"):
    found = [
        Finding(rule, "", 1e6, where=(Where(file, line),)) for rule, line in {(EDITED[n][:2]) for n in names}
    ]  # fmt: skip
    changes = [Prescription(EDITED[n][0], n, "", "", "an example", (0.0, 1e6), None, "") for n in names]
    return Diagnosis(
        verdict="no-gpu", headline="", dominant=None, step_ns=1e7, step_times_ns=(), queue=None, partition=None,
        idle_by_cause={}, findings=tuple(found), prescriptions=tuple(changes), trust=(), source=Source("capture"),
    )  # fmt: skip


@pytest.mark.parametrize("name", EDITED)
def test_the_diff_applies_and_names_the_line_to_edit(name, script, tmp_path, capsys, monkeypatch):
    (change,) = with_diffs(diagnosed(name), script).prescriptions
    assert [(edit.file, edit.line) for edit in change.edits] == [("train.py", EDITED[name][2])]
    assert change.after == "an example"
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=change.diff, text=True, check=True)
    monkeypatch.setattr("torch.compile", lambda call, **_options: call)  # no compiler is needed for the edit
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out == f"{name == 'compile-model'} True\n"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_diffs_that_add_lines_at_one_place_apply_in_any_order(order, script, tmp_path):
    names = ("allow-tf32", "save-in-background", "compile-model")
    changes = with_diffs(diagnosed(*names), script).prescriptions
    for i in order:
        subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=changes[i].diff, text=True, check=True)
    text = script.read_text()
    assert (
        text.index("BackgroundSaver(waits_before_use=True)") < text.index("class Net") < text.index("model.compile()")
    )
    assert 'torch.set_float32_matmul_precision("high")\n' in text[: text.index("class Net")]


def test_a_save_whose_file_is_used_at_once_is_prescribed_less_often(script):
    script.write_text(SCRIPT.replace('"model.pt")', '"model.pt"); upload("model.pt")').replace("; up", "\n        up"))
    places = (Where("train.py", 24, code='torch.save(model.state_dict(), "model.pt")'),)
    before = diagnosed("save-in-background")
    (found,) = before.findings
    (change,) = with_diffs(replace(before, findings=(replace(found, where=places),)), script).prescriptions
    assert (change.id, change.rule, change.diff) == ("save-less-often", "periodic-stall", "")
    assert "if step % (2 * every) == 0:   # half as often: half of the cost\n    torch.save(" in change.after


def test_an_edit_of_another_file_of_the_project_is_a_diff_of_that_file(script, tmp_path):
    (tmp_path / "loop.py").write_text(SCRIPT)
    script.write_text("import loop\n")
    (change,) = with_diffs(diagnosed("defer-sync", file="loop.py"), script).prescriptions
    assert change.edits[0].file == "loop.py"
    assert change.diff.startswith("--- a/loop.py\n+++ b/loop.py\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("total += loss.item()", "print(loss.item())"),  # its author must decide
        ("total += loss.item()", 'total += loss.item(); login(password="hunter2hunter2")'),  # a credential is shown
        ("\n", "\r\n"),
        ("def main", "def (main"),
    ],
)
def test_without_a_diff_the_example_stays(before, after, script):
    script.write_bytes(SCRIPT.replace(before, after).encode())
    before = diagnosed("defer-sync")
    assert with_diffs(before, script) == before


def test_nothing_outside_the_working_folder_is_read(script, tmp_path, monkeypatch):
    before = diagnosed("defer-sync", file=str(script))
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert with_diffs(before, script) == before


def test_without_libcst_the_examples_stay(script, monkeypatch):
    monkeypatch.setitem(sys.modules, "libcst", None)
    before = diagnosed("defer-sync")
    assert with_diffs(before, script) == before


@pytest.mark.parametrize("known", [True, False])
def test_a_diff_of_the_capture_is_kept_where_it_applies(script, known):
    """A trial runs it then; of no script that is read, too."""
    (change,) = diagnosed("no-fills").prescriptions
    change = replace(change, diff=file_diff(SCRIPT, SCRIPT.replace("lr=0.1", "lr=0.2"), "train.py"))
    before = replace(diagnosed("no-fills"), prescriptions=(change,))
    (kept,) = with_diffs(before, script if known else None).prescriptions
    assert kept == replace(change, trial_method="edited copy")
    script.write_text("import torch\n")
    (left,) = with_diffs(before, script if known else None).prescriptions
    assert left == replace(change, diff="", trial_method="patch")


def test_autocast_is_for_the_device_of_the_steps(script):
    queue = Queue(0.5, 0.5, 1.0, 1.0, 0.1, 10.0, 0.1, 1000)
    (change,) = with_diffs(replace(diagnosed("autocast"), queue=queue), script).prescriptions
    assert '+        with torch.autocast("cuda", dtype=torch.bfloat16):' in change.diff

"""A thread writes the checkpoints of an edited script, which waits for it where it uses the files."""

import subprocess
import sys

import libcst as cst
import pytest

from diagnose.trials.saver_edits import with_background_saver
from diagnose.trials.source_edits import edited_source


def test_a_saver_is_made_after_the_imports_and_closed_at_the_end():
    source = '"""Trains."""\nimport torch\n\nfor step in range(9):\n    torch.save(state, path)  # each\n'
    after, done, left = edited_source(source, "train.py", ["save-in-background"], {})
    assert (done, left) == (("save-in-background",), {})
    assert after == (
        '"""Trains."""\nimport torch\nimport atexit\nfrom diagnose.kernels.saving import BackgroundSaver\n'
        "_saver = BackgroundSaver()\natexit.register(_saver.close)\n\n"
        "for step in range(9):\n    _saver.save(state, path)  # each\n"
    )
    compile(after, "train.py", "exec")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = torch.load(p)\n", "_saver.wait()\nx = torch.load(p)\n"),
        ("model.load_state_dict(torch.load(p))\n", "_saver.wait()\nmodel.load_state_dict(torch.load(p))\n"),
        (
            "if best:\n    # kept\n    shutil.copyfile(p, 'best.pt')  # the best\n",
            "if best:\n    # kept\n    _saver.wait()\n    shutil.copyfile(p, 'best.pt')  # the best\n",
        ),
        ("if best: shutil.copy(p, q)\n", "if best: _saver.wait(); shutil.copy(p, q)\n"),
        ("os.replace(p, q)\n", "_saver.wait()\nos.replace(p, q)\n"),
        ("p.replace(q)\n", "_saver.wait()\np.replace(q)\n"),
        ("p.unlink(missing_ok=True)\n", "_saver.wait()\np.unlink(missing_ok=True)\n"),
        (
            "with tempfile.TemporaryDirectory() as folder:\n    train(folder)\n",
            "with tempfile.TemporaryDirectory() as folder:\n    train(folder)\n    _saver.wait()\n",
        ),
        ("name.replace('a', 'b')\n", "name.replace('a', 'b')\n"),
        ("dataclasses.replace(a, b=1)\n", "dataclasses.replace(a, b=1)\n"),
        ("with open(p) as file:\n    file.read()\n", "with open(p) as file:\n    file.read()\n"),
    ],
)
def test_what_uses_the_files_waits_for_them(before, after):
    tree, why = with_background_saver(cst.parse_module("torch.save(s, p)\n" + before), "cpu")
    assert why == ""
    assert tree.code.partition("_saver.save(s, p)\n")[2] == after


def test_what_runs_before_the_saver_is_made_does_not_wait():
    source = "import torch\nx = torch.load(p)\ndef f():\n    torch.load(p)\nimport os\ntorch.save(x, p)\n"
    tree, _ = with_background_saver(cst.parse_module(source), "cpu")
    assert tree.code.startswith("import torch\nx = torch.load(p)\ndef f():\n    _saver.wait()\n    torch.load(p)\n")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("torch.save(s, p, pickle_protocol=4)\n", "its torch.save has options"),
        ("model.save(p)\n", "the script calls no save itself"),
        ("torch.save(s, p)\nif torch.load(p): pass\n", "it reads or moves files in the head of a statement"),
        ("torch.save(s, p)\nwith f(torch.load(p)): pass\n", "it reads or moves files in the head of a statement"),
    ],
)
def test_what_is_left_to_its_author(source, why):
    tree, reason = with_background_saver(cst.parse_module(source), "cpu")
    assert tree.code == source
    assert reason.startswith(why)


LIKE_IMAGENET = """
import os, shutil, tempfile
import torch

def save_checkpoint(state, is_best, folder):
    torch.save(state, os.path.join(folder, "checkpoint.pt"))
    if is_best:
        shutil.copyfile(os.path.join(folder, "checkpoint.pt"), os.path.join(folder, "best.pt"))

with tempfile.TemporaryDirectory() as folder:
    for epoch in range(4):
        save_checkpoint({"epoch": epoch, "weights": torch.zeros(1 << 22)}, epoch != 3, folder)
    print(*(torch.load(os.path.join(folder, f"{name}.pt"))["epoch"] for name in ("best", "checkpoint")))
    torch.save(torch.zeros(1 << 22), os.path.join(folder, "last.pt"))
"""


def test_an_edited_script_copies_and_removes_what_it_did_before(tmp_path):
    text, done, _ = edited_source(LIKE_IMAGENET, "train.py", ["save-in-background"], {})
    assert done == ("save-in-background",)
    (tmp_path / "train.py").write_text(text)
    run = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "2 3\n", "")

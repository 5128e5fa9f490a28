"""Checkpoints written by a thread, by an edit of the script: what uses the file waits for it."""

import subprocess
import sys

import libcst as cst
import pytest

from diagnose.changes.edits.saver_edits import with_background_saver
from diagnose.changes.edits.source_edits import edited_source
from diagnose.changes.save_in_background import NO_OVERLAP

# A write takes so many seconds longer, so that what does not wait for it sees no file.
HEAD = """
DELAY = 0.3
import glob, io, os, pathlib, shutil, subprocess, sys, threading, time
import torch
if "diagnose.kernels.saving" in sys.modules:
    write = torch.serialization.save
    def slow(obj, file):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(DELAY)
        write(obj, file)
    torch.serialization.save = slow
"""


def test_a_saver_is_made_after_the_imports():
    source = (
        '"""Trains."""\nimport torch\n\nfor step in range(9):\n    torch.save(state, path)  # each\n    x.backward()\n'
    )
    after, why = edited_source(source, "train.py", "save-in-background", {})
    assert why == ""
    assert after == (
        '"""Trains."""\nimport torch\nfrom diagnose.kernels.saving import BackgroundSaver\n'
        "_saver = BackgroundSaver(waits_before_use=True)\n\n"
        "for step in range(9):\n    _saver.save(state, path)  # each\n    x.backward()\n"
    )
    compile(after, "train.py", "exec")


USES = [
    'subprocess.run(["cp", "model.pt", "uploaded.pt"], check=True)',
    'os.system("cp model.pt best.pt")',
    'with open("model.pt") as file: os.fsync(file.fileno())',
    'print(os.path.getsize("model.pt") > 9)',
    'print(pathlib.Path("model.pt").stat().st_size > 9)',
    'sizes = list(map(os.path.getsize, ["model.pt"]))',
    'x = torch.load("model.pt")["step"]',
    'pathlib.Path("model.pt").replace("q")',
    'with open("model.pt", "rb") as file: print(file.read(2))',
    'print(glob.glob("*.pt"))',
    "print(sorted(os.listdir()))",
    "print([entry.name for entry in os.scandir()])",
    'shutil.copyfile(os.path.abspath("model.pt"), "best.pt")',
    'os.symlink("model.pt", "latest"); print(os.path.getsize("latest") > 9)',
    'print(os.access("model.pt", os.R_OK))',
]


def run(source, folder):
    folder.mkdir()
    (folder / "train.py").write_text(source)
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=False)
    files = {path.name: path.is_file() for path in folder.iterdir() if path.name not in ("train.py", "__pycache__")}
    return done.returncode, done.stdout, done.stderr, files


def edited(source):
    text, why = edited_source(source, "train.py", "save-in-background", {})
    assert why == ""
    return text


def test_what_uses_the_file_waits(tmp_path):
    lines = [
        f"os.mkdir('{i}'); os.chdir('{i}')\ntorch.save({{'step': {i}}}, 'model.pt')\nstep = {i}\n{line}\n"
        "os.chdir('..')\n"
        for i, line in enumerate(USES)
    ]
    source = "".join([HEAD, *lines, "print(sum(len(files) for _, _, files in os.walk('.')))\n"])
    assert run(edited(source), tmp_path / "edited") == run(source, tmp_path / "before")


def test_what_does_not_use_the_file_does_not_wait(tmp_path):
    source = (
        HEAD.replace("DELAY = 0.3", "DELAY = 1")
        + "open('other', 'w').close()\nbegan = time.perf_counter()\ntorch.save(1, 'model.pt')\n"
        "print('saved', torch.ones(2).sum().item(), open('other').read(), os.path.exists('another'))\n"
        "assert time.perf_counter() - began < 0.8\n"
    )
    code, out, error, files = run(edited(source), tmp_path / "edited")
    assert (code, out, error) == (0, "saved 2.0  False\n", "")
    assert set(files) == {"other", "model.pt"}, "the process ends with a file that is there"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("torch.save(s, p, pickle_protocol=4)\n", "its torch.save has options"),
        ("model.save(p)\n", "the script calls no torch.save to a path itself"),
        ("torch.save(s, p)\nsubprocess.run(['cp', p, q])\n", NO_OVERLAP),
        ("def save(s, p):\n    torch.save(s, p)\n    upload(p)\n", NO_OVERLAP),
        ("_saver = 1\ntorch.save(s, p)\nx.backward()\n", "the script has a name _saver itself"),
        ("import torch.multiprocessing as mp\ntorch.save(s, p)\n", "the script starts processes"),
        ("torch.save(s, p)\nos._exit(0)\n", "the script ends without waiting"),
    ],
)
def test_what_is_left_to_its_author(source, why):
    tree, reason = with_background_saver(cst.parse_module("import torch\n" + source), "cpu")
    assert tree.code == "import torch\n" + source
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
        weights = torch.zeros(1 << 22)
        save_checkpoint({"epoch": epoch, "weights": weights}, epoch != 3, folder)
    print(*(torch.load(os.path.join(folder, f"{name}.pt"))["epoch"] for name in ("best", "checkpoint")))
    torch.save(torch.zeros(1 << 22), os.path.join(folder, "last.pt"))
"""
UPLOADS = """
import io, subprocess
import torch

def upload(path):
    subprocess.run(["cp", path, "uploaded.pt"], check=True)

for step in range(5):
    torch.save({"step": step, "weights": torch.zeros(1 << 22)}, "model.pt")
    total = torch.ones(()) + step
    upload("model.pt")
    assert torch.load("uploaded.pt")["step"] == step
    buffer = io.BytesIO()
    torch.save(total, buffer)
    assert torch.load(io.BytesIO(buffer.getvalue())) == step + 1
print(open("model.pt", "rb").read(2) == b"PK", len(list(__import__("pathlib").Path().glob(".*"))))
"""


@pytest.mark.parametrize(("source", "printed"), [(LIKE_IMAGENET, "2 3\n"), (UPLOADS, "True 0\n")])
def test_an_edited_script_does_with_its_files_what_it_did_before(source, printed, tmp_path):
    assert run(edited(source), tmp_path / "edited")[:3] == (0, printed, "")

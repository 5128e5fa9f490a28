"""What a stopped script may overwrite: a sentence before the run, and ``trace --copy``."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from diagnose.cli.copied_folder import warn_of_checkpoints
from diagnose.trials.guard import can_restrict

SCRIPT = """\
import os, sys
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for step in range(10**9):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
finally:
    for path in ("final.pt", *sys.argv[1:], os.environ["FINAL"]):
        try:
            open(path, "w").write("after a few steps")
        except OSError as error:
            print(error)
"""
PRECIOUS = "after 5000 steps"


@pytest.fixture
def project(tmp_path):
    """Return a folder with a script that saves its model whatever happens, and the result of an earlier run."""
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "final.pt").write_text(PRECIOUS)
    return folder


def trace(folder, *options, args=(), final="final.pt"):
    command = [sys.executable, "-m", "diagnose", "trace", "--skip", "4", "--steps", "4", *options, "train.py", *args]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FINAL": str(final)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_stop_that_may_overwrite_a_checkpoint_is_announced(project):
    done = trace(project, "--capture", "capture", "--json")
    assert done.returncode == 0, done.stderr
    before = done.stderr[: done.stderr.index("waiting for the first step")]
    assert "final.pt may be overwritten" in before
    assert "--copy" in before
    assert "--keep-going" in before


@pytest.mark.parametrize("how", ["relative", "absolute"])
def test_in_a_copy_nothing_is_overwritten(project, how):
    args = [] if how == "relative" else [f"{project}/final.pt", f"--save={project}/best.pt"]
    done = trace(project, "--copy", "--capture", "capture", "--json", args=args)
    assert done.returncode == 0, done.stderr
    assert (project / "final.pt").read_text() == PRECIOUS
    assert "may be overwritten" not in done.stderr
    info = json.loads((project / "capture" / "capture.json").read_text())
    assert (info["ended"], info["cwd"]) == ("stopped", str(project))
    assert info["command"] == ["train.py", *args]
    assert sorted(path.name for path in project.iterdir()) == ["capture", "final.pt", "train.py"]
    for file in (project / "capture").iterdir():
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        assert b"diagnose-prove-" not in data, file


@pytest.mark.skipif(not can_restrict(), reason="this system has no Landlock")
def test_a_path_that_the_script_makes_up_cannot_be_written(project):
    done = trace(project, "--copy", "--capture", "capture", "--quiet", "--json", final=project / "final.pt")
    assert done.returncode == 0, done.stderr
    assert (project / "final.pt").read_text() == PRECIOUS
    assert "Permission denied" in done.stderr


def test_what_fails_in_a_copy_leaves_nothing(project):
    (project / "train.py").write_text("raise ValueError('planted')")
    done = trace(project, "--copy", "--capture", "capture", "--json")
    assert done.returncode == 1
    assert "the script raised ValueError" in done.stderr
    assert sorted(path.name for path in project.iterdir()) == ["final.pt", "train.py"]


def test_a_copy_is_of_one_process(project, monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    done = trace(project, "--copy")
    assert (done.returncode, "--copy is for one process" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("final.pt", True),
        ("runs/best.ckpt", True),
        ("model.safetensors/0", True),
        (".git/x.bin", False),
        ("a.json", False),
    ],
)
def test_what_counts_as_a_checkpoint(tmp_path, name, said):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    lines = []
    warn_of_checkpoints(tmp_path, lines.append)
    assert len(lines) == said
    assert all(line.startswith(name.removesuffix("/0")) for line in lines)

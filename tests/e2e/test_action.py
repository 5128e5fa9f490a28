"""The composite action: its steps, run by a shell as the service runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
SCRIPT = """
import torch

model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x = torch.randn(256, 256)
for _ in range(400):
    optimizer.zero_grad()
    loss = sum(model(x).square().mean() for _ in range(TIMES))
    loss.backward()
    optimizer.step()
"""


def ran(folder, script):
    """Run the step that gates; return its exit status, its outcome and the summary."""
    step = next(each for each in ACTION["runs"]["steps"] if each.get("id") == "gate")
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "diagnose").write_text(f'#!/bin/sh\nexec {sys.executable} -m diagnose "$@"\n')
    (tools / "diagnose").chmod(0o755)
    inputs = {"SCRIPT": script, "TOLERANCE": ACTION["inputs"]["tolerance"]["default"], "RUNS": "2"}
    assert inputs.keys() == step["env"].keys()
    files = {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **inputs, **files, "PATH": path}
    for file in files.values():
        Path(file).write_text("")
    done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", step["run"]], cwd=folder, env=environment, check=False)
    outcome = Path(files["GITHUB_OUTPUT"]).read_text().strip().removeprefix("outcome=")
    return done.returncode, outcome, Path(files["GITHUB_STEP_SUMMARY"]).read_text()


@pytest.mark.full
def test_the_first_run_records_a_baseline_and_a_slower_script_fails(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.replace("TIMES", "2"))
    assert ran(tmp_path, "train.py --lr 0.1")[:2] == (0, "recorded")
    (tmp_path / "train.py").write_text(SCRIPT.replace("TIMES", "8"))
    status, outcome, summary = ran(tmp_path, "train.py --lr 0.1")
    assert (status, outcome) == (3, "slower")
    assert summary.startswith("### diagnose gate: slower\n```\n")


def test_a_script_that_fails_is_no_slower_one(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('no data')\n")
    status, outcome, _ = ran(tmp_path, "train.py")
    assert (status, outcome) not in {(0, "passed"), (3, "slower")}
    assert outcome == "failed"


def test_each_step_names_inputs_that_there_are():
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    named = {part.split("}}")[0].strip() for part in text.split("${{ inputs.")[1:]}
    assert named <= set(ACTION["inputs"])

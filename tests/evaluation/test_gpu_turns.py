"""evaluation/gpu/turns.py on the CPU: forms of a script as real processes, and the report on them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
import torch

layers = 1 if "--fixed" in sys.argv else 8
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(layers)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while "--ends" not in sys.argv:
    model(torch.ones(32, 64)).square().mean().backward()
    optimizer.step()
"""

pytestmark = pytest.mark.slow


def run(folder, *options):
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(ROOT / "evaluation" / "gpu" / "turns.py"), "train.py", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="see test_turn_process")
@pytest.mark.full
def test_every_form_is_reported(tmp_path):
    forms = "unchanged;unchanged;fused-optimizer;args:--fixed;args:--ends"
    done = run(tmp_path, "--forms", forms, "--seconds", "6", "--block", "0.05", "--raw", str(tmp_path / "raw.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    each = found["forms"]
    assert [form["form"] for form in each] == forms.split(";")
    assert [bool(form["failure"]) for form in each] == [False] * 4 + [True]
    assert found["instances"] == 2
    for form in each[:4]:
        assert form["rounds"] <= found["rounds"]
        assert form["steps_per_block"] >= 1
        assert len(form["ready_s"]) == len(form["losses"]) == 2
    assert each[2]["applied"]
    assert not each[0]["applied"]
    rounds = json.loads((tmp_path / "raw.json").read_text())
    assert len(rounds) == found["rounds"]
    assert all(round_["step_ns"].keys() == {"0", "1", "2", "3"} for round_ in rounds)


def test_without_the_unchanged_script_there_is_nothing_to_compare_with(tmp_path):
    done = run(tmp_path, "--forms", "fused-optimizer")
    assert done.returncode == 2
    assert "'unchanged'" in done.stderr

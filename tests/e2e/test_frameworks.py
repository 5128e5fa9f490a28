"""Training by other people's trainers, through the real commands: traced, diagnosed, proved."""

import json
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "fixtures" / "frameworks"


@pytest.mark.parametrize("name", ["transformers_trainer", "lightning_trainer", "accelerate_loop"])
def test_loading_in_the_training_process_is_found_mended_and_proved(diagnose, name):
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # two on shared cores make steps up to ten times slower
    asked = ("prove", "--json", "--quiet", "--yes", "--budget", "150s", "--apply", "load-in-workers")
    done = diagnose(*asked, FOLDER / f"{name}.py", env=one_thread)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    found = {f["rule"]: f for f in told["findings"]}
    assert told["dominant"] == "data-stall"
    assert any(w["file"] and w["file"].endswith(f"{name}.py") for w in found["data-stall"]["where"])
    assert "unfused-optimizer" not in found or found["unfused-optimizer"]["lost_share"] < 0.1
    (trial,) = told["trials"]
    assert trial["failure"] == ""
    assert trial["speed_up"] > 1.1, trial
    assert trial["numerics"] == "identical"

"""Training by other people's trainers, through the real commands: traced, diagnosed, proved."""

import json
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "fixtures" / "frameworks"


NAMES = ("accelerate_loop", "transformers_trainer", "lightning_trainer")  # the first imports the least
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # two on shared cores make steps up to ten times slower
PROVED = ("prove", "--json", "--quiet", "--yes", "--apply", "load-in-workers", "--budget")


def answered(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def loading_of(answer, name):
    """Return the finding about loading, which must name a line of the script."""
    (found,) = (f for f in answer["findings"] if f["rule"] == "data-stall")
    assert any(w["file"] and w["file"].endswith(f"{name}.py") for w in found["where"])
    return found


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.full) for name in NAMES[1:])])
def test_loading_in_the_training_process_is_found(diagnose, name):
    traced = ("trace", "--json", "--quiet", "--skip", "8", "--steps", "4", FOLDER / f"{name}.py")
    loading_of(answered(diagnose(*traced, env=ONE_THREAD)), name)


@pytest.mark.full
def test_loading_is_found_and_moved_into_workers_with_the_same_numbers(diagnose, few_runs):
    answer = answered(diagnose(*PROVED, "1h", FOLDER / "accelerate_loop.py", env=ONE_THREAD, launcher=few_runs))
    loading_of(answer, "accelerate_loop")
    (trial,) = answer["trials"]
    assert trial["failure"] == ""
    assert trial["numerics"] == "identical"


@pytest.mark.full
@pytest.mark.timing
@pytest.mark.parametrize("name", NAMES)
def test_loading_in_the_training_process_is_found_mended_and_proved(diagnose, name):
    answer = answered(diagnose(*PROVED, "150s", FOLDER / f"{name}.py", env=ONE_THREAD))
    loading_of(answer, name)
    assert answer["dominant"] == "data-stall"
    unfused = [f["lost_share"] for f in answer["findings"] if f["rule"] == "unfused-optimizer"]
    assert max(unfused, default=0.0) < 0.1
    (trial,) = answer["trials"]
    assert trial["failure"] == ""
    assert trial["speed_up"] > 1.1, trial
    assert trial["numerics"] == "identical"

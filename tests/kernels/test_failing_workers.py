"""A dataset that raises in a worker, and a worker that dies, reach the loop through everything around a loader."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diagnose.kernels.shared_cache import SharedCache

SCRIPT = Path(__file__).parent / "failing.py"

pytestmark = pytest.mark.full  # one process that trains through every way of failing: 16 s


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    command = [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("marks"))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", ["plain", "background", "prefetch"])
def test_the_error_comes_in_its_place_and_the_next_epoch_is_whole(found, way):
    met = found[f"{way}-raises"]
    assert met["seen"] == [0, 2, 4]
    assert met["error"].startswith("OSError: Caught OSError in DataLoader worker process 0")
    assert "the disk is gone" in met["error"]
    assert met["next"] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("way", ["plain", "background", "prefetch"])
def test_the_death_of_a_worker_ends_the_loop_and_the_next_epoch_is_whole(found, way):
    met = found[f"{way}-dies"]
    assert met["seen"] == [0, 2, 4][: len(met["seen"])]
    assert met["error"], "what torch says of it: that the worker exited, or that its connection was reset"
    assert met["next"] == [0, 2, 4, 6, 8]


def test_a_window_in_which_a_worker_fails_changes_nothing_until_it_is_dropped(found):
    met = found["window"]
    first, second, third = met["errors"]
    assert "the disk is gone" in first
    assert "Call flush() or drop()" in second
    assert met["unchanged"]
    assert (third, met["steps"]) == ("", 1)


def test_a_stage_that_raises_is_kept_nowhere():
    cache, calls = SharedCache(1 << 20), []

    def read(name):
        calls.append(name)
        if len(calls) == 1:
            raise OSError("the disk is gone")
        return torch.ones(2)

    stage = cache.stage(read)
    with pytest.raises(OSError, match="the disk is gone"):
        stage("a")
    assert torch.equal(stage("a"), torch.ones(2))
    cache.close()

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from diagnose.kernels.distributed import launch
from diagnose.kernels.distributed._agreement import whole_group
from diagnose.kernels.distributed.launch import VARIABLES, launched, rank_from_environment

GOOD = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
WORLD = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
model, criterion, epochs = nn.Linear(4, 2), nn.CrossEntropyLoss(), 2
dataset = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.arange(32) % 2)
torch.cuda.is_available = lambda: False
"""


def test_the_environment_of_torchrun(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = rank_from_environment(GOOD)
    assert (found.rank, found.num_ranks, found.local_rank, found.device) == (3, 4, 1, torch.device("cpu"))
    assert rank_from_environment({}).num_ranks == 1


@pytest.mark.parametrize("missing", VARIABLES)
def test_a_missing_variable_is_named(missing):
    with pytest.raises(RuntimeError, match=f"and {missing} are not; start with `torchrun"):
        rank_from_environment({**GOOD, missing: ""})


@pytest.mark.parametrize(("name", "value"), [("RANK", "4"), ("WORLD_SIZE", "four"), ("MASTER_PORT", "-1")])
def test_values_that_make_no_sense(name, value):
    with pytest.raises(RuntimeError, match=f"{name}={value}"):
        rank_from_environment({**GOOD, name: value})


def test_more_ranks_than_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match="LOCAL_RANK is 1, and this host shows 1 GPUs"):
        rank_from_environment(GOOD)


def test_two_batches_have_one_digest_only_where_every_element_agrees():
    large = torch.zeros(2000)  # printed in part
    other = large.clone()
    other[1000] = 1
    for make in (lambda x: x, lambda x: [x], lambda x: {"x": (x, "text")}):
        assert launch._digest(make(large)) == launch._digest(make(large.clone()))
        assert launch._digest(make(large)) != launch._digest(make(other))
    assert launch._digest({"x": "one"}) != launch._digest({"x": "other"})
    assert launch._digest(torch.ones(0))


def test_alone_it_is_a_group_of_one_which_ends(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launch.torch.cuda, "is_available", lambda: False)
    with launched(timeout_s=10) as rank:
        assert rank.num_ranks == dist.get_world_size() == 1
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError, match="no process group"):
        whole_group()


@pytest.mark.full
def test_torchrun_runs_the_example_of_the_page(tmp_path):
    example = "\n".join(line[4:] for line in launch.__doc__.split("Example::")[1].strip("\n").splitlines())
    script = tmp_path / "train.py"
    script.write_text(f"{WORLD}\n{example}\nassert rank.num_ranks == 2\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]

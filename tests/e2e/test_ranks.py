"""Ranks of gloo, one of them slow on purpose: who is late and why, under torchrun and under srun without it.

Where every rank has a folder of its own, as on nodes that share no disk, the answer is the same.
"""

import json
import socket
import sys
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parent / "launch.py"
BOUNDS = ("--skip", "4", "--steps", "6", "--json", "--quiet")
# Load lengthens the sleep on no rank but this one, and what the others do by less than it: it is three times the bar.
SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
def given(*names):
    return int(next(os.environ[name] for name in names if name in os.environ))

rank = given("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "RANK")
size = given("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")
late, rendezvous, wait_s = int(sys.argv[1]), sys.argv[2], 0.2
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=size)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def prepare(rank):
    if rank == late:
        time.sleep(wait_s)
    return torch.randn(8, 64)

for step in range(24):
    batch = prepare(rank)
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()  # a rank whose peers have left already may abort as it leaves
dist.destroy_process_group()  # else its threads may abort a process that ends
"""


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "-m", "--nproc-per-node")


@pytest.fixture
def port() -> int:
    """Return a port that is free."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num", "launcher"),
    [
        (2, "torchrun"),
        pytest.param(4, "torchrun", marks=pytest.mark.full),
        pytest.param(2, "mpirun", marks=pytest.mark.full),
        pytest.param(4, "apart", marks=pytest.mark.full),
    ],
)
def test_a_slow_rank_is_named_with_what_makes_it_slow(diagnose, script, tmp_path, port, num, launcher):
    alone = (sys.executable, LAUNCH, launcher, num, sys.executable, "-m", "diagnose")
    started = tuple(map(str, (*TORCHRUN, num, "diagnose") if launcher == "torchrun" else alone))
    rendezvous = "env://" if launcher == "torchrun" else f"tcp://127.0.0.1:{port}"
    done = diagnose("trace", *BOUNDS, "--capture", "capture", script(SCRIPT), 1, rendezvous, launcher=started)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [r["rank"] for r in answer["ranks"]] == list(range(num))
    assert answer["job"]["late"]["ranks"] == [1], answer["trust"]
    assert answer["job"]["late"]["late_ms"] > 60
    assert answer["job"]["late"]["cause"] in {"python-stall", "off-cpu"}
    late = next(f for f in answer["findings"] if f["rule"] == "straggler")
    assert late["title"].startswith("Rank 1 comes late")
    assert [place["code"] for place in late["where"]] == ["time.sleep(wait_s)"]
    assert answer["headline"].startswith("Rank 1 is late: ")
    if launcher == "apart":
        assert not list((tmp_path / "node0" / "capture").glob("*rank1*"))
        again = diagnose("analyze", "--json", "--quiet", "--no-cache", tmp_path / "node0" / "capture")
        assert json.loads(again.stdout)["job"] == answer["job"]


@pytest.mark.full
def test_chosen_ranks_are_recorded_and_the_others_only_run(diagnose, script, tmp_path):
    started = tuple(map(str, (*TORCHRUN, 3, "diagnose")))
    done = diagnose(
        "trace", *BOUNDS, "--ranks", "0,2", "--capture", "capture", script(SCRIPT), 1, "env://", launcher=started
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [r["rank"] for r in answer["ranks"]] == [0, 2]
    assert not list((tmp_path / "capture").glob("rank1*"))
    assert answer["source"]["world_size"] == 3

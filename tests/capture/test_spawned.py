"""Ranks that a script starts by itself are traced in their own processes."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, world, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(1000):
        model(torch.randn(8, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def in_processes(method, store):
    context = mp.get_context(method)
    processes = [context.Process(target=train, args=(rank, 2, store)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def in_forks(store):
    children = []
    for rank in (0, 1):
        children.append(os.fork())
        if not children[-1]:
            train(rank, 2, store)
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    how, store = sys.argv[1:]
    if how == "torch":
        mp.spawn(train, args=(2, store), nprocs=2)
    elif how == "os.fork":
        in_forks(store)
        sys.exit()
    else:
        in_processes(how, store)
    print("not reached: everything was captured")
"""


@pytest.mark.full
@pytest.mark.parametrize("how", ["torch", "spawn", "fork", "os.fork"])
def test_spawned_ranks_are_one_capture(tmp_path, how):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "diagnose",
        "trace",
        "--steps",
        "2",
        "--skip",
        "2",
        "--capture",
        "captured",
        "--json",
    ]
    done = subprocess.run(
        [*command, "train.py", how, str(tmp_path / "store")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / "captured" / f"capture.rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [(one["rank"], one["world_size"], one["ended"]) for one in ranks] == [(0, 2, "stopped"), (1, 2, "stopped")]
    assert ranks[0]["run_id"] == ranks[1]["run_id"]
    assert [one["rank"] for one in json.loads(done.stdout)["ranks"]] == [0, 1]
    assert "not reached" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} - {"store"} == {"captured", "train.py"}

"""Every example on a page of kernels/distributed runs as it stands, on two ranks."""

import ast
from pathlib import Path

import torch
import torch.distributed as dist
from setting import batches, network
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels import _OLD_NAMES

FOLDER = Path(__file__).parents[3] / "kernels" / "distributed"


def world(rank):
    """Return the names that examples take for granted: those of an ordinary training script, with a rank's batches."""
    model = network()
    data = batches(8, rank=rank)
    return {
        "torch": torch,
        "nn": nn,
        "dist": dist,
        "DistributedDataParallel": DistributedDataParallel,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "criterion": nn.CrossEntropyLoss(),
        "loader": data,
        "dataset": torch.utils.data.TensorDataset(*map(torch.cat, zip(*batches(8, rank=0), strict=True))),
        "log": lambda *_: None,
        "epochs": 2,
    }


def run(stem, rank=None):
    path = FOLDER / f"{stem}.py"
    page = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    lines = page.split("Example::")[1].strip("\n").splitlines()
    text = "\n".join(line[4:] for line in lines).replace('"cuda"', '"cpu"')
    exec(compile(text, str(path), "exec"), world(rank))


def check_every_page_has_a_check():
    pages = {p.stem for p in FOLDER.glob("*.py") if not p.name.startswith("_")} - _OLD_NAMES - {"launch"}
    assert {f"check_{stem}" for stem in pages} == {n for n in globals() if n.startswith("check_") and "page" not in n}


def check_comm_hooks():
    run("comm_hooks")


def check_hook_timing():
    run("hook_timing")


def check_mesh():
    run("mesh")


def check_ddp_arguments():
    run("ddp_arguments")


def check_bucket_tuning():
    run("bucket_tuning")


def check_local_sgd():
    run("local_sgd")


def check_uneven():
    run("uneven")


def check_memory_estimate():
    run("memory_estimate")


def check_fully_sharded():
    run("fully_sharded")


def check_zero():
    run("zero")


def check_tensor_parallel():
    run("tensor_parallel", rank=0)


def check_pipelined():
    run("pipelined", rank=0)


def check_single_process_parity():
    run("single_process_parity")


def check_hook_trials():
    run("hook_trials")

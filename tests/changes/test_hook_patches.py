"""Hooks that a patch installs on every DistributedDataParallel, in one process of one rank."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.changes import patch_of
from diagnose.changes.common.change import Log


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated")
@pytest.mark.parametrize(
    ("name", "tolerance", "done"),
    [
        ("compress-gradients", 1e-2, "gradients are exchanged in bf16"),
        ("eight-bit-gradients", 2e-2, "gradients are exchanged in 8 bits"),
        ("low-rank-gradients", 1e-2, "gradients are exchanged as thin matrices"),
        ("top-k-gradients", 0.0, "the largest gradients are exchanged"),  # exact while it warms up
        ("one-bit-gradients", 0.0, "signs of gradients are exchanged"),
        ("hierarchical-exchange", 1e-6, "gradients are summed inside each host first"),
        ("no-unused-search", 0.0, "find_unused_parameters=False"),
    ],
)
def test_gradients_stay_within_what_the_change_promises(name, tolerance, done):
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.randn(8, 4)
    model(x).square().mean().backward()
    wanted = model.weight.grad.clone()
    model.zero_grad()
    log = Log()
    undo = patch_of(name).install(log, {})
    try:
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        ddp(x).square().mean().backward()
    finally:
        undo()
    torch.testing.assert_close(model.weight.grad, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))
    assert log.done == [f"DistributedDataParallel: {done}"]
    assert ddp.find_unused_parameters == (name != "no-unused-search")

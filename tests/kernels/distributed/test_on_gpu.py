"""The hooks' way through a device's queue, with NCCL and one rank; written without a GPU at hand."""

import copy
import gc
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed.comm_hooks import comm_hook
from diagnose.kernels.distributed.hook_timing import install_timed

SCALE = 2.0**14  # of the loss, as for fp16 training: gradients below 6e-5 have fewer digits there
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or not dist.is_nccl_available(), reason="no GPU with NCCL"),
]


@pytest.fixture
def one_rank():
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=60), device_id=device
    )
    yield device
    gc.collect()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "options", "bound"),
    [
        ("plain", {}, 1e-6),
        ("fp16", {}, 1e-3),
        ("bf16", {}, 1e-2),
        ("int8", {}, 2e-2),  # a step of 1/127 of a block's largest value
        ("power_sgd", {"rank": 512, "warm_up": 0, "min_saving": 0}, 1e-3),
        ("hierarchical", {}, 1e-6),
    ],
)
def test_gradients_agree_with_plain_ddp(one_rank, name, options, bound):
    if name == "hierarchical":
        options = {"mesh": init_device_mesh("cuda", (1, 1))}
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).to(one_rank)
    ddp = DistributedDataParallel(copy.deepcopy(model), device_ids=[0], bucket_cap_mb=1)
    timing = install_timed(ddp, comm_hook(name, **options))
    for _ in range(5):
        x = torch.randn(64, 512, device=one_rank)
        model.zero_grad()
        ddp.zero_grad()
        (SCALE * model(x).square().mean()).backward()
        (SCALE * ddp(x).square().mean()).backward()
    for a, b in zip(ddp.parameters(), model.parameters(), strict=True):
        assert (a.grad - b.grad).norm() <= bound * b.grad.norm()
    report = timing.report()
    assert report.buckets > 1
    assert 0 < report.exposed_ms <= report.busy_ms

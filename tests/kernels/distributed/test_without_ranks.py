"""Called by a process that is in no group, or with a model that is in no DDP, a remedy says what to do first."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from diagnose.kernels.accumulation import GradientAccumulation
from diagnose.kernels.distributed import (
    bucket_tuning,
    comm_hooks,
    ddp_arguments,
    hook_timing,
    hook_trials,
    launch,
    local_sgd,
    mesh,
    pipelined,
    single_process_parity,
    uneven,
    zero,
)
from diagnose.kernels.sharding import ranks

ONE = [torch.ones(1)]


def model():
    return nn.Linear(2, 2)


def sgd():
    return torch.optim.SGD(model().parameters(), lr=0.1)


WITHOUT_GROUP = {
    "hosts": mesh.hosts,
    "build_mesh": lambda: mesh.build_mesh("cpu", {"data": 1}),
    "two_levels": lambda: mesh.two_levels("cpu"),
    "zero_optimizer": lambda: zero.zero_optimizer(torch.optim.SGD, model().parameters(), lr=0.1),
    "check_loader": lambda: launch.check_loader(DataLoader(TensorDataset(torch.zeros(8, 2)))),
    "tune_buckets": lambda: bucket_tuning.tune_buckets(model(), lambda ddp: len, ONE),
    "try_hooks": lambda: hook_trials.try_hooks(model(), lambda ddp: len, ONE, {}),
    "Pipeline": lambda: pipelined.Pipeline([model(), model()], nn.MSELoss(), num_micro_batches=2),
    "UnevenBatches": lambda: uneven.UnevenBatches(8, 4),
    "compare": lambda: single_process_parity.compare_with_one_process(model(), model(), len, len, ONE),
}
WITHOUT_DDP = {
    "install": lambda: comm_hooks.install(model(), "fp16"),
    "install_timed": lambda: hook_timing.install_timed(model(), "fp16"),
    "advise": lambda: ddp_arguments.advise(model(), len, ONE),
    "LocalSGD": lambda: local_sgd.LocalSGD(model(), sgd()),
    "LossWeights": lambda: uneven.LossWeights(model()),
    "Balance": lambda: uneven.Balance(model(), None),
}


@pytest.mark.parametrize("name", WITHOUT_GROUP)
def test_no_process_group(name):
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError, match=r"There is no process group; start with torchrun"):
        WITHOUT_GROUP[name]()


@pytest.mark.parametrize("name", WITHOUT_DDP)
def test_no_model_in_ddp(name):
    with pytest.raises(TypeError, match=r"DistributedDataParallel, not (for )?Linear"):
        WITHOUT_DDP[name]()


def test_what_serves_one_process_too_runs_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert ranks() == (0, 1)
    network = model()
    accumulation = GradientAccumulation(network, torch.optim.SGD(network.parameters(), lr=0.1), every=1)
    with accumulation.micro_batch(1) as micro:
        micro.backward(network(torch.ones(1, 2)).sum())
    assert accumulation.steps == 1

"""Starting ranks, loaders of several ranks, and hooks on trial, on two ranks."""

import time

import pytest
import torch
import torch.distributed as dist
from setting import batches, hooked, network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from diagnose.kernels.distributed import _trials
from diagnose.kernels.distributed._cast import Plain
from diagnose.kernels.distributed.comm_hooks import _HOOKS, CommHook, register
from diagnose.kernels.distributed.hook_trials import try_hooks
from diagnose.kernels.distributed.launch import check_loader, launched


class Wrong(Plain):
    """Forgets half of every gradient."""

    name = "wrong"

    def __call__(self, bucket):
        bucket.buffer().mul_(-1.0)
        return super().__call__(bucket)


def stepping(model, optimizer):
    def make_step(ddp):
        def train_step(batch):
            loss = nn.functional.cross_entropy(ddp(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return train_step

    return make_step


def check_hooks_on_trial():
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    register("wrong", Wrong)
    hooks = {"bf16": {}, "power_sgd": {"rank": 4, "warm_up": 4}, "wrong": {}}
    choice = try_hooks(model, stepping(model, optimizer), batches(16), hooks, state=[optimizer], steps=16)
    trials = {t.name: t for t in choice.trials}
    assert list(trials) == ["plain", *hooks]
    raw = 4 * sum(p.numel() for p in model.parameters())
    assert trials["plain"].sent_bytes == raw == 2 * trials["bf16"].sent_bytes
    assert trials["power_sgd"].sent_bytes < raw
    assert len({t.losses[0] for t in choice.trials}) == 1, "all begin alike"
    assert abs(choice.drift(trials["bf16"])) < 0.01
    assert choice.drift(trials["wrong"]) > 0.05
    assert choice.best != "wrong"
    assert "← chosen" in str(choice)
    assert all(map(torch.equal, before, model.parameters()))
    assert not optimizer.state
    found = [None, None]
    dist.all_gather_object(found, (choice.best, [t.losses for t in choice.trials]))
    assert found[0] == found[1]
    installed = choice.install(DistributedDataParallel(model))
    assert isinstance(installed, CommHook)
    assert installed.name == choice.best


class Clock:
    """Stands for the module time: it moves by what hooks take."""

    now = 0.0

    def perf_counter(self):
        return self.now


def taking(seconds, clock, hook=Plain):
    """Return a hook that does the same and takes so long by the clock."""

    class Timed(hook):
        def __call__(self, bucket):
            clock.now += seconds
            return super().__call__(bucket)

    return Timed


def check_the_fastest_that_keeps_the_loss_is_chosen():
    clock = _trials.time = Clock()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    _HOOKS["plain"] = taking(0.01, clock)
    try:
        register("quick", taking(0.002, clock))
        register("quick and wrong", taking(0.001, clock, Wrong))
        hooks = {"quick": {}, "quick and wrong": {}}
        choice = try_hooks(model, stepping(model, optimizer), batches(8), hooks, state=[optimizer], steps=8)
        assert choice.best == "quick", str(choice)
        register("hardly quicker", taking(0.0099, clock))  # 1 %, and runs differ by more
        hooks = {"quick and wrong": {}, "hardly quicker": {}}
        none = try_hooks(model, stepping(model, optimizer), batches(8), hooks, state=[optimizer], steps=8)
        assert none.best == "plain", str(none)
    finally:
        _HOOKS["plain"], _trials.time = Plain, time


def check_trials_refuse():
    model = network()
    step = stepping(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for arguments, text in [((batches(1), {}, 0), "steps >= 1"), (([], {}, 1), "no batch")]:
        with pytest.raises(ValueError, match=text):
            try_hooks(model, step, *arguments[:2], steps=arguments[2])
    with pytest.raises(ValueError, match="Invalid hook 'fp8'"):
        try_hooks(model, step, batches(1), {"fp8": {}})
    with pytest.raises(ValueError, match="different hooks"):
        try_hooks(model, step, batches(1), {("fp16", "bf16")[dist.get_rank()]: {}}, steps=1)
    with pytest.raises(TypeError, match="returned None"):
        try_hooks(model, lambda ddp: lambda batch: ddp(batch[0]).sum().backward(), batches(1), {}, steps=1)


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.arange(100.0).split(1)


def check_loaders_of_several_ranks():
    data = TensorDataset(torch.randn(25, 3), torch.arange(25))
    state = torch.get_rng_state()
    check_loader(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    assert torch.equal(state, torch.get_rng_state())
    for same in (DataLoader(data, batch_size=4), DataLoader(Stream(), batch_size=4)):
        with pytest.raises(ValueError, match="Ranks 0 and 1 load the same first batch"):
            check_loader(same)
    rank = dist.get_rank()
    uneven = torch.utils.data.Subset(data, [range(20), range(24, -1, -1)][rank])
    with pytest.raises(ValueError, match=r"\[5, 7\] batches"):
        check_loader(DataLoader(uneven, batch_size=4))
    with pytest.raises(ValueError, match="Rank 1 has no batch"):
        check_loader([{"x": [torch.ones(2), "name"]}] if rank == 0 else [])
    check_loader([{"x": [torch.ones(2), f"name {rank}"]}])
    with pytest.raises(RuntimeError, match="is a process group already"), launched():
        pass
    assert hooked()[0] is not None

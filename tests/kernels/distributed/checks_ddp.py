"""Advice on DDP's arguments and measured bucket sizes, on two ranks."""

import gc

import pytest
import torch
import torch.distributed as dist
from setting import batches, network
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed.bucket_tuning import tune_buckets
from diagnose.kernels.distributed.ddp_arguments import BROADCAST, advise


class Branches(nn.Module):
    """Takes one of two branches, or always the first."""

    def __init__(self, by):
        super().__init__()
        self.parts, self.by = nn.ModuleList([nn.Linear(16, 4), nn.Linear(16, 4)]), by

    def forward(self, x):
        return self.parts[int(self.by(x))](x)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(16, 4)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        x = x.clone().requires_grad_()
        first = checkpoint(self.part, x, use_reentrant=True)
        return first + checkpoint(self.part, x, use_reentrant=True)


class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(16, 4)
        self.register_buffer("usage", torch.zeros(4))

    def forward(self, x):
        out = self.part(x)
        self.usage.add_(out.detach().mean(0))
        return out


def advice_on(model, *, data=None, steps=3, **arguments):
    ddp = DistributedDataParallel(model, **arguments)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

    def train_step(batch):
        x, y = batch
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return ddp, optimizer, advise(ddp, train_step, data or batches(steps), state=[optimizer], steps=steps)


def suggestions(advice):
    return {a.argument: a.suggested for a in advice.advice if a.is_change}


def check_a_plain_model_and_nothing_left_changed():
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    _, optimizer, advice = advice_on(model, find_unused_parameters=True)
    assert suggestions(advice) == {"find_unused_parameters": False, "gradient_as_bucket_view": True}
    assert all(map(torch.equal, before, model.parameters()))
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    assert "True → False. Every parameter got a gradient in 6 observed steps" in str(advice)
    assert advice.arguments()["bucket_cap_mb"] == 25
    better = DistributedDataParallel(model, **advice.arguments())
    for x, y in batches(3):
        nn.functional.cross_entropy(better(x), y).backward()


def check_unused_parameters():
    fixed = advice_on(Branches(lambda x: 0))[2]
    assert suggestions(fixed) == {"static_graph": True, "gradient_as_bucket_view": True}
    assert "parts.1.weight, parts.1.bias" in fixed["static_graph"].reason
    by_data = advice_on(Branches(lambda x: x[0, 0] > 0), data=_signed())[2]
    assert suggestions(by_data)["find_unused_parameters"] is True
    assert by_data["static_graph"].suggested is False
    by_rank = advice_on(Branches(lambda x: dist.get_rank()))[2]
    assert by_rank["find_unused_parameters"].suggested is True
    assert by_rank["static_graph"].suggested is False


def _signed():
    return [(x.abs() * sign, y) for (x, y), sign in zip(batches(3), (1, -1, 1), strict=True)]


def check_following_the_advice_works_where_the_default_fails():
    model = Branches(lambda x: 0)
    advice = advice_on(model)[2]
    good = DistributedDataParallel(model, **advice.arguments())
    for x, y in batches(4):
        nn.functional.cross_entropy(good(x), y).backward()
    del good
    gc.collect()
    bad = DistributedDataParallel(model)
    x, y = batches(1)[0]
    nn.functional.cross_entropy(bad(x), y).backward()
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        bad(x)


def check_several_gradients_in_one_backward():
    advice = advice_on(Checkpointed())[2]
    assert advice["static_graph"].suggested is True
    assert "part.weight" in advice["static_graph"].reason


def check_buffers():
    norm = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    advice = advice_on(norm)[2]
    assert advice["broadcast_buffers"].suggested is False
    assert "rank 0" in advice["broadcast_buffers"].safety
    assert advice.arguments(only_same_numbers=True)[BROADCAST] is True
    constant = nn.Sequential(nn.Linear(16, 4))
    constant.register_buffer("table", torch.arange(4.0))
    assert advice_on(constant)[2].arguments(only_same_numbers=True)[BROADCAST] is False
    assert advice_on(Codebook())[2]["broadcast_buffers"].suggested is True
    assert advice_on(Codebook(), **{BROADCAST: False})[2][BROADCAST].is_change


def check_bucket_sizes():
    large = nn.Sequential(nn.Linear(16, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 4))
    advice = advice_on(large, bucket_cap_mb=100, steps=1)[2]
    assert advice["bucket_cap_mb"].suggested == 3, "8.1 MB in four"
    assert advice_on(large, bucket_cap_mb=0.05, steps=1)[2]["bucket_cap_mb"].suggested == 3
    assert not advice_on(large, bucket_cap_mb=2, steps=1)[2]["bucket_cap_mb"].is_change


def check_wrong_use_and_errors_on_one_rank():
    with pytest.raises(TypeError, match="wrap it first"):
        advise(network(), print, batches(1))
    ddp = DistributedDataParallel(network())
    with pytest.raises(ValueError, match="steps >= 1"):
        advise(ddp, print, batches(1), steps=0)
    with pytest.raises((ValueError, RuntimeError), match="no batch"):
        advise(ddp, lambda b: ddp(b[0]).sum().backward(), batches(1) if dist.get_rank() else [])
    with pytest.raises(ValueError, match="static_graph=True"):
        advise(DistributedDataParallel(network(), static_graph=True), print, batches(1))
    with pytest.raises(RuntimeError, match="No parameter got a gradient"):
        advise(ddp, lambda batch: None, batches(1))

    def fails(batch):
        ddp(batch[0]).sum().backward()
        if dist.get_rank() == 1:
            raise KeyError("one")

    with pytest.raises((KeyError, RuntimeError), match="one"):
        advise(ddp, fails, batches(1))


def stepping(model, optimizer, seen=None):
    def make_step(ddp):
        if seen is not None:
            seen.append(ddp.bucket_bytes_cap / 2**20)

        def train_step(batch):
            x, y = batch
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return train_step

    return make_step


def check_tuning_measures_every_size_and_changes_nothing():
    model = nn.Sequential(nn.Linear(16, 512), nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    before, seen = [p.detach().clone() for p in model.parameters()], []
    choice = tune_buckets(
        model, stepping(model, optimizer, seen), batches(2), state=[optimizer], candidates=[3, 0.25], steps=2, rounds=2
    )
    assert seen == [0.25, 3, 0.25, 3]
    assert [t.bucket_cap_mb for t in choice.trials] == [0.25, 3]
    assert choice.bucket_cap_mb in (0.25, 3)
    assert all(t.step_ms > 0 and 0 <= t.hidden_share <= 1 for t in choice.trials)
    assert "← chosen" in str(choice)
    assert all(map(torch.equal, before, model.parameters()))
    assert not optimizer.state
    everyones = [None, None]
    dist.all_gather_object(everyones, choice.trials and (choice.bucket_cap_mb, [t.step_ms for t in choice.trials]))
    assert everyones[0] == everyones[1], "ranks decided by different numbers"
    ddp = DistributedDataParallel(model)
    ddp(batches(1)[0][0]).sum().backward()  # no tried model is left behind in the parameters


def check_tuning_refuses():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = stepping(model, optimizer)
    for arguments in ({"steps": 0}, {"rounds": 0}, {"candidates": []}, {"candidates": [0]}):
        with pytest.raises(ValueError, match="sizes above 0 MB"):
            tune_buckets(model, step, batches(1), **arguments)
    with pytest.raises(ValueError, match="different candidates"):
        tune_buckets(model, step, batches(1), candidates=[1 + dist.get_rank()])
    with pytest.raises(ValueError, match="different numbers of batches"):
        tune_buckets(model, step, batches(1 + dist.get_rank()))
    with pytest.raises(ValueError, match="no batch"):
        tune_buckets(model, step, [])
    kept = []

    def keeping(ddp):
        kept.append(ddp)
        return step(ddp)

    with pytest.raises(RuntimeError, match="still in use elsewhere"):
        tune_buckets(model, keeping, batches(1), steps=1, candidates=[1])

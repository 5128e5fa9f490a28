"""Remedies of one process whose parts must agree over ranks: accumulated gradients, checkpoints that are sharded."""

import copy
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.accumulation import GradientAccumulation
from diagnose.kernels.fast_load import fill

SIZES = [[5, 5, 3, 2, 4], [1, 6, 2, 3, 3]]  # of each rank's batches: windows of 2, the last of one


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model, x):
    return (model(x).squeeze(1) - x.sum(1)).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def data():
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(num, 4, generator=generator) for num in row] for row in SIZES]


def trained_alone(clip_norm):
    plain = small()
    optimizer = sgd(plain)
    for window in ([0, 1], [2, 3], [4]):
        loss_of(plain, torch.cat([row[i] for row in data() for i in window])).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(plain.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return plain


def counting(reduced):
    def hook(state, bucket):
        reduced.append(1)
        return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda f: f.value()[0])

    return hook


def accumulated(model, clip_norm):
    """Train on this rank's batches as `trained_alone` does on all, and check what it refuses afterwards."""
    batches = data()[dist.get_rank()]
    accumulation = GradientAccumulation(model, sgd(model), every=2, clip_norm=clip_norm)
    for x in accumulation.over(batches):
        with accumulation.micro_batch(len(x)) as micro:
            micro.backward(loss_of(model, x))
    assert accumulation.steps == 3
    found = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach().clone() for p in model.parameters()]
    with accumulation.micro_batch(1) as micro:
        micro.backward(loss_of(model, batches[0]))
    with pytest.raises(RuntimeError, match=r"for batch in accumulation\.over\(loader\)"):
        accumulation.flush()  # a window that was not exchanged
    return found


# Without clipping too: a clipped gradient is the same whatever it was divided by.
CLIPS = (None, 0.3)


def check_ddp_with_other_batch_sizes_agrees_with_one_process():
    for clip_norm in CLIPS:
        reduced = []
        model = DistributedDataParallel(small())
        model.register_comm_hook(None, counting(reduced))
        expected = [*trained_alone(clip_norm).parameters()]
        torch.testing.assert_close(accumulated(model, clip_norm), expected, rtol=1e-5, atol=1e-6)
        assert len(reduced) == 3


def check_fsdp_with_other_batch_sizes_agrees_with_one_process():
    for clip_norm in CLIPS:
        found = accumulated(fully_shard(small()), clip_norm)
        torch.testing.assert_close(found, [*trained_alone(clip_norm).parameters()], rtol=1e-5, atol=1e-6)


def check_each_process_keeps_its_shards_only():
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    folder = Path(folder[0])
    plain = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(plain.state_dict(), checkpoint_id=folder / "dcp")
    if dist.get_rank() == 0:
        torch.save(plain.state_dict(), folder / "m.pt")
    dist.barrier()
    for source in ("m.pt", "dcp"):
        with torch.device("meta"):
            model = copy.deepcopy(plain).to_empty(device="meta")
        fully_shard(model[0])
        fully_shard(model)
        fill(model, str(folder / source))
        assert model[0].weight.to_local().shape[0] == (4, 3)[dist.get_rank()]
        assert torch.equal(model[0].weight.full_tensor(), plain[0].weight)
        x = torch.ones(2, 5)
        torch.testing.assert_close(model(x), plain(x))
        model(x).sum().backward()

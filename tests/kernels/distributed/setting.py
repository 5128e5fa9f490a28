"""What checks share: a small model, data that differ by rank, training steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed.comm_hooks import install

LEARNING_RATE = 0.05


def network(seed=0, width=64):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5)
    return model


def batches(num, size=32, *, rank=None, seed=1):
    """Return batches of this rank (or ``rank``): four classes that a plane separates."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    planes = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
    inputs = [torch.randn(size, 16, generator=generator) for _ in range(num)]
    return [(x, (x @ planes).argmax(1)) for x in inputs]


def hooked(hook=None, model=None, *, bucket_mb=0.01, **options):
    """Return a model in DDP with several buckets, and its hook."""
    ddp = DistributedDataParallel(model or network(), bucket_cap_mb=bucket_mb)
    return ddp, None if hook is None else install(ddp, hook, **options)


def trained(ddp, steps, *, momentum=0.9, start=0, optimizer=None):
    """Train, and return the mean loss of the last ten steps over all ranks."""
    optimizer = optimizer or torch.optim.SGD(ddp.parameters(), lr=LEARNING_RATE, momentum=momentum)
    losses = []
    for x, y in batches(start + steps)[start:]:
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    mean = torch.stack(losses[-10:]).mean()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def gradients_of(ddp, seed=1):
    """Return all gradients of one batch, flat."""
    ddp.zero_grad()
    x, y = batches(1, seed=seed)[0]
    nn.functional.cross_entropy(ddp(x), y).backward()
    return torch.cat([p.grad.flatten() for p in ddp.parameters()])


def same_on_all_ranks(tensor):
    everyones = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, tensor)
    return all(torch.equal(everyones[0], other) for other in everyones)

"""Insurance claim frequency and severity, two gloo processes, gradient accumulation."""
import argparse
import contextlib
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CARDS = (24, 60, 9, 110, 13)
NUMERIC = 14


def portfolio(n, seed):
    rng = np.random.default_rng(seed)
    cat = np.stack([rng.integers(0, c, n) for c in CARDS], 1)
    num = rng.standard_normal((n, NUMERIC)).astype(np.float32)
    exposure = rng.uniform(0.1, 1.0, n).astype(np.float32)
    rate = np.exp(-1.5 + 0.4 * num[:, 0] - 0.3 * num[:, 1] * num[:, 2] + 0.02 * cat[:, 0])
    count = rng.poisson(rate * exposure).astype(np.float32)
    cost = rng.gamma(2.0, np.exp(0.3 * num[:, 3] + 0.1 * (cat[:, 2] - 4)) / 2).astype(np.float32) * (count > 0)
    return tuple(map(torch.from_numpy, (cat, num, exposure, count, cost)))


class ShardSampler:
    """Common shuffle, disjoint strided shards; reshuffles when a pass is over."""

    def __init__(self, n, size, rank, world, seed):
        self.n, self.size, self.rank, self.world = n, size, rank, world
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            mine = torch.randperm(self.n, generator=self.gen)[self.rank::self.world]
            for idx in mine.split(self.size):
                if len(idx) == self.size:
                    yield idx


class CrossLayer(nn.Module):
    def __init__(self, d, rank):
        super().__init__()
        self.u, self.v = nn.Linear(d, rank, bias=False), nn.Linear(rank, d)

    def forward(self, x0, x):
        return x0 * self.v(self.u(x)) + x


class ClaimNet(nn.Module):
    def __init__(self, emb=16, width=512, depth=3):
        super().__init__()
        self.register_buffer("offset", torch.tensor([0, *np.cumsum(CARDS)[:-1]]))
        self.table = nn.Embedding(sum(CARDS), emb)
        d = emb * len(CARDS) + NUMERIC
        self.cross = nn.ModuleList(CrossLayer(d, 48) for _ in range(2))
        layers, c = [], d
        for _ in range(depth):
            layers += [nn.Linear(c, width), nn.LayerNorm(width), nn.SiLU()]
            c = width
        self.deep = nn.Sequential(*layers)
        self.freq, self.sev = nn.Linear(width + d, 1), nn.Linear(width + d, 1)

    def forward(self, cat, num):
        x0 = torch.cat([self.table(cat + self.offset).flatten(1), num], 1)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        h = torch.cat([self.deep(x0), x], 1)
        return self.freq(h).squeeze(1), self.sev(h).squeeze(1)


def objective(log_rate, log_sev, exposure, count, cost):
    poisson = F.poisson_nll_loss(log_rate + exposure.log(), count)
    has = (count > 0).float()
    gamma = (has * (log_sev + cost * torch.exp(-log_sev))).sum() / has.sum().clamp(min=1)
    return poisson + 0.2 * gamma


def worker(rank, world, store, args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    data = portfolio(40_000, 0)
    model = DDP(ClaimNet(), gradient_as_bucket_view=True, bucket_cap_mb=8)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    feed = iter(ShardSampler(len(data[0]), args.micro, rank, world, args.seed))
    for step in range(1, args.steps + 1):
        opt.zero_grad()
        seen = torch.zeros(())
        for k in range(args.accumulate):
            last = k == args.accumulate - 1
            rows = next(feed)
            cat, num, exposure, count, cost = (column[rows] for column in data)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = objective(*model(cat, num), exposure, count, cost) / args.accumulate
                loss.backward()
            seen += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if step % 10 == 0:
            dist.all_reduce(seen)
            if rank == 0:
                print(f"step {step} deviance {seen.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--micro", type=int, default=512)
    ap.add_argument("--accumulate", type=int, default=3)
    ap.add_argument("--seed", type=int, default=1)
    ns = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(worker, (2, os.path.join(tmp, "fs"), ns), nprocs=2)

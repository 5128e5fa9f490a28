"""Click-through model for display ads: hashed id features and a cross network, two processes."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class ImpressionLog:
    """Power-law ids in several fields, hashed into one table; clicks from a hidden scorer."""

    def __init__(self, fields, buckets, dense, seed):
        g = torch.Generator().manual_seed(seed)
        self.fields, self.buckets, self.dense = fields, buckets, dense
        self.salt = torch.randint(1, 2 ** 20, (fields,), generator=g) * 2 + 1
        self.secret = torch.randn(4096, generator=g) * 0.5
        self.w = torch.randn(dense, generator=g) * 0.4

    def batch(self, n, gen):
        raw = (torch.rand(n, self.fields, generator=gen).pow(4) * 200_000).long()
        ids = (raw * self.salt + self.salt.roll(1)) % self.buckets
        x = torch.randn(n, self.dense, generator=gen)
        score = self.secret[ids % 4096].mean(1) * 3 + x @ self.w - 1.0
        click = (torch.rand(n, generator=gen) < score.sigmoid()).float()
        return ids, x, click


class CrossLayer(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.v, self.u = nn.Linear(width, rank, bias=False), nn.Linear(rank, width)

    def forward(self, x0, x):
        return x0 * self.u(self.v(x)) + x


class AdNet(nn.Module):
    def __init__(self, buckets, fields, dense, dim=16, width=256):
        super().__init__()
        self.table = nn.Embedding(buckets, dim)
        nn.init.normal_(self.table.weight, std=0.05)
        total = fields * dim + dense
        self.cross = nn.ModuleList(CrossLayer(total, 48) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(total, width), nn.ReLU(), nn.LayerNorm(width),
                                  nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(total + width, 1)

    def forward(self, ids, x):
        x0 = torch.cat([self.table(ids).flatten(1), x], 1)
        c = x0
        for layer in self.cross:
            c = layer(x0, c)
        return self.out(torch.cat([c, self.deep(x0)], 1)).squeeze(1)


class Optimizers:
    """Plain SGD for the id table, Adam for everything else."""

    def __init__(self, model, table_lr, lr):
        dense = [p for n, p in model.named_parameters() if not n.startswith("table.")]
        self.table = torch.optim.SGD(model.table.parameters(), lr=table_lr)
        self.dense = torch.optim.Adam(dense, lr=lr, fused=True)

    def zero_grad(self):
        self.table.zero_grad()
        self.dense.zero_grad()

    def step(self):
        self.table.step()
        self.dense.step()


def serve(rank, world, meet, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    torch.manual_seed(args.seed)
    feed = ImpressionLog(args.fields, args.buckets, 8, args.seed)
    gen = torch.Generator().manual_seed(args.seed + 7 * (rank + 1))
    model = AdNet(args.buckets, args.fields, 8)
    ddp = DDP(model)
    opts = Optimizers(model, table_lr=0.5, lr=1e-3)
    window = torch.zeros(2)
    for step in range(1, args.steps + 1):
        ids, x, click = feed.batch(args.batch, gen)
        logit = ddp(ids, x)
        loss = F.binary_cross_entropy_with_logits(logit, click)
        opts.zero_grad()
        loss.backward()
        opts.step()
        window += torch.stack([loss.detach(), click.mean()])
        if step % 10 == 0:
            dist.all_reduce(window)
            mean = window / (10 * world)
            if rank == 0:
                print(f"step {step:4d} logloss {mean[0].item():.6f} ctr {mean[1].item():.4f}", flush=True)
            window.zero_()
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=1024)
    ap.add_argument("--fields", type=int, default=20)
    ap.add_argument("--buckets", type=int, default=400_000)
    ap.add_argument("--seed", type=int, default=53)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(serve, args=(2, os.path.join(tmp, "meet"), args), nprocs=2)


if __name__ == "__main__":
    main()

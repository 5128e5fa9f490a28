"""Binding-affinity regression from atom sets, with averaged weights and a few best snapshots."""
import argparse
import copy
import heapq
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

ELEMENTS = 10


class ComplexSet(Dataset):
    def __init__(self, n, atoms, seed):
        rng = np.random.default_rng(seed)
        self.kind = torch.from_numpy(rng.integers(0, ELEMENTS, (n, atoms)))
        self.xyz = torch.from_numpy(rng.normal(0, 1.5, (n, atoms, 3)).astype(np.float32))
        charge = torch.from_numpy(rng.normal(0, 1, ELEMENTS).astype(np.float32))[self.kind]
        radius = self.xyz.norm(dim=-1)
        self.affinity = (charge * torch.exp(-radius)).sum(1) + 0.1 * torch.from_numpy(
            rng.standard_normal(n, dtype=np.float32))

    def __len__(self):
        return len(self.affinity)

    def __getitem__(self, i):
        return self.kind[i], self.xyz[i], self.affinity[i]


class SetBlock(nn.Module):
    """Induced set attention: a handful of learned seeds reads from and writes to the atoms."""

    def __init__(self, dim, heads, seeds):
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, seeds, dim) * 0.1)
        self.read = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.write = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        seeds = self.seeds.expand(len(x), -1, -1)
        summary, _ = self.read(seeds, x, x, need_weights=False)
        update, _ = self.write(x, summary, summary, need_weights=False)
        x = self.norm1(x + update)
        return self.norm2(x + self.ff(x))


class AffinityModel(nn.Module):
    def __init__(self, dim=96, depth=3, heads=4, seeds=12, rbf=16):
        super().__init__()
        self.kind = nn.Embedding(ELEMENTS, dim)
        self.register_buffer("centres", torch.linspace(0, 6, rbf))
        self.place = nn.Linear(3 + rbf, dim)
        self.blocks = nn.ModuleList([SetBlock(dim, heads, seeds) for _ in range(depth)])
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, kind, xyz):
        radial = torch.exp(-2.0 * (xyz.norm(dim=-1, keepdim=True) - self.centres) ** 2)
        x = self.kind(kind) + self.place(torch.cat([xyz, radial], -1))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1)).squeeze(-1)


class AveragedWeights:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.pairs = list(zip(self.model.parameters(), model.parameters()))

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_([a for a, _ in self.pairs], [b.detach() for _, b in self.pairs], 1 - self.decay)


class SnapshotShelf:
    """Keeps the `limit` best weight sets seen at validation."""

    def __init__(self, limit):
        self.limit, self.items, self.count = limit, [], 0

    def offer(self, score, model):
        self.count += 1
        if len(self.items) == self.limit and -score <= self.items[0][0]:
            return
        entry = (-score, self.count, {k: v.clone() for k, v in model.state_dict().items()})
        if len(self.items) < self.limit:
            heapq.heappush(self.items, entry)
        else:
            heapq.heapreplace(self.items, entry)

    def best(self):
        return max(self.items)


@torch.no_grad()
def validate(model, loader):
    total = n = 0
    for kind, xyz, y in loader:
        total += F.l1_loss(model(kind, xyz), y, reduction="sum").item()
        n += len(y)
    return total / n


def forever(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--atoms", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--val-every", type=int, default=30)
    ap.add_argument("--seed", type=int, default=8)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(ComplexSet(1200, args.atoms, args.seed), args.batch_size, shuffle=True, drop_last=True)
    held = DataLoader(ComplexSet(64, args.atoms, args.seed), 64)
    model = AffinityModel()
    averaged, shelf = AveragedWeights(model, 0.98), SnapshotShelf(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    t0 = time.time()
    for step, (kind, xyz, y) in enumerate(forever(loader), 1):
        loss = F.smooth_l1_loss(model(kind, xyz), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        averaged.update()
        if step % 10 == 0:
            print(f"{step} loss {loss.item():.4f} {(time.time() - t0) / step * 1e3:.0f} ms")
        if step % args.val_every == 0:
            mae = validate(averaged.model, held)
            shelf.offer(mae, averaged.model)
            print(f"{step} averaged mae {mae:.4f} best {-shelf.best()[0]:.4f}")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()

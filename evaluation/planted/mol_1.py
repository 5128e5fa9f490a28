"""Molecule property regression with message passing over batched graphs."""
import argparse
import random
from collections import namedtuple

import torch
from torch import nn

GraphBatch = namedtuple("GraphBatch", "x edges owner n_graphs y")


class MeanConv(nn.Module):
    def __init__(self, dim, by_edges):
        super().__init__()
        self.own, self.nbr = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.by_edges = by_edges

    def forward(self, h, support):
        m = self.nbr(h)
        if self.by_edges:
            (src, dst), deg = support
            agg = torch.zeros_like(m).index_add(0, dst, m[src]) / deg
        else:
            agg = support @ m
        return torch.relu(self.own(h) + agg) + h


class MolNet(nn.Module):
    def __init__(self, n_feat, dim=48, depth=3, by_edges=False):
        super().__init__()
        self.inp = nn.Linear(n_feat, dim)
        self.convs = nn.ModuleList(MeanConv(dim, by_edges) for _ in range(depth))
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))
        self.by_edges = by_edges

    def support(self, batch):
        n = len(batch.x)
        src, dst = batch.edges
        deg = torch.bincount(dst, minlength=n).clamp(min=1).float().unsqueeze(1)
        if self.by_edges:
            return (src, dst), deg
        adj = torch.zeros(n, n)
        adj[dst, src] = 1.0
        return adj / deg

    def forward(self, batch):
        sup = self.support(batch)
        h = self.inp(batch.x)
        for conv in self.convs:
            h = conv(h, sup)
        pooled = torch.zeros(batch.n_graphs, h.shape[1]).index_add(0, batch.owner, h)
        return self.out(pooled).squeeze(1)


def molecule(rng, n_feat=12):
    n = rng.randint(10, 22)
    bonds = [(i, rng.randrange(max(0, i - 3), i)) for i in range(1, n)]
    src = torch.tensor([b[0] for b in bonds] + [b[1] for b in bonds])
    dst = torch.tensor([b[1] for b in bonds] + [b[0] for b in bonds])
    x = torch.nn.functional.one_hot(torch.randint(0, n_feat, (n,)), n_feat).float()
    return x, torch.stack([src, dst]), x[:, 0].sum() - 0.3 * x[:, 3].sum()


def batch_of(mols):
    sizes = torch.tensor([len(m[0]) for m in mols])
    shift = sizes.cumsum(0) - sizes
    edges = torch.cat([m[1] + s for m, s in zip(mols, shift)], 1)
    owner = torch.repeat_interleave(torch.arange(len(mols)), sizes)
    return GraphBatch(torch.cat([m[0] for m in mols]), edges, owner, len(mols), torch.stack([m[2] for m in mols]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(41)
    rng = random.Random(41)
    train = [molecule(rng) for _ in range(300)]
    model = MolNet(12, by_edges=args.fixed)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        batch = batch_of(rng.sample(train, 64))
        loss = nn.functional.l1_loss(model(batch), batch.y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} mae {loss.item():.5f}")


if __name__ == "__main__":
    main()

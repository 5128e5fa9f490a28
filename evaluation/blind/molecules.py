"""Train a small message passing network on (synthetic) molecular energies.

    python molecules.py --steps 150 --hidden 96
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch-size", type=int, default=40)
    p.add_argument("--hidden", type=int, default=96)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--num-rbf", type=int, default=16)
    p.add_argument("--cutoff", type=float, default=4.5)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


class MoleculeSet(Dataset):
    """Random blobs of atoms. The neighbour list is built once, up front."""

    def __init__(self, n, cutoff, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        charges = torch.tensor([1, 6, 7, 8, 9])
        for _ in range(n):
            k = int(torch.randint(14, 26, (1,), generator=g))
            pos = torch.randn(k, 3, generator=g) * (k ** (1 / 3)) * 0.85
            z = charges[torch.randint(0, 5, (k,), generator=g)]
            d = torch.cdist(pos, pos)
            src, dst = torch.nonzero((d < cutoff) & (d > 1e-6), as_tuple=True)
            dist = d[src, dst]
            q = z.float() / 9.0
            energy = (q[src] * q[dst] * torch.exp(-dist)).sum() / k
            self.items.append((z, src, dst, dist, energy))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    zs, srcs, dsts, dists, ys, owner = [], [], [], [], [], []
    offset = 0
    for b, (z, s, d, r, y) in enumerate(batch):
        zs.append(z)
        srcs.append(s + offset)
        dsts.append(d + offset)
        dists.append(r)
        ys.append(y)
        owner.append(torch.full_like(z, b))
        offset += z.numel()
    return (torch.cat(zs), torch.cat(srcs), torch.cat(dsts), torch.cat(dists),
            torch.cat(owner), torch.stack(ys))


class RadialBasis(nn.Module):
    def __init__(self, n, cutoff):
        super().__init__()
        self.cutoff = cutoff
        self.register_buffer("freq", torch.arange(1, n + 1) * math.pi / cutoff)

    def forward(self, r):
        # spherical bessel j0 with a smooth envelope
        env = 0.5 * (torch.cos(math.pi * r / self.cutoff) + 1.0)
        return torch.sin(r[:, None] * self.freq) * (env / r)[:, None]


class Interaction(nn.Module):
    def __init__(self, hidden, edge_dim):
        super().__init__()
        self.edge_in = nn.Linear(2 * hidden + edge_dim, hidden)
        self.edge_out = nn.Linear(hidden, hidden)
        self.node = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, h, src, dst, edge_attr):
        h_src = h.index_select(0, src)
        h_dst = h.index_select(0, dst)
        msg = F.silu(self.edge_in(torch.cat([h_src, h_dst, edge_attr], dim=-1)))
        msg = F.silu(self.edge_out(msg))
        agg = torch.zeros_like(h).index_add(0, dst, msg)
        return h + self.node(torch.cat([h, agg * 0.2], dim=-1))


class EnergyNet(nn.Module):
    def __init__(self, hidden, layers, num_rbf, cutoff):
        super().__init__()
        self.embed = nn.Embedding(10, hidden)
        self.rbf = RadialBasis(num_rbf, cutoff)
        self.blocks = nn.ModuleList([Interaction(hidden, num_rbf) for _ in range(layers)])
        self.readout = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.SiLU(), nn.Linear(hidden // 2, 1))

    def forward(self, z, src, dst, dist, owner, n_graphs):
        h = self.embed(z)
        edge_attr = self.rbf(dist)
        for block in self.blocks:
            h = block(h, src, dst, edge_attr)
        atom_e = self.readout(h).squeeze(-1)
        out = atom_e.new_zeros(n_graphs)
        return out.index_add(0, owner, atom_e) / 20.0


def endless(loader):
    while True:
        yield from loader


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    data = MoleculeSet(600, args.cutoff, args.seed)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True, collate_fn=collate)
    net = EnergyNet(args.hidden, args.layers, args.num_rbf, args.cutoff)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-4, fused=True)

    start = time.time()
    batches = endless(loader)
    for step in range(1, args.steps + 1):
        z, src, dst, dist, owner, y = next(batches)
        pred = net(z, src, dst, dist, owner, y.numel())
        loss = F.smooth_l1_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if step % 25 == 0:
            print(f"step {step:4d}  loss {loss.item():.5f}  mae {(pred - y).abs().mean().item():.4f}  "
                  f"edges {src.numel()}  {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()

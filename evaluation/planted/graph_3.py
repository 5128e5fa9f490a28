"""Mini-batch link-free node classification with full one-hop aggregation."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class ListNeighbours:
    def __init__(self, src, dst, n):
        self.lists = [[] for _ in range(n)]
        for s, d in zip(src.tolist(), dst.tolist()):
            self.lists[d].append(s)

    def edges(self, seeds):
        cols, rows = [], []
        for row, node in enumerate(seeds.tolist()):
            for nb in self.lists[node]:
                cols.append(nb)
                rows.append(row)
        return torch.tensor(cols), torch.tensor(rows)


class CSRNeighbours:
    def __init__(self, src, dst, n):
        order = torch.argsort(dst, stable=True)
        self.col = src[order]
        self.deg = torch.bincount(dst, minlength=n)
        self.ptr = self.deg.cumsum(0) - self.deg

    def edges(self, seeds):
        deg = self.deg[seeds]
        rows = torch.repeat_interleave(torch.arange(len(seeds)), deg)
        first = deg.cumsum(0) - deg
        inner = torch.arange(len(rows)) - first[rows]
        return self.col[self.ptr[seeds][rows] + inner], rows


class SageNet(nn.Module):
    def __init__(self, n_in, hid, n_class):
        super().__init__()
        self.own, self.nbr = nn.Linear(n_in, hid), nn.Linear(n_in, hid)
        self.mid, self.out = nn.Linear(hid, hid), nn.Linear(hid, n_class)

    def forward(self, x_self, x_nbr, rows):
        total = torch.zeros_like(x_self).index_add(0, rows, x_nbr)
        count = torch.bincount(rows, minlength=len(x_self)).clamp(min=1).unsqueeze(1)
        h = F.relu(self.own(x_self) + self.nbr(total / count))
        return self.out(F.relu(self.mid(h)))


def citation_graph(n, avg_deg, n_class):
    y = torch.randint(0, n_class, (n,))
    src = torch.randint(0, n, (n * avg_deg,))
    dst = torch.randint(0, n, (n * avg_deg,))
    keep = (y[src] == y[dst]) | (torch.rand(len(src)) < 0.3)
    x = torch.randn(n, 64) + 0.5 * torch.randn(n_class, 64)[y]
    return x, y, src[keep], dst[keep]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--seeds", type=int, default=700)
    args = ap.parse_args()
    torch.manual_seed(107)
    x, y, src, dst = citation_graph(6000, 40, 7)
    nbrs = (CSRNeighbours if args.fixed else ListNeighbours)(src, dst, len(x))
    net = SageNet(64, 192, 7)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True)
    order = torch.randperm(len(x))
    for step in range(args.steps):
        lo = (step * args.seeds) % (len(order) - args.seeds)
        seeds = order[lo:lo + args.seeds]
        cols, rows = nbrs.edges(seeds)
        loss = F.cross_entropy(net(x[seeds], x[cols], rows), y[seeds])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 5 == 0:
            print(f"step {step + 1} edges {len(cols)} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()

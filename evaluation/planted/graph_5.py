"""Sparse GCN with per-epoch edge dropout and residual layers."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class SparseConv(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lin, self.own = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)

    def forward(self, h, adj):
        return h + F.relu(self.own(h) + torch.sparse.mm(adj, self.lin(h)))


class GCN(nn.Module):
    def __init__(self, n_in, n_class, dim=64, depth=3):
        super().__init__()
        self.inp, self.out = nn.Linear(n_in, dim), nn.Linear(dim, n_class)
        self.convs = nn.ModuleList(SparseConv(dim) for _ in range(depth))
        self.drop = nn.Dropout(0.2)

    def forward(self, x, adj):
        h = self.inp(self.drop(x))
        for conv in self.convs:
            h = conv(h, adj)
        return self.out(h)


class EdgeSampler:
    """Keeps a random part of the edges; degree normalisation follows the kept edges."""

    def __init__(self, src, dst, n):
        self.src, self.dst, self.n = src, dst, n
        self.full = self.build(src, dst)

    def build(self, src, dst):
        deg = torch.bincount(dst, minlength=self.n).clamp(min=1).float()
        vals = deg[dst].reciprocal()
        return torch.sparse_coo_tensor(torch.stack([dst, src]), vals, (self.n, self.n), is_coalesced=True, check_invariants=False)

    def sample(self, keep):
        mask = torch.rand(len(self.src)) < keep
        return self.build(self.src[mask], self.dst[mask])


def make_graph(n=1500, deg=10, n_class=6):
    y = torch.randint(0, n_class, (n,))
    src, dst = torch.randint(0, n, (2, n * deg * 2))
    keep = (y[src] == y[dst]) | (torch.rand(len(src)) < 0.2)
    pairs = torch.unique(dst[keep] * n + src[keep])
    x = torch.randn(n, 48) + 0.4 * torch.randn(n_class, 48)[y]
    return x, y, pairs % n, pairs // n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(307)
    x, y, src, dst = make_graph()
    sampler = EdgeSampler(src, dst, len(x))
    net = GCN(48, 6)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-3, fused=True)
    is_train = torch.rand(len(x)) < 0.5
    train, test = is_train.nonzero().squeeze(1), (~is_train).nonzero().squeeze(1)
    for epoch in range(1, args.steps + 1):
        logits = net(x, sampler.sample(0.8))
        loss = F.cross_entropy(logits[train], y[train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if epoch % 10 == 0:
            net.eval()
            with torch.no_grad():
                acc = (net(x, sampler.full)[test].argmax(1) == y[test]).float().mean().item()
            net.train()
            print(f"epoch {epoch} loss {loss.item():.5f} test {acc:.3f}")


if __name__ == "__main__":
    main()

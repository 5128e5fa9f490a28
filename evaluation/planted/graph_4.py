"""Heterophilous graph classification with gated edge messages."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class GatedMessage(nn.Module):
    def __init__(self, dim, per_node):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.edge_gate = nn.Linear(4, 1)
        self.update = nn.Linear(2 * dim, dim)
        self.per_node = per_node

    def forward(self, x, src, dst, edge_attr):
        if self.per_node:
            m = self.message(x)[src]
        else:
            m = self.message(x[src])
        m = m * torch.sigmoid(self.edge_gate(edge_attr))
        agg = torch.zeros_like(x).index_add(0, dst, m)
        return x + F.silu(self.update(torch.cat([x, agg * 0.05], 1)))


class EdgeNet(nn.Module):
    def __init__(self, n_in, n_class, dim=40, depth=2, per_node=False):
        super().__init__()
        self.inp = nn.Linear(n_in, dim)
        self.layers = nn.ModuleList(GatedMessage(dim, per_node) for _ in range(depth))
        self.out = nn.Linear(dim, n_class)

    def forward(self, g, src, dst, attr):
        h = self.inp(g)
        for layer in self.layers:
            h = layer(h, src, dst, attr)
        return self.out(h)


class RandomGraph:
    def __init__(self, n=500, deg=20, n_class=5):
        self.y = torch.randint(0, n_class, (n,))
        self.x = torch.randn(n, 24) + 0.4 * torch.randn(n_class, 24)[self.y]
        self.src = torch.randint(0, n, (n * deg,))
        self.dst = torch.randint(0, n, (n * deg,))
        same = (self.y[self.src] == self.y[self.dst]).float().unsqueeze(1)
        self.attr = torch.cat([same + 0.5 * torch.randn(n * deg, 1), torch.randn(n * deg, 3)], 1)

    def drop_edges(self, p):
        keep = torch.rand(len(self.src)) >= p
        return self.src[keep], self.dst[keep], self.attr[keep]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(181)
    graph = RandomGraph()
    net = EdgeNet(24, 5, per_node=args.fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    train = torch.rand(500) < 0.6
    for epoch in range(args.steps):
        logits = net(graph.x, *graph.drop_edges(0.2))
        loss = F.cross_entropy(logits[train], graph.y[train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if epoch % 5 == 4:
            acc = (logits.detach().argmax(1) == graph.y)[~train].float().mean()
            print(f"epoch {epoch + 1} loss {loss.item():.5f} rest acc {acc.item():.3f}")


if __name__ == "__main__":
    main()

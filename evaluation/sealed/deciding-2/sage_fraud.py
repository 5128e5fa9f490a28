"""Inductive node classification on a payment graph (merchant/account nodes), mini-batched."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class PaymentGraph:
    def __init__(self, n_nodes, n_edges, n_feat, seed):
        g = torch.Generator().manual_seed(seed)
        self.n_nodes = n_nodes
        centre = torch.randint(n_nodes, (n_edges,), generator=g)
        hop = (torch.randn(n_edges, generator=g) * 4000).long()
        self.src = (centre + hop) % n_nodes
        self.dst = centre
        self.feat = torch.randn(n_nodes, n_feat, generator=g)
        risk = torch.zeros(n_nodes).index_add_(0, self.dst, self.feat[self.src, 0])
        self.label = (risk + self.feat[:, 1] > 1.0).long()


class NeighbourhoodBuilder:
    """Collects the in-edges needed to compute `hops` layers for a set of seed nodes."""

    def __init__(self, graph, hops):
        self.graph = graph
        self.hops = hops
        self.flag = torch.zeros(graph.n_nodes, dtype=torch.bool)
        self.local = torch.full((graph.n_nodes,), -1, dtype=torch.long)

    def in_edges(self, nodes):
        self.flag[nodes] = True
        hit = self.flag[self.graph.dst].nonzero().squeeze(1)
        self.flag[nodes] = False
        return self.graph.src[hit], self.graph.dst[hit]

    def build(self, seeds):
        layers, frontier = [], seeds
        for _ in range(self.hops):
            src, dst = self.in_edges(frontier)
            self.local[frontier] = torch.arange(len(frontier))
            fresh = torch.unique(src[self.local[src] < 0])
            nodes = torch.cat([frontier, fresh])
            self.local[fresh] = torch.arange(len(frontier), len(nodes))
            layers.append((self.local[src], self.local[dst], len(frontier)))
            self.local[nodes] = -1
            frontier = nodes
        return layers[::-1], frontier


class SageConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.own = nn.Linear(d_in, d_out)
        self.nbr = nn.Linear(d_in, d_out, bias=False)

    def forward(self, h, src, dst, n_out):
        total = h.new_zeros(n_out, h.shape[1]).index_add(0, dst, h[src])
        degree = torch.bincount(dst, minlength=n_out).clamp_(min=1).unsqueeze(1)
        return self.own(h[:n_out]) + self.nbr(total / degree)


class FraudNet(nn.Module):
    def __init__(self, n_feat, width, hops):
        super().__init__()
        self.project = nn.Sequential(nn.Linear(n_feat, width), nn.ReLU())
        self.convs = nn.ModuleList(SageConv(width, width) for _ in range(hops))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(hops))
        self.classify = nn.Linear(width, 2)

    def forward(self, x, layers):
        h = self.project(x)
        for conv, norm, (src, dst, n_out) in zip(self.convs, self.norms, layers):
            h = F.relu(norm(conv(h, src, dst, n_out)))
        return self.classify(h)


def seeds_forever(n, size, gen):
    while True:
        order = torch.randperm(n, generator=gen)
        for chunk in order.split(size):
            if len(chunk) == size:
                yield chunk


def run(opts):
    torch.manual_seed(opts.seed)
    graph = PaymentGraph(opts.nodes, opts.nodes * 9, 64, opts.seed)
    builder = NeighbourhoodBuilder(graph, hops=2)
    net = FraudNet(64, 96, hops=2)
    optim = torch.optim.AdamW(net.parameters(), lr=3e-3, fused=True)
    stream = seeds_forever(opts.nodes, opts.batch, torch.Generator().manual_seed(opts.seed + 1))
    correct = seen = 0
    for step in range(opts.steps):
        seeds = next(stream)
        layers, inputs = builder.build(seeds)
        logits = net(graph.feat[inputs], layers)
        target = graph.label[seeds]
        loss = F.cross_entropy(logits, target)
        optim.zero_grad()
        loss.backward()
        optim.step()
        correct += (logits.argmax(1) == target).sum().item()
        seen += len(seeds)
        if (step + 1) % 10 == 0:
            print(f"step {step + 1} loss {loss.item():.5f} acc {correct / seen:.4f} nodes {len(inputs)}")
            correct = seen = 0


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--nodes", type=int, default=220000)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--seed", type=int, default=8)
    run(p.parse_args())

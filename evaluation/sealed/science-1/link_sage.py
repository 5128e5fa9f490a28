"""GraphSAGE link prediction on a citation-like graph, mini-batch with fixed fan-out."""
import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Graph:
    num_nodes: int
    indptr: np.ndarray
    indices: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    x: torch.Tensor


def make_graph(num_nodes, num_edges, feat_dim, seed):
    rng = np.random.default_rng(seed)
    community = rng.integers(0, 40, size=num_nodes)
    order = np.argsort(community, kind="stable")
    starts = np.searchsorted(community[order], np.arange(41))
    popularity = rng.pareto(1.8, size=num_nodes) + 0.2
    cdf = np.cumsum(popularity)
    src = np.searchsorted(cdf, rng.random(num_edges) * cdf[-1])
    inside = rng.random(num_edges) < 0.7
    c = community[src]
    local = order[(starts[c] + rng.random(num_edges) * (starts[c + 1] - starts[c])).astype(np.int64)]
    dst = np.where(inside, local, rng.integers(0, num_nodes, size=num_edges))
    keep = src != dst
    src, dst = src[keep], dst[keep]
    both_s, both_d = np.concatenate([src, dst]), np.concatenate([dst, src])
    perm = np.argsort(both_s, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(both_s, minlength=num_nodes))])
    centers = rng.normal(size=(40, feat_dim))
    x = centers[community] * 0.5 + rng.normal(size=(num_nodes, feat_dim))
    return Graph(num_nodes, indptr, both_d[perm], src, dst, torch.tensor(x, dtype=torch.float32))


class NeighborSampler:
    def __init__(self, graph, fanouts, seed):
        self.g, self.fanouts = graph, fanouts
        self.rng = np.random.default_rng(seed)
        self.degree = np.diff(graph.indptr)

    def __call__(self, seeds):
        layers = [seeds]
        for k in self.fanouts:
            nodes = layers[-1]
            deg = self.degree[nodes]
            pick = (self.rng.random((len(nodes), k)) * np.maximum(deg, 1)[:, None]).astype(np.int64)
            pos = np.minimum(self.g.indptr[nodes][:, None] + pick, len(self.g.indices) - 1)
            neigh = np.where(deg[:, None] > 0, self.g.indices[pos], nodes[:, None])
            layers.append(neigh.reshape(-1))
        return layers


class EdgeSampler:
    """Positive edges uniformly; negatives corrupt the tail and are never true edges."""

    def __init__(self, graph, batch, seed):
        self.g, self.batch = graph, batch
        self.rng = np.random.default_rng(seed)
        self.edge_ids = np.concatenate([self.pair_id(graph.src, graph.dst),
                                        self.pair_id(graph.dst, graph.src)])

    def pair_id(self, u, v):
        return u * np.int64(self.g.num_nodes) + v

    def corrupt(self, heads):
        tails = self.rng.integers(0, self.g.num_nodes, size=len(heads))
        clash = np.isin(self.pair_id(heads, tails), self.edge_ids)
        while clash.any():
            tails[clash] = self.rng.integers(0, self.g.num_nodes, size=int(clash.sum()))
            clash = np.isin(self.pair_id(heads, tails), self.edge_ids)
        return tails

    def draw(self):
        e = self.rng.integers(0, len(self.g.src), size=self.batch)
        u, v = self.g.src[e], self.g.dst[e]
        return u, v, self.corrupt(u)


class SAGELayer(nn.Module):
    def __init__(self, d_in, d_out, last=False):
        super().__init__()
        self.own = nn.Linear(d_in, d_out)
        self.neigh = nn.Linear(d_in, d_out, bias=False)
        self.norm = None if last else nn.LayerNorm(d_out)

    def forward(self, h, h_neigh):
        out = self.own(h) + self.neigh(h_neigh.view(h.shape[0], -1, h.shape[1]).mean(1))
        return out if self.norm is None else F.relu(self.norm(out))


class SAGE(nn.Module):
    def __init__(self, d_in, hidden, d_out):
        super().__init__()
        self.inp = nn.Linear(d_in, hidden)
        self.l1 = SAGELayer(hidden, hidden)
        self.l2 = SAGELayer(hidden, d_out, last=True)

    def forward(self, feats):
        h0, h1, h2 = (F.relu(self.inp(f)) for f in feats)
        near, seed = self.l1(h1, h2), self.l1(h0, h1)
        return F.normalize(self.l2(seed, near), dim=-1)


class Scorer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(3 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, a, b):
        return self.mlp(torch.cat([a * b, a + b, (a - b).abs()], dim=-1)).squeeze(-1)


def auc(pos, neg):
    scores = torch.cat([pos, neg])
    rank = torch.empty_like(scores)
    rank[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    n = len(pos)
    return ((rank[:n].sum() - n * (n + 1) / 2) / (n * len(neg))).item()


def train(args):
    torch.manual_seed(args.seed)
    graph = make_graph(args.nodes, args.edges, args.feat_dim, args.seed)
    neighbors = NeighborSampler(graph, args.fanouts, args.seed + 1)
    edges = EdgeSampler(graph, args.batch, args.seed + 2)
    encoder = SAGE(args.feat_dim, args.hidden, args.hidden // 2)
    scorer = Scorer(args.hidden // 2)
    params = [*encoder.parameters(), *scorer.parameters()]
    opt = torch.optim.Adam(params, lr=args.lr)

    def score_batch():
        u, v, w = edges.draw()
        z = encoder([graph.x[torch.from_numpy(ids)] for ids in neighbors(np.concatenate([u, v, w]))])
        zu, zv, zw = z.split(args.batch)
        return scorer(zu, zv), scorer(zu, zw)

    running = 0.0
    for step in range(1, args.steps + 1):
        pos, neg = score_batch()
        loss = F.softplus(-pos).mean() + F.softplus(neg).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        running = 0.9 * running + 0.1 * loss.detach()
        if step % args.log_every == 0:
            smooth = (running / (1 - 0.9 ** step)).item()
            print(f"step {step} loss {loss.item():.5f} smooth {smooth:.5f} "
                  f"auc {auc(pos.detach(), neg.detach()):.4f}")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--nodes", type=int, default=40000)
    p.add_argument("--edges", type=int, default=100000)
    p.add_argument("--feat-dim", type=int, default=96)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--fanouts", type=int, nargs=2, default=[10, 5])
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--log-every", type=int, default=10)
    return p.parse_args()


if __name__ == "__main__":
    train(parse())

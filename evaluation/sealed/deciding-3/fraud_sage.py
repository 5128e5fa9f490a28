"""Account-level fraud scores with neighbour-sampled GraphSAGE on a payment graph."""
import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class PaymentGraph:
    """CSR adjacency (incoming payments) with account features and labels."""

    def __init__(self, accounts=40_000, payments=400_000, feats=96, seed=0):
        rng = np.random.default_rng(seed)
        self.y = (rng.random(accounts) < 0.06).astype(np.float32)
        src = rng.integers(0, accounts, payments)
        dst = rng.integers(0, accounts, payments)
        ring = np.flatnonzero(self.y)
        flip = rng.random(payments) < 0.08
        src[flip], dst[flip] = rng.choice(ring, flip.sum()), rng.choice(ring, flip.sum())
        order = np.argsort(dst, kind="stable")
        self.nbr = src[order]
        self.ptr = np.searchsorted(dst[order], np.arange(accounts + 1))
        x = rng.standard_normal((accounts, feats)).astype(np.float32)
        x[:, :4] += 0.7 * self.y[:, None]
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(self.y)

    def sample(self, nodes, fanout, rng):
        """Fixed fan-out with replacement; accounts without payments point at themselves."""
        deg = self.ptr[nodes + 1] - self.ptr[nodes]
        pick = self.ptr[nodes][:, None] + (rng.random((len(nodes), fanout)) * deg[:, None]).astype(np.int64)
        out = self.nbr[np.minimum(pick, len(self.nbr) - 1)]
        return np.where(deg[:, None] > 0, out, nodes[:, None])


class SageLayer(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.own, self.nbr = nn.Linear(d_in, d_out), nn.Linear(d_in, d_out, bias=False)
        self.norm = nn.LayerNorm(d_out)

    def forward(self, own, nbr_mean):
        return F.relu(self.norm(self.own(own) + self.nbr(nbr_mean)))


class FraudSage(nn.Module):
    def __init__(self, feats, hidden=256):
        super().__init__()
        self.l1, self.l2 = SageLayer(feats, hidden), SageLayer(hidden, hidden)
        self.head = nn.Sequential(nn.Linear(hidden, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, x, layout, hop1, hop2):
        """layout: seeds, then their neighbours (hop1); hop2: neighbours of every entry of layout."""
        h = self.l1(x.index_select(0, layout), F.embedding_bag(hop2, x, mode="mean"))
        n = len(hop1)
        return self.head(self.l2(h[:n], h[n:].view(n, hop1.shape[1], -1).mean(1))).squeeze(-1)


class Blocks:
    def __init__(self, graph, seeds, fan, seed):
        self.g, self.seeds, self.fan = graph, seeds, fan
        self.rng = np.random.default_rng(seed)

    def batch(self, size):
        seeds = self.rng.choice(self.seeds, size)
        hop1 = self.g.sample(seeds, self.fan[0], self.rng)
        layer1 = np.concatenate([seeds, hop1.ravel()])
        hop2 = self.g.sample(layer1, self.fan[1], self.rng)
        return tuple(map(torch.from_numpy, (layer1, hop1, hop2))) + (self.g.y[torch.from_numpy(seeds)],)


def average_precision(score, y):
    y = y[score.argsort(descending=True)]
    precision = y.cumsum(0) / torch.arange(1, len(y) + 1)
    return ((precision * y).sum() / y.sum().clamp(min=1)).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=896)
    ap.add_argument("--fan", type=int, nargs=2, default=(8, 6))
    args = ap.parse_args()
    torch.manual_seed(4)
    graph = PaymentGraph()
    nodes = np.random.default_rng(4).permutation(len(graph.x))
    train, test = Blocks(graph, nodes[:30_000], args.fan, 5), Blocks(graph, nodes[30_000:], args.fan, 6)
    net = FraudSage(graph.x.shape[1])
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    weight = torch.tensor(6.0)
    for step in range(1, args.steps + 1):
        layer1, hop1, hop2, y = train.batch(args.batch)
        loss = F.binary_cross_entropy_with_logits(net(graph.x, layer1, hop1, hop2), y, pos_weight=weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"step {step} bce {loss.item():.4f}")
        if step % 60 == 0:
            with torch.no_grad():
                layer1, hop1, hop2, y = test.batch(512)
                print(f"  test AP {average_precision(net(graph.x, layer1, hop1, hop2), y):.4f}")


if __name__ == "__main__":
    main()

import argparse
import math
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def citation_network(n=3000, n_edges=60000, dims=768, classes=8, seed=0):
    """Planted-partition citation graph; features are encoder vectors of the abstracts."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, n)
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(classes + 1))
    src = rng.integers(0, n, n_edges)
    same = rng.random(n_edges) < 0.75
    lo, hi = starts[label[src]], starts[label[src] + 1]
    dst = np.where(same, order[lo + (rng.random(n_edges) * (hi - lo)).astype(int)], rng.integers(0, n, n_edges))
    topic = 0.06 * rng.standard_normal((classes, dims))
    x = (topic[label] + rng.standard_normal((n, dims))).astype(np.float32)
    both = np.stack([np.concatenate([src, dst, np.arange(n)]), np.concatenate([dst, src, np.arange(n)])])
    return torch.from_numpy(x), torch.from_numpy(np.unique(both, axis=1)), torch.from_numpy(label)


def normalised_adjacency(edges, n):
    deg = torch.bincount(edges[1], minlength=n).float()
    inv = deg.rsqrt()
    value = inv[edges[0]] * inv[edges[1]]
    return torch.sparse_coo_tensor(edges.flip(0), value, (n, n), check_invariants=False).to_sparse_csr()


class Aggregate(torch.autograd.Function):
    """Sparse product; the adjacency is symmetric, so the backward pass uses it as it is."""

    @staticmethod
    def forward(ctx, adj, x):
        ctx.adj = adj
        return adj @ x

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.adj @ grad if ctx.needs_input_grad[1] else None


warnings.filterwarnings("ignore", message="Sparse CSR")


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_in, d_out))
        self.bias = nn.Parameter(torch.zeros(d_out))
        bound = math.sqrt(6 / (d_in + d_out))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x, adj):
        x = Aggregate.apply(adj, x)
        return x @ self.weight + self.bias


class CitationGCN(nn.Module):
    def __init__(self, d_in, classes, hidden=96, dropout=0.5):
        super().__init__()
        self.conv1 = GraphConv(d_in, hidden)
        self.conv2 = GraphConv(hidden, hidden)
        self.conv3 = GraphConv(hidden, classes)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.dropout(x, self.dropout, self.training)
        h = F.relu(self.conv1(x, adj))
        h = F.dropout(h, self.dropout, self.training)
        h = self.norm(h + F.relu(self.conv2(h, adj)))
        return self.conv3(h, adj)


def accuracy(logits, label, nodes):
    return (logits[nodes].argmax(1) == label[nodes]).float().mean().item()


def main():
    ap = argparse.ArgumentParser(description="full-batch GCN on a citation graph")
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--lr", type=float, default=0.01)
    ap.add_argument("--weight-decay", type=float, default=5e-4)
    ap.add_argument("--patience", type=int, default=100)
    args = ap.parse_args()
    torch.manual_seed(0)

    x, edges, label = citation_network()
    adj = normalised_adjacency(edges, len(x))
    perm = torch.randperm(len(x))
    train, val = perm[:400], perm[400:800]
    net = CitationGCN(x.shape[1], int(label.max()) + 1)
    opt = torch.optim.Adam([
        {"params": net.conv1.parameters(), "weight_decay": args.weight_decay},
        {"params": [p for m in (net.conv2, net.conv3, net.norm) for p in m.parameters()], "weight_decay": 0.0},
    ], lr=args.lr, fused=True)

    best, since = 0.0, 0
    for step in range(1, args.steps + 1):
        net.train()
        opt.zero_grad()
        logits = net(x, adj)
        loss = F.cross_entropy(logits[train], label[train])
        loss.backward()
        opt.step()
        if step % 20 == 0:
            net.eval()
            with torch.no_grad():
                acc = accuracy(net(x, adj), label, val)
            since = 0 if acc > best else since + 20
            best = max(best, acc)
            print(f"epoch {step} loss {loss.item():.4f} val {acc:.4f} best {best:.4f}")
            if since > args.patience:
                break
        elif step % 5 == 0:
            print(f"epoch {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
